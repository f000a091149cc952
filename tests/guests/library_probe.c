/*
 * Follows a changing tree through libtombolo (client/c/include/tombolo.h).
 *
 *   library_probe PLACE EXPORT ROUNDS [LOCAL]
 *
 * In round I it waits until the file `content` has I bytes and prints "I content", until `name` exists and prints "I name", and
 * until it is gone and prints "I removal". After each it waits until the same questions are answered without a request. At
 * last it prints the time of a stat from memory, and of one of the file LOCAL.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <tombolo.h>

enum { PATIENCE_S = 120, STATS = 200000 };

static struct tombolo_tree *tree;

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static long long size_of(const char *path)
{
    struct tombolo_stat stat;
    int error = tombolo_stat(tree, path, &stat);
    return error ? error : (long long)stat.size;
}

static unsigned long long asked(void)
{
    struct tombolo_counts counts;
    return tombolo_counts(tree, &counts) ? 0 : counts.asked;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Waits for `size`, or an error number, and then for answers that need no request. */
static void await(long round, const char *what, const char *path, long long size)
{
    double end = seconds() + PATIENCE_S;
    while (size_of(path) != size) {
        if (seconds() > end) {
            printf("round %ld: %s is %lld, not %lld\n", round, path, size_of(path), size);
            exit(1);
        }
        pause_ms(2);
    }
    printf("%ld %s\n", round, what);
    for (;;) {
        unsigned long long before = asked();
        size_of("content"), size_of("name"), size_of("dir/below");
        if (asked() == before)
            break;
        if (seconds() > end) {
            printf("round %ld: every question is asked after %s\n", round, what);
            exit(1);
        }
        pause_ms(2);
    }
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int error = tombolo_open(words[1], words[2], &tree);
    if (error) {
        printf("%s: %s\n", words[1], strerror(-error));
        return 1;
    }
    for (long round = 1; round <= atol(words[3]); round++) {
        await(round, "content", "content", round);
        await(round, "name", "name", 0);
        await(round, "removal", "name", -ENOENT);
    }
    unsigned long long before = asked();
    double began = seconds();
    for (int i = 0; i < STATS; i++)
        size_of("content");
    double took = seconds() - began;
    printf("quiet: %llu requests for %d questions, %.0f ns each\n", asked() - before, STATS, took / STATS * 1e9);
    if (count > 4) {
        struct stat stat_;
        began = seconds();
        for (int i = 0; i < STATS; i++)
            stat(words[4], &stat_);
        double local = seconds() - began;
        printf("stat of %s: %.0f ns, %.1f times as long\n", words[4], local / STATS * 1e9, local / took);
    }
    tombolo_close(tree);
    return 0;
}
