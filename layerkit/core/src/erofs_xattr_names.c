/* Prefixes of xattr names: a table of constants. */
#include <string.h>

#include "private/erofs_disk.h"
#include "private/erofs_xattr_names.h"

uint8_t lk_xattr_prefix(const uint8_t *name, uint32_t size, uint8_t *prefix_size)
{
    static const struct {
        const char *prefix;
        uint8_t size, number, is_whole;
    } prefixes[] = {
        {"user.", 5, EROFS_XATTR_USER, 0},
        {"system.posix_acl_access", 23, EROFS_XATTR_ACL_ACCESS, 1},
        {"system.posix_acl_default", 24, EROFS_XATTR_ACL_DEFAULT, 1},
        {"trusted.", 8, EROFS_XATTR_TRUSTED, 0},
        {"security.", 9, EROFS_XATTR_SECURITY, 0},
    };
    for (unsigned i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (size < prefixes[i].size || memcmp(name, prefixes[i].prefix, prefixes[i].size))
            continue;
        /* The kernel has no attribute `user.` without a name behind it, and none behind an ACL's name. */
        if ((size == prefixes[i].size) != prefixes[i].is_whole)
            continue;
        *prefix_size = prefixes[i].size;
        return prefixes[i].number;
    }
    return 0;
}
