/*
 * Checks files as `git status` does: lstat of each tracked path, repeatedly.
 *
 *   cc -O2 git-status-walk.c -o git-status-walk $(pkg-config --cflags --libs tombolo)
 *   git -C DIR ls-files -z | ./git-status-walk [-n PASSES] [-d DIR] SOCKET [EXPORT]
 *
 * The server is `tombolo serve DIR --shm SOCKET --host-watch`. Each pass prints the number of paths changed since the previous one and
 * its duration; -d DIR compares with lstat(2) of the same paths below DIR.
 */
#define _POSIX_C_SOURCE 200809L
#include <tombolo.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Attributes in git's index, which reveal changes of a file. */
struct snapshot {
    int result; /* 0 or a negative error number */
    int64_t mtime_sec, ctime_sec;
    uint32_t mtime_nsec, ctime_nsec;
    uint64_t ino, size;
    uint32_t mode, uid, gid;
};

static void fail(const char *what, int result)
{
    fprintf(stderr, "git-status-walk: %s: %s\n", what, strerror(-result));
    exit(1);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static struct snapshot look(struct tombolo_tree *tree, const char *path)
{
    struct tombolo_stat stat;
    struct snapshot seen;
    memset(&seen, 0, sizeof(seen));
    seen.result = tombolo_lstat(tree, path, &stat);
    if (seen.result == 0) {
        seen.mtime_sec = stat.mtime.sec;
        seen.mtime_nsec = stat.mtime.nsec;
        seen.ctime_sec = stat.ctime.sec;
        seen.ctime_nsec = stat.ctime.nsec;
        seen.ino = stat.ino;
        seen.size = stat.size;
        seen.mode = stat.mode;
        seen.uid = stat.uid;
        seen.gid = stat.gid;
    }
    return seen;
}

static struct snapshot look_here(int dir, const char *path)
{
    struct stat stat;
    struct snapshot seen;
    memset(&seen, 0, sizeof(seen));
    if (fstatat(dir, path, &stat, AT_SYMLINK_NOFOLLOW) != 0) {
        seen.result = -errno;
    } else {
        seen.mtime_sec = stat.st_mtim.tv_sec;
        seen.mtime_nsec = (uint32_t)stat.st_mtim.tv_nsec;
        seen.ctime_sec = stat.st_ctim.tv_sec;
        seen.ctime_nsec = (uint32_t)stat.st_ctim.tv_nsec;
        seen.ino = stat.st_ino;
        seen.size = (uint64_t)stat.st_size;
        seen.mode = stat.st_mode;
        seen.uid = stat.st_uid;
        seen.gid = stat.st_gid;
    }
    return seen;
}

/* Reads zero-terminated paths from the standard input. */
static char **read_paths(size_t *count)
{
    char **paths = NULL, *path = NULL;
    size_t room = 0, size = 0;
    *count = 0;
    while (getdelim(&path, &size, '\0', stdin) > 0) {
        if (*count == room) {
            room = room ? 2 * room : 1024;
            paths = (char **)realloc(paths, room * sizeof(*paths));
            if (!paths)
                fail("the paths", -ENOMEM);
        }
        paths[(*count)++] = path;
        path = NULL;
        size = 0;
    }
    free(path);
    return paths;
}

int main(int argc, char **argv)
{
    const char *directory = NULL;
    long passes = 5, pass;
    int option, result, dir = -1;
    while ((option = getopt(argc, argv, "n:d:")) != -1) {
        if (option == 'n')
            passes = atol(optarg);
        else if (option == 'd')
            directory = optarg;
        else
            return 2;
    }
    if (argc - optind < 1 || argc - optind > 2) {
        fprintf(stderr, "usage: git -C DIR ls-files -z | %s [-n PASSES] [-d DIR] SOCKET [EXPORT]\n", argv[0]);
        return 2;
    }
    if (directory && (dir = open(directory, O_RDONLY | O_DIRECTORY)) < 0)
        fail(directory, -errno);

    struct tombolo_tree *tree;
    result = tombolo_open(argv[optind], argc - optind == 2 ? argv[optind + 1] : "", &tree);
    if (result < 0)
        fail(argv[optind], result);

    size_t count, at;
    char **paths = read_paths(&count);
    struct snapshot *seen = (struct snapshot *)calloc(count ? count : 1, sizeof(*seen));
    if (!seen)
        fail("the snapshot", -ENOMEM);

    for (pass = 1; pass <= passes; pass++) {
        struct tombolo_counts before, after;
        size_t missing = 0, changed = 0, differ = 0;
        double begun, took, took_here = 0;

        tombolo_counts(tree, &before);
        begun = now_us();
        for (at = 0; at < count; at++) {
            struct snapshot found = look(tree, paths[at]);
            missing += found.result == -ENOENT;
            changed += pass > 1 && memcmp(&found, &seen[at], sizeof(found)) != 0;
            seen[at] = found;
        }
        took = now_us() - begun;
        tombolo_counts(tree, &after);
        printf("pass %ld: %zu paths, %zu missing, %zu changed; %.0f us, %.0f ns a path; %llu from memory, %llu requests", pass, count,
               missing, changed, took, count ? took * 1e3 / count : 0, (unsigned long long)(after.from_memory - before.from_memory),
               (unsigned long long)(after.requests - before.requests));
        if (dir >= 0) {
            begun = now_us();
            for (at = 0; at < count; at++) {
                struct snapshot here = look_here(dir, paths[at]);
                differ += memcmp(&here, &seen[at], sizeof(here)) != 0;
            }
            took_here = now_us() - begun;
            printf("; lstat(2): %.0f us, %.0f ns a path, %.1f times; differ from lstat(2): %zu", took_here,
                   count ? took_here * 1e3 / count : 0, took > 0 ? took_here / took : 0, differ);
        }
        putchar('\n');
        fflush(stdout);
    }

    for (at = 0; at < count; at++)
        free(paths[at]);
    free(paths);
    free(seen);
    tombolo_close(tree);
    return 0;
}
