/*
 * Looks at the shared memory of a guest and its host, or of two guests, from either side. It is linked statically, so
 * that it runs in any guest.
 *
 *   shm_probe FILE SIZE put OFFSET TEXT    writes TEXT and a zero
 *   shm_probe FILE SIZE get OFFSET         prints the text that is there
 *   shm_probe FILE SIZE fill SEED          writes all of it but the first page: each word says where it is, and SEED
 *   shm_probe FILE SIZE check SEED         says whether all of that is so; the first word that is not goes to standard error
 *   shm_probe FILE SIZE ask OFFSET COUNT   COUNT times: counts one up in a cache line, waits for the same in the next line
 *   shm_probe FILE SIZE answer OFFSET COUNT   the other side of it
 *
 * FILE is a file, /dev/mmapper, or the resource of a PCI device. SIZE is in bytes: a device does not tell its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE_BYTES 64
#define PAGE_WORDS (4096 / sizeof(uint64_t))

static void die(const char *doing)
{
    fprintf(stderr, "shm_probe: %s: %s\n", doing, strerror(errno));
    exit(1);
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    if (end == text || *end != 0) {
        fprintf(stderr, "shm_probe: %s is not a number\n", text);
        exit(2);
    }
    return value;
}

static uint64_t word(uint64_t index, uint64_t seed)
{
    return (index ^ seed << 40) * 0x9e3779b97f4a7c15u;
}

static int check(const volatile uint64_t *words, uint64_t count, uint64_t seed)
{
    for (uint64_t i = PAGE_WORDS; i < count; i++) {
        if (words[i] != word(i, seed)) {
            fprintf(stderr, "shm_probe: byte %llu is not what was written\n", (unsigned long long)i * 8);
            return 1;
        }
    }
    return 0;
}

/* Both sides may share one processor, so the side that waits lets the other go on. */
static void await(_Atomic uint32_t *from, uint32_t value)
{
    while (atomic_load_explicit(from, memory_order_acquire) != value)
        sched_yield();
}

static void play(unsigned char *at, uint64_t count, int asks)
{
    _Atomic uint32_t *mine = (_Atomic uint32_t *)(at + (asks ? 0 : LINE_BYTES));
    _Atomic uint32_t *theirs = (_Atomic uint32_t *)(at + (asks ? LINE_BYTES : 0));
    for (uint32_t turn = 1; turn <= count; turn++) {
        if (!asks)
            await(theirs, turn);
        atomic_store_explicit(mine, turn, memory_order_release);
        if (asks)
            await(theirs, turn);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: shm_probe FILE SIZE put|get|fill|check|ask|answer NUMBER [WHAT]\n");
        return 2;
    }
    uint64_t size = number(argv[2]), argument = number(argv[4]);
    const char *what = argv[3], *more = argc > 5 ? argv[5] : "";
    int file = open(argv[1], O_RDWR | O_SYNC);
    if (file < 0)
        die(argv[1]);
    unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    if (strcmp(what, "fill") == 0) {
        for (uint64_t i = PAGE_WORDS; i < size / 8; i++)
            ((volatile uint64_t *)memory)[i] = word(i, argument);
        return 0;
    }
    if (strcmp(what, "check") == 0)
        return check((const volatile uint64_t *)memory, size / 8, argument);
    if (argument > size || size - argument < 2 * LINE_BYTES || size - argument <= strlen(more)) {
        fprintf(stderr, "shm_probe: %s is not in it\n", argv[4]);
        return 2;
    }
    if (strcmp(what, "put") == 0)
        memcpy(memory + argument, more, strlen(more) + 1);
    else if (strcmp(what, "get") == 0)
        printf("%.*s\n", (int)(size - argument), (char *)memory + argument);
    else if (strcmp(what, "ask") == 0 || strcmp(what, "answer") == 0)
        play(memory + argument, number(more), strcmp(what, "ask") == 0);
    else
        return 2;
    return 0;
}
