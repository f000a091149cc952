/*
 * libtombolo: paths of a tree that `tombolo serve DIR --shm SOCKET --host-watch` shares, for programs of the same host.
 *
 * What was told of a path is remembered, and believed without a request or a system call while the server's count of changes, which is read
 * in shared memory, says that nothing has changed that the answer hangs on. A change that another client has made, or a process of the
 * server's host where that is watched (--host-watch), is seen by the next call after it was answered or noticed. Without --host-watch nothing
 * is remembered, and each call asks.
 *
 * Results. Functions return 0, or a size where they say so, or a negative error number, as system calls do inside Linux (-ENOENT, ...); errno
 * is not set. A null pointer where one is needed is -EINVAL. -EIO may also be a fault of the library or of the link; -ESTALE, -ENOTCONN: the
 * server came back without what was asked for, or the session has ended.
 *
 * Paths. Bytes with a zero at the end, shorter than 4096 with it (-ENAMETOOLONG). They lead from the top of the tree, with or without a `/` in
 * front. Symbolic links are followed within the tree: an absolute target begins at the top, and the parent of the top is the top. At most 40
 * are followed (-ELOOP). An empty path is -ENOENT.
 *
 * Threads. Any number of threads may call any functions of one tree at once, but for tombolo_close. None holds a lock while it waits. Functions
 * are not for signal handlers.
 *
 * Waiting. A function whose answer is not in memory waits for the server, also while that is being restarted; a signal does not end the wait.
 * tombolo_stat_async does not wait.
 *
 * fork(2). A child must not use its parent's trees, not even close them: it opens its own. It may exec, or end by _exit(2).
 *
 * In the process. A tree has four threads of its own, which sleep while nothing is asked. Descriptors are closed on exec. The first tree puts a
 * handler of SIGBUS in place, for shared memory that is cut short; it passes all other SIGBUS on to the handler that was there before. A
 * program that sets its own later is to do so too.
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
    uint32_t nlink;   /* number of names */
    uint32_t uid;     /* owner, by the server's numbers */
    uint32_t gid;     /* group, by the server's numbers */
    uint64_t ino;     /* inode number, unique within dev */
    uint64_t size;    /* bytes */
    uint64_t blocks;  /* space used, in units of 512 bytes */
    uint64_t dev;     /* which file system of the tree: differs between those that are mounted in it; no st_dev of this host */
    uint64_t generation; /* tells a reused inode number from its former bearer; 0 where there is no such thing */
    uint32_t blksize; /* preferred size of transfers, in bytes */
    uint32_t rdev_major; /* of device nodes: which device */
    uint32_t rdev_minor;
    uint32_t mask;    /* TOMBOLO_HAS_...: which fields that may be missing are there */
    struct tombolo_time atime; /* last read */
    struct tombolo_time mtime; /* last change of the data */
    struct tombolo_time ctime; /* last change of the data or the attributes */
    struct tombolo_time btime; /* birth; 0 where the file system does not keep it */
    uint64_t reserved[3];      /* 0 */
};

/* tombolo_stat.mask: btime is known. */
#define TOMBOLO_HAS_BTIME 1u

/* How questions were answered. */
struct tombolo_counts {
    uint64_t from_memory; /* by what is remembered, at once */
    uint64_t asked;       /* not so */
    uint64_t requests;    /* sent for those; reading a file and listing a directory count as one */
};

/*
 * Opens the tree that the server at the UNIX socket `socket` has under the name `export_name` ("" or "/" is the only one, or all), on behalf
 * of the user that the calling thread runs as, as far as the server's policy allows it. Puts it in *tree, or NULL with an error. Waits for
 * the server, ten seconds at most for each step.
 *
 * -ECONNREFUSED: no server listens there; -ENOTSOCK: it is another kind of socket, or none; -ENOENT: the server has no such export; -EACCES: it
 * does not allow this user; -EUSERS: it has too many clients; -EPROTO: it is of another version, or answers nonsense; -ETIMEDOUT, -ECONNRESET: it
 * does not answer, or ended; -EMFILE, -ENFILE, -ENOMEM, -EAGAIN: no descriptor, memory or thread.
 */
int tombolo_open(const char *socket, const char *export_name, struct tombolo_tree **tree);

/*
 * Ends the session and frees the tree; NULL is nothing. No other function may be under way with it, nor be called later. A callback of
 * tombolo_stat_async that still waits is called with -ECANCELED before this returns. In such a callback itself a tree may be closed too; those
 * that wait are then called a moment later.
 */
void tombolo_close(struct tombolo_tree *tree);

/*
 * The attributes of what `path` leads to, in *out, which is left alone with an error. tombolo_lstat does not follow a symbolic link at the end,
 * unless there is a `/` behind it. Neither allocates where the answer is in memory.
 *
 * -ENOENT, -ENOTDIR, -EACCES (a directory on the way may not be searched), -ELOOP, -ENAMETOOLONG.
 */
int tombolo_stat(struct tombolo_tree *tree, const char *path, struct tombolo_stat *out);
int tombolo_lstat(struct tombolo_tree *tree, const char *path, struct tombolo_stat *out);

/*
 * Whether the tree's user may access what `path` leads to in all the ways that `mode` says: F_OK (it is there), or R_OK, W_OK and X_OK of
 * unistd.h in any combination. As faccessat(2) with AT_EACCESS: the user is the one that has opened the tree. A refusal is not remembered.
 *
 * -EACCES or -EROFS: not so; -EINVAL: other bits; otherwise as tombolo_stat.
 */
int tombolo_access(struct tombolo_tree *tree, const char *path, int mode);

/* Largest file that tombolo_read gives, in bytes. */
#define TOMBOLO_READ_MAX 262144

/*
 * The bytes of the file that `path` leads to, from its beginning, as many as `size` allows. Returns the size of the whole file, so more than
 * `size` if the buffer was too small; `buffer` may be NULL if `size` is 0.
 *
 * -EFBIG: it has more than TOMBOLO_READ_MAX bytes; -EISDIR; -EINVAL: neither file nor directory; -EACCES: it may not be read; otherwise as tombolo_stat.
 */
ssize_t tombolo_read(struct tombolo_tree *tree, const char *path, void *buffer, size_t size);

/*
 * The target of the symbolic link at `path`, as many bytes as `size` allows, without a zero at the end. Returns how many, as readlink(2).
 *
 * -EINVAL: it is no link, or `size` is 0; otherwise as tombolo_stat.
 */
ssize_t tombolo_readlink(struct tombolo_tree *tree, const char *path, char *buffer, size_t size);

/*
 * Calls `each` for each entry of the directory that `path` leads to, but for `.` and `..`, in the directory's order, on this thread: with
 * `context`, the entry's name (which is good until `each` returns), its type (DT_REG, DT_DIR, ... of dirent.h; DT_UNKNOWN, 0, where the
 * directory does not say) and its inode number. What `each` returns ends the listing and is returned, unless it is 0. `each` may call functions
 * of the tree; it must return: no longjmp, no exceptions.
 *
 * -ENOTDIR; -E2BIG: the entries take more than 64 MiB; -EACCES: it may not be read; otherwise as tombolo_stat.
 */
int tombolo_list(struct tombolo_tree *tree, const char *path,
                 int (*each)(void *context, const char *name, unsigned int type, uint64_t inode), void *context);

/* tombolo_stat_async: as tombolo_lstat. */
#define TOMBOLO_LSTAT 1u

/* What tombolo_stat_async returns. */
#define TOMBOLO_LATER 0
#define TOMBOLO_DONE 1

/*
 * As tombolo_stat, or tombolo_lstat where `flags` is TOMBOLO_LSTAT and not 0, but calls `callback` with `context` and what came of it: 0 and the
 * attributes (which are good until it returns), or a negative error number and NULL.
 *
 * Returns TOMBOLO_DONE if `callback` has been called already, on this thread, as the answer was in memory; TOMBOLO_LATER if it will be called once
 * later, or has been by now, on a thread of the library: one for all of the tree, so that one callback delays the others. With -EINVAL, -ENOENT
 * (an empty path) or -ENAMETOOLONG returned it is not called at all. It may call functions of the tree; it must return: no longjmp, no exceptions.
 */
int tombolo_stat_async(struct tombolo_tree *tree, const char *path, unsigned int flags,
                       void (*callback)(void *context, int result, const struct tombolo_stat *stat), void *context);

/* How far changes have come that a proxy keeps back (--mode write-back), those of all its clients. They are counted from 1, over its restarts. */
struct tombolo_watermarks {
    uint64_t change;    /* the latest change */
    uint64_t on_disk;   /* the proxy's local disk has all up to this one */
    uint64_t at_origin; /* the origin has all up to this one, but for what it refuses */
};

/*
 * How far changes have come now, in *out, which is left alone with an error. Asks the server. On a mount, getxattr(2) of the root has the same
 * as text: user.tombolo.watermarks.
 *
 * -ENODATA: the tree's server keeps no changes back.
 */
int tombolo_watermarks(struct tombolo_tree *tree, struct tombolo_watermarks *out);

/* tombolo_wait: for which of the two. */
#define TOMBOLO_ON_DISK 1u
#define TOMBOLO_AT_ORIGIN 2u

/*
 * Waits until `place`, TOMBOLO_ON_DISK or TOMBOLO_AT_ORIGIN, has all that was changed before this call; for `timeout_ms` milliseconds at most,
 * unless that is negative. It hurries nothing: the proxy does both within seconds, but for an origin that is away.
 *
 * -ETIMEDOUT: it does not have all yet; -EPERM: the origin has all but attributes that it refuses; -EINVAL: another place;
 * -ENODATA: the tree's server keeps no changes back.
 */
int tombolo_wait(struct tombolo_tree *tree, unsigned int place, int timeout_ms);

/* How questions were answered so far, in *counts. Of several threads, those that count meanwhile may be missing. */
int tombolo_counts(struct tombolo_tree *tree, struct tombolo_counts *counts);

/* The library's version, such as "0.1.0". The interface of all versions with the same soname (libtombolo.so.0) is the same, or larger. */
const char *tombolo_version(void);

#ifdef __cplusplus
}
#endif

#endif
