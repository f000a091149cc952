/*
 * libtombolo: paths of a tree that `tombolo serve DIR --shm SOCKET --host-watch` shares, for programs on the same
 * host; with `--shm-file FILE` instead, for programs in a guest that has the file's memory.
 *
 * Answers about paths are cached, and used without a request or a system call while the server's change counts, read
 * in shared memory, show that nothing has changed that the answer depends on. A change by another client, or by a
 * process of the server's host where that is watched (--host-watch), is visible to the next call after it was
 * answered or noticed. Without --host-watch nothing is cached, and each call sends a request.
 *
 * Results. Functions return 0, a size where documented, or a negative error number, like system calls inside Linux
 * (-ENOENT, ...); errno is not set. A null pointer where one is required is -EINVAL. -EIO may also be a fault of the
 * library or of the link; -ESTALE, -ENOTCONN: the server was restarted without the requested object, or the session
 * has ended.
 *
 * Paths. Zero-terminated bytes, shorter than 4096 including the zero (-ENAMETOOLONG). They start at the top of the
 * tree, with or without a leading `/`. Symbolic links are followed within the tree: an absolute target begins at the
 * top, and the parent of the top is the top. At most 40 are followed (-ELOOP). An empty path is -ENOENT.
 *
 * Threads. Any number of threads may call any functions of one tree at once, except tombolo_close. No lock is held
 * during a wait. Functions must not be called in signal handlers.
 *
 * Waiting. A function whose answer is not cached waits for the server, even while it is being restarted; a signal
 * does not end the wait. tombolo_stat_async does not wait.
 *
 * fork(2). A child must not use its parent's trees, not even close them: it opens its own. It may exec, or end by
 * _exit(2).
 *
 * In the process. A tree has four threads, which sleep while idle. Descriptors are closed on exec. The first tree
 * installs a handler of SIGBUS, for truncated shared memory; it forwards any other SIGBUS to the handler that was
 * installed before. A program that installs its own handler later must do the same.
 */
#ifndef TOMBOLO_H
#define TOMBOLO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open tree. */
struct tombolo_tree;

/* A point in time. */
struct tombolo_time {
    int64_t sec;       /* seconds since 1970-01-01 UTC; negative before */
    uint32_t nsec;     /* nanoseconds, always added, below 1000000000 */
    uint32_t reserved; /* 0 */
};

/* Attributes, as statx(2) has them. There are no attribute flags. */
struct tombolo_stat {
    uint32_t mode;    /* type and permission bits, as st_mode */
    uint32_t nlink;   /* number of hard links */
    uint32_t uid;     /* owner, by the server's numbers */
    uint32_t gid;     /* group, by the server's numbers */
    uint64_t ino;     /* inode number, unique within dev */
    uint64_t size;    /* size in bytes */
    uint64_t blocks;  /* space used, in units of 512 bytes */
    uint64_t dev;     /* file system within the tree: differs between those mounted in it; not an st_dev of this host */
    uint64_t generation; /* distinguishes successive files with one inode number; 0 where unsupported */
    uint32_t blksize; /* preferred size of transfers, in bytes */
    uint32_t rdev_major; /* device number of a device node */
    uint32_t rdev_minor;
    uint32_t mask;    /* presence of optional fields: TOMBOLO_HAS_... */
    struct tombolo_time atime; /* last read */
    struct tombolo_time mtime; /* last change of the data */
    struct tombolo_time ctime; /* last change of the data or the attributes */
    struct tombolo_time btime; /* creation; 0 where the file system does not record it */
    uint64_t reserved[3];      /* 0 */
};

/* tombolo_stat.mask: btime is present. */
#define TOMBOLO_HAS_BTIME 1u

/* Counts of how queries were answered. */
struct tombolo_counts {
    uint64_t from_memory; /* from the cache, at once */
    uint64_t asked;       /* others, mostly by the server */
    uint64_t requests;    /* sent for the queries in `asked`; reading a file and listing a directory count as one */
};

/*
 * Opens the export `export_name` ("" or "/": the only one, or all) of the server at `place`, as the user that the
 * calling thread runs as, subject to the server's policy. Stores it in *tree, or NULL on error. Waits for the server,
 * at most ten seconds for each step.
 *
 * `place` is the path of a UNIX socket, or memory that the server's host shares with this guest: "shm+mmapper:" (User
 * Mode Linux), "shm+pci:" or "shm+pci:BDF" (ivshmem), "shm+file:PATH" (the file itself). Memory carries one tree or
 * mount at a time, only root can open the devices, and any process that can write it may falsify answers. A bell of the
 * guest (/dev/ttyS1 of User Mode Linux, the virtio port tombolo.bell) is used if it exists. If the server is killed,
 * cached answers are used for up to five seconds more (six with a bell).
 *
 * -EINVAL: `place` begins with "shm+", and is none of these; -ECONNREFUSED: no server listens there; -ENOTSOCK: another
 * kind of socket, or not a socket; -ENOENT: no such export, file, or /dev/mmapper; -ENODEV: no such PCI device;
 * -ENOTUNIQ: several, and none is named; -EBUSY: the memory has another client, or no server any more; -EACCES: the
 * server, or the file or device, does not permit this user; -EUSERS: the server has too many clients; -EPROTO: another
 * version, a malformed answer, or memory of an impossible size; -ETIMEDOUT, -ECONNRESET: the server does not answer, or
 * ended; -EMFILE, -ENFILE, -ENOMEM, -EAGAIN: no descriptor, memory or thread.
 */
int tombolo_open(const char *place, const char *export_name, struct tombolo_tree **tree);

/*
 * Ends the session and frees the tree; NULL is ignored. No other function may be running with it, or be called later.
 * Pending callbacks of tombolo_stat_async are called with -ECANCELED before this returns. A callback may close a tree
 * too; other pending callbacks are then called shortly afterwards.
 */
void tombolo_close(struct tombolo_tree *tree);

/*
 * Return the attributes of what `path` leads to in *out, which is unchanged on error. tombolo_lstat does not follow a
 * symbolic link at the end, unless a `/` follows it. Neither allocates if the answer is cached.
 *
 * -ENOENT, -ENOTDIR, -EACCES (a directory on the way may not be searched), -ELOOP, -ENAMETOOLONG.
 */
int tombolo_stat(struct tombolo_tree *tree, const char *path, struct tombolo_stat *out);
int tombolo_lstat(struct tombolo_tree *tree, const char *path, struct tombolo_stat *out);

/*
 * Checks that the tree's user has the access `mode` to what `path` leads to: F_OK (it exists), or any combination of
 * R_OK, W_OK and X_OK of unistd.h. Like faccessat(2) with AT_EACCESS: for the user who opened the tree. A refusal is
 * not cached.
 *
 * -EACCES or -EROFS: refused; -EINVAL: other bits; otherwise as tombolo_stat.
 */
int tombolo_access(struct tombolo_tree *tree, const char *path, int mode);

/* Maximum size of a file for tombolo_read, in bytes. */
#define TOMBOLO_READ_MAX 262144

/*
 * Reads the file that `path` leads to from its beginning, at most `size` bytes. Returns the size of the whole file,
 * so more than `size` if the buffer was too small; `buffer` may be NULL if `size` is 0.
 *
 * -EFBIG: it has more than TOMBOLO_READ_MAX bytes; -EISDIR; -EINVAL: neither file nor directory; -EACCES: it may not
 * be read; otherwise as tombolo_stat.
 */
ssize_t tombolo_read(struct tombolo_tree *tree, const char *path, void *buffer, size_t size);

/*
 * Reads the target of the symbolic link at `path`, at most `size` bytes, without a terminating zero. Returns the
 * number of bytes, like readlink(2).
 *
 * -EINVAL: not a link, or `size` is 0; otherwise as tombolo_stat.
 */
ssize_t tombolo_readlink(struct tombolo_tree *tree, const char *path, char *buffer, size_t size);

/*
 * Calls `each` for each entry of the directory that `path` leads to, except `.` and `..`, in the directory's order,
 * on this thread: with `context`, the entry's name (valid until `each` returns), its type (DT_REG, DT_DIR, ... of
 * dirent.h; DT_UNKNOWN, 0, where the directory does not report it) and its inode number. A result of `each` other
 * than 0 ends the listing and is returned. `each` may call functions of the tree; it must return: no longjmp, no
 * exceptions.
 *
 * -ENOTDIR; -E2BIG: the entries take more than 64 MiB; -EACCES: it may not be read; otherwise as tombolo_stat.
 */
int tombolo_list(struct tombolo_tree *tree, const char *path,
                 int (*each)(void *context, const char *name, unsigned int type, uint64_t inode), void *context);

/* Flag of tombolo_stat_async: do as tombolo_lstat. */
#define TOMBOLO_LSTAT 1u

/* Results of tombolo_stat_async. */
#define TOMBOLO_LATER 0
#define TOMBOLO_DONE 1

/*
 * Works like tombolo_stat, or tombolo_lstat if `flags` is TOMBOLO_LSTAT and not 0, but calls `callback` with
 * `context` and the result: 0 and the attributes (valid until it returns), or a negative error number and NULL.
 *
 * Returns TOMBOLO_DONE if `callback` was called already, on this thread, as the answer was cached; TOMBOLO_LATER if
 * it will be called once later, or has been by now, on a thread of the library: one per tree, so that one callback
 * delays the others. If it returns -EINVAL, -ENOENT (an empty path) or -ENAMETOOLONG, `callback` is not called at
 * all. `callback` may call functions of the tree; it must return: no longjmp, no exceptions.
 */
int tombolo_stat_async(struct tombolo_tree *tree, const char *path, unsigned int flags,
                       void (*callback)(void *context, int result, const struct tombolo_stat *stat), void *context);

/* Progress of the changes of all clients that a proxy defers (--mode write-back). They are counted from 1, across its restarts. */
struct tombolo_watermarks {
    uint64_t change;    /* the latest change */
    uint64_t on_disk;   /* the latest change on the proxy's local disk */
    uint64_t at_origin; /* the origin has all up to this one, except attributes that it refused */
};

/*
 * Returns the present progress of changes in *out, which is unchanged on error. Sends a request. On a mount,
 * getxattr(2) of the root returns the same as text: user.tombolo.watermarks.
 *
 * -ENODATA: the tree's server does not defer changes.
 */
int tombolo_watermarks(struct tombolo_tree *tree, struct tombolo_watermarks *out);

/* Places of tombolo_wait. */
#define TOMBOLO_ON_DISK 1u
#define TOMBOLO_AT_ORIGIN 2u

/*
 * Waits until `place`, TOMBOLO_ON_DISK or TOMBOLO_AT_ORIGIN, has everything that was changed before this call; at
 * most `timeout_ms` milliseconds, unless that is negative. The call does not speed anything up: the proxy stores and
 * sends changes within seconds, unless the origin is unreachable.
 *
 * -ETIMEDOUT: some changes are still missing; -EPERM: the origin has everything except what it refuses;
 * -EINVAL: another place; -ENODATA: the tree's server does not defer changes.
 */
int tombolo_wait(struct tombolo_tree *tree, unsigned int place, int timeout_ms);

/* Returns in *counts how queries were answered so far. Counts of concurrent calls may be missing. */
int tombolo_counts(struct tombolo_tree *tree, struct tombolo_counts *counts);

/* Returns the library's version, such as "0.1.0". Versions with the same soname (libtombolo.so.0) only add to the interface. */
const char *tombolo_version(void);

#ifdef __cplusplus
}
#endif

#endif
