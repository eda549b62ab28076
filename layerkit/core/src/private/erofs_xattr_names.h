/* Which namespaces of xattr names have a number on disk. */
#ifndef LK_EROFS_XATTR_NAMES_H
#define LK_EROFS_XATTR_NAMES_H

#include <stdint.h>

/* The number of a full name's prefix, 0 when it has none; the prefix's length goes to *prefix_size. */
uint8_t lk_xattr_prefix(const uint8_t *name, uint32_t size, uint8_t *prefix_size);

#endif
