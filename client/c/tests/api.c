/* Calls each function of tombolo.h once: api SOCKET EXPORT, on a tree with `a/b/file` and the link `a/link` to it. C99 and C++. */
#include "tombolo.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The library's layout; header.rs has the same figures. */
#define ASSERT(name, condition) typedef char assert_##name[(condition) ? 1 : -1]
ASSERT(time_size, sizeof(struct tombolo_time) == 16);
ASSERT(time_nsec, offsetof(struct tombolo_time, nsec) == 8);
ASSERT(stat_size, sizeof(struct tombolo_stat) == 160);
ASSERT(stat_gid, offsetof(struct tombolo_stat, gid) == 12);
ASSERT(stat_ino, offsetof(struct tombolo_stat, ino) == 16);
ASSERT(stat_size_field, offsetof(struct tombolo_stat, size) == 24);
ASSERT(stat_generation, offsetof(struct tombolo_stat, generation) == 48);
ASSERT(stat_mask, offsetof(struct tombolo_stat, mask) == 68);
ASSERT(stat_atime, offsetof(struct tombolo_stat, atime) == 72);
ASSERT(stat_btime, offsetof(struct tombolo_stat, btime) == 120);
ASSERT(stat_reserved, offsetof(struct tombolo_stat, reserved) == 136);
ASSERT(counts_size, sizeof(struct tombolo_counts) == 24);
ASSERT(counts_requests, offsetof(struct tombolo_counts, requests) == 16);
ASSERT(watermarks_size, sizeof(struct tombolo_watermarks) == 24);
ASSERT(watermarks_at_origin, offsetof(struct tombolo_watermarks, at_origin) == 16);

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "api.c:%d: %s\n", __LINE__, #condition);           \
            return 1;                                                          \
        }                                                                      \
    } while (0)

static int count_entry(void *context, const char *name, unsigned int type, uint64_t inode)
{
    (void)type;
    if (inode == 0 || name[0] == '\0')
        return -EINVAL;
    ++*(int *)context;
    return 0;
}

static volatile int results[2] = {1, 1};

static void told(void *context, int result, const struct tombolo_stat *stat)
{
    *(volatile int *)context = stat != NULL && stat->size != 7 ? 1 : result;
}

int main(int argc, char **argv)
{
    struct tombolo_tree *tree = NULL;
    struct tombolo_stat stat, link_stat;
    struct tombolo_counts counts;
    struct tombolo_watermarks watermarks;
    char buffer[16];
    int entries = 0, result, waits;

    CHECK(argc == 3);
    CHECK(strcmp(tombolo_version(), TOMBOLO_VERSION) == 0);
    CHECK(tombolo_open(argv[1], argv[2], &tree) == 0 && tree != NULL);
    CHECK(tombolo_stat(tree, "a/link", &stat) == 0 && stat.size == 7);
    CHECK(tombolo_lstat(tree, "a/link", &link_stat) == 0 && link_stat.ino != stat.ino);
    CHECK(tombolo_stat(tree, "none", &stat) == -ENOENT);
    CHECK(tombolo_access(tree, "a/b/file", R_OK) == 0);
    CHECK(tombolo_read(tree, "a/b/file", buffer, sizeof(buffer)) == 7 && memcmp(buffer, "content", 7) == 0);
    CHECK(tombolo_readlink(tree, "a/link", buffer, sizeof(buffer)) == 6 && memcmp(buffer, "b/file", 6) == 0);
    CHECK(tombolo_list(tree, "a", count_entry, &entries) == 0 && entries == 2);
    result = tombolo_stat_async(tree, "a/b/file", 0, told, (void *)&results[0]);
    CHECK(result == TOMBOLO_DONE || result == TOMBOLO_LATER);
    result = tombolo_stat_async(tree, "other", TOMBOLO_LSTAT, told, (void *)&results[1]);
    CHECK(result == TOMBOLO_LATER);
    for (waits = 0; waits < 1000 && (results[0] == 1 || results[1] == 1); waits++)
        usleep(10000);
    CHECK(results[0] == 0 && results[1] == -ENOENT);
    CHECK(tombolo_counts(tree, &counts) == 0 && counts.from_memory + counts.asked == 9);
    CHECK(tombolo_watermarks(tree, &watermarks) == -ENODATA && tombolo_wait(tree, TOMBOLO_ON_DISK, 0) == -ENODATA);
    tombolo_close(tree);
    puts("ok");
    return 0;
}
