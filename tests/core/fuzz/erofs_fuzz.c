/* The EROFS reader under the sanitizers: mutates sample images and puts each, in a buffer of exactly its size, through
 * every function. Built and run by tests/core/test_erofs_sanitizers.py.
 *
 * usage: erofs_fuzz SECONDS SEED IMAGE...  */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "crc32c.h"
#include "erofs_reader.h"
#include "fastcdc.h"

static uint64_t state;

static uint64_t next(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state >> 8) % below : state;
}

static const uint64_t interesting[] = {0, 1, 2, 11, 12, 31, 32, 255, 256, 4095, 4096, 0x7fff, 0xffff, 0x7fffffff,
                                       0x80000000, 0xfffffffe, 0xffffffff, UINT64_C(1) << 40, INT64_MAX, UINT64_MAX};

/* A place that holds something: one in eight times the superblock, else near a byte that is not zero. */
static size_t place(const uint8_t *image, size_t size)
{
    if (!next(8))
        return 1024 + next(256);
    for (int tries = 0; tries < 64; tries++) {
        size_t at = next(size);
        if (image[at])
            return at;
    }
    return next(size);
}

static void mutate(uint8_t *image, size_t size)
{
    for (uint64_t count = 1 + next(4) * next(2); count; count--) {
        size_t width = (size_t)1 << next(4);
        size_t at = place(image, size) / width * width;
        uint64_t value = 0;
        if (at + width > size)
            continue;
        memcpy(&value, image + at, width);
        switch (next(4)) {
        case 0:
            value ^= (uint64_t)1 << next(64);
            break;
        case 1:
            value = interesting[next(sizeof interesting / sizeof *interesting)];
            break;
        case 2:
            value += next(130) - 65;
            break;
        default:
            value = place(image, size) / (next(2) ? 32 : 4096);
        }
        memcpy(image + at, &value, width);
    }
    if (size < 4096 || !next(10))
        return;
    memset(image + 1028, 0, 4);
    uint32_t checksum = lk_crc32c(0xffffffffu, image + 1024, 3072);
    memcpy(image + 1028, &checksum, 4);
}

static void read_inode(const struct lk_erofs *image, uint64_t nid)
{
    struct lk_fault fault;
    struct lk_erofs_inode inode;
    struct lk_erofs_dirent found;
    size_t count;
    if (lk_erofs_inode(image, nid, &inode, &fault))
        return;
    size_t bytes = inode.size <= image->size ? inode.size : 0;
    uint8_t *out = malloc(bytes + 1);
    struct lk_erofs_dirent *entries = malloc((bytes / 12 + 1) * sizeof *entries);
    struct lk_erofs_extent *extents = malloc((inode.chunk_count + 2) * sizeof *extents);
    struct lk_erofs_xattr_place *xattrs = malloc((inode.xattr_size / 4 + 1) * sizeof *xattrs);
    if (!out || !entries || !extents || !xattrs)
        abort();
    if (bytes == inode.size) {
        lk_erofs_read(image, &inode, out, &fault);
        lk_erofs_entries(image, &inode, entries, &count, &fault);
    }
    lk_erofs_map(image, &inode, extents, &count, &fault);
    lk_erofs_xattrs(image, &inode, xattrs, &count, &fault);
    lk_erofs_find(image, &inode, (const uint8_t *)"dir", 3, &found, &fault);
    lk_erofs_find(image, &inode, (const uint8_t *)"", 0, &found, &fault);
    free(out);
    free(entries);
    free(extents);
    free(xattrs);
}

static int exercise(const uint8_t *data, size_t size)
{
    struct lk_erofs image;
    struct lk_erofs_walk walk = {0};
    struct lk_fault fault;
    if (lk_erofs_open(&image, data, size, &fault))
        return 0;
    int accepted = !lk_erofs_walk(&image, &walk, &fault);
    for (int tries = 0; tries < 8; tries++)
        read_inode(&image, walk.row_count && next(4) ? walk.rows[next(walk.row_count)].nid : next(next(2) ? 4096 : 0));
    read_inode(&image, image.root_nid);
    lk_erofs_walk_free(&walk);
    return accepted;
}

/* Cutting reads in blocks and words: any offset, any end, a window of exactly the bytes it is given. */
static void cut(const uint8_t *data, size_t size)
{
    uint64_t out[64];
    size_t consumed, at = 0;
    struct lk_cut_state cut_state = {0};
    while (at < size) {
        size_t length = 1 + next(size - at);
        uint8_t *copy = malloc(length);
        if (!copy)
            abort();
        memcpy(copy, data + at, length);
        int final = at + length == size;
        size_t count = lk_cut_file(&cut_state, copy, length, final, out, 64, &consumed);
        free(copy);
        if (!consumed && count < 64 && !final)
            break;
        at += consumed;
    }
}

int main(int argc, char **argv)
{
    uint64_t tried = 0, accepted = 0;
    if (argc < 4)
        return 2;
    time_t end = time(NULL) + atoi(argv[1]);
    state = (uint64_t)atoll(argv[2]) * 0x9e3779b97f4a7c15u + 1;
    while (time(NULL) < end) {
        FILE *file = fopen(argv[3 + next((uint64_t)argc - 3)], "rb");
        if (!file || fseek(file, 0, SEEK_END))
            return 2;
        size_t whole = (size_t)ftell(file), size = next(20) ? whole : next(whole);
        rewind(file);
        uint8_t *data = malloc(size ? size : 1);
        if (!data || fread(data, 1, size, file) != size)
            return 2;
        fclose(file);
        if (size >= 4096)
            mutate(data, size);
        accepted += (uint64_t)exercise(data, size);
        if (!next(50))
            cut(data, size);
        free(data);
        tried++;
    }
    printf("%llu images, %llu accepted\n", (unsigned long long)tried, (unsigned long long)accepted);
    return 0;
}
