/*
 * Drives an NFS version 3 server through libnfs's raw calls, as told on standard input; `tombolo-bench nfs` uses it.
 *
 *   libnfs-driver ADDRESS NFSPORT MOUNTPORT EXPORT FILE
 *
 * A line `getattr OUTSTANDING COUNT`, `read OUTSTANDING COUNT BYTES FILEBYTES` or `write OUTSTANDING COUNT BYTES FILEBYTES`
 * (UNSTABLE, and one COMMIT at the end) is one run. `fetch` and `store` are the same to and from memory for the whole file, as a program
 * has it; the others use the same few bytes again and again. Its answer on standard output, in the machine's byte order: 64 bits of
 * nanoseconds that the run took, 32 bits N, and N times 32 bits of nanoseconds that one call took, where one was outstanding.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>

#define HANDLE_MAX 64

struct handle {
    char bytes[HANDLE_MAX];
    unsigned len;
};

enum kind { GETATTR, READ, WRITE };

struct run {
    struct rpc_context *rpc;
    struct handle *file;
    enum kind kind;
    uint64_t outstanding, count, bytes, file_bytes;
    uint64_t sent, done;
    uint64_t last_ns;
    uint32_t *laps;
    char *data;
    /* Of the whole file, or none. */
    char *memory;
};

/* One of the outstanding calls. */
struct request {
    struct run *run;
    uint64_t offset;
};

static int finished;
static struct handle answered;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "libnfs-driver: %s: %s\n", what, why ? why : "no reason given");
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void serve_until(struct rpc_context *rpc, const int *done)
{
    while (!*done) {
        struct pollfd poller = { .fd = rpc_get_fd(rpc), .events = (short)rpc_which_events(rpc) };
        if (poll(&poller, 1, 30000) <= 0)
            die("wait", "no answer after 30 s");
        if (rpc_service(rpc, poller.revents) < 0)
            die("serve", rpc_get_error(rpc));
    }
}

static void check(struct rpc_context *rpc, const char *what, int status, int nfs_status)
{
    if (status != RPC_STATUS_SUCCESS)
        die(what, rpc_get_error(rpc));
    if (nfs_status != NFS3_OK) {
        char number[32];
        snprintf(number, sizeof number, "status %d", nfs_status);
        die(what, number);
    }
}

static void on_connected(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    (void)data, (void)private_data;
    check(rpc, "connect", status, NFS3_OK);
    finished = 1;
}

static void on_mounted(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    struct mountres3 *reply = data;
    (void)private_data;
    check(rpc, "MNT", status, NFS3_OK);
    check(rpc, "MNT", status, (int)reply->fhs_status);
    answered.len = reply->mountres3_u.mountinfo.fhandle.fhandle3_len;
    memcpy(answered.bytes, reply->mountres3_u.mountinfo.fhandle.fhandle3_val, answered.len);
    finished = 1;
}

static void on_found(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    LOOKUP3res *reply = data;
    (void)private_data;
    check(rpc, "LOOKUP", status, NFS3_OK);
    check(rpc, "LOOKUP", status, reply->status);
    answered.len = reply->LOOKUP3res_u.resok.object.data.data_len;
    memcpy(answered.bytes, reply->LOOKUP3res_u.resok.object.data.data_val, answered.len);
    finished = 1;
}

static void wait_for(struct rpc_context *rpc, const char *what, int queued)
{
    if (queued != 0)
        die(what, rpc_get_error(rpc));
    finished = 0;
    serve_until(rpc, &finished);
}

static struct rpc_context *connect_to(const char *address, int port, int program, int version)
{
    struct rpc_context *rpc = rpc_init_context();
    if (!rpc)
        die("connect", "no memory");
    wait_for(rpc, "connect", rpc_connect_port_async(rpc, address, port, program, version, on_connected, NULL));
    return rpc;
}

static struct nfs_fh3 handle_of(struct handle *handle)
{
    struct nfs_fh3 fh = { { handle->len, handle->bytes } };
    return fh;
}

static void submit(struct request *request);

static void on_answer(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    struct request *request = private_data;
    struct run *run = request->run;
    check(rpc, "call", status, NFS3_OK);
    if (run->kind == GETATTR) {
        check(rpc, "GETATTR", status, ((GETATTR3res *)data)->status);
    } else if (run->kind == READ) {
        READ3res *reply = data;
        check(rpc, "READ", status, reply->status);
        if (reply->READ3res_u.resok.data.data_len != run->bytes)
            die("READ", "short");
        if (run->memory)
            memcpy(run->memory + request->offset, reply->READ3res_u.resok.data.data_val, run->bytes);
    } else {
        WRITE3res *reply = data;
        check(rpc, "WRITE", status, reply->status);
        if (reply->WRITE3res_u.resok.count != run->bytes)
            die("WRITE", "short");
    }
    if (run->outstanding == 1) {
        uint64_t now = now_ns();
        run->laps[run->done] = (uint32_t)(now - run->last_ns);
        run->last_ns = now;
    }
    run->done++;
    submit(request);
}

static void submit(struct request *request)
{
    struct run *run = request->run;
    struct nfs_fh3 fh = handle_of(run->file);
    uint64_t offset = run->file_bytes ? run->sent * run->bytes % run->file_bytes : 0;
    char *data = run->memory ? run->memory + offset : run->data;
    int queued;
    request->offset = offset;
    if (run->sent == run->count)
        return;
    if (run->kind == GETATTR) {
        GETATTR3args args = { fh };
        queued = rpc_nfs3_getattr_async(run->rpc, on_answer, &args, request);
    } else if (run->kind == READ) {
        READ3args args = { fh, offset, (count3)run->bytes };
        queued = rpc_nfs3_read_async(run->rpc, on_answer, &args, request);
    } else {
        WRITE3args args = { fh, offset, (count3)run->bytes, UNSTABLE, { (u_int)run->bytes, data } };
        queued = rpc_nfs3_write_async(run->rpc, on_answer, &args, request);
    }
    if (queued != 0)
        die("send", rpc_get_error(run->rpc));
    run->sent++;
}

static void on_committed(struct rpc_context *rpc, int status, void *data, void *private_data)
{
    (void)private_data;
    check(rpc, "COMMIT", status, NFS3_OK);
    check(rpc, "COMMIT", status, ((COMMIT3res *)data)->status);
    finished = 1;
}

static void do_run(struct run *run)
{
    uint64_t begun = now_ns(), i;
    uint32_t laps = run->outstanding == 1 ? (uint32_t)run->count : 0;
    struct request *requests = calloc(run->outstanding ? run->outstanding : 1, sizeof *requests);
    if (!requests)
        die("run", "no memory");
    run->last_ns = begun;
    for (i = 0; i < run->outstanding; i++) {
        requests[i].run = run;
        submit(&requests[i]);
    }
    while (run->done < run->count) {
        struct pollfd poller = { .fd = rpc_get_fd(run->rpc), .events = (short)rpc_which_events(run->rpc) };
        if (poll(&poller, 1, 30000) <= 0)
            die("wait", "no answer after 30 s");
        if (rpc_service(run->rpc, poller.revents) < 0)
            die("serve", rpc_get_error(run->rpc));
    }
    if (run->kind == WRITE) {
        COMMIT3args args = { handle_of(run->file), 0, 0 };
        wait_for(run->rpc, "COMMIT", rpc_nfs3_commit_async(run->rpc, on_committed, &args, NULL));
    }
    begun = now_ns() - begun;
    free(requests);
    if (fwrite(&begun, sizeof begun, 1, stdout) != 1 || fwrite(&laps, sizeof laps, 1, stdout) != 1 ||
        fwrite(run->laps, sizeof *run->laps, laps, stdout) != laps || fflush(stdout) != 0)
        die("answer", "standard output is closed");
}

/* Memory for a whole file, which stays from run to run. */
static char *file_memory(uint64_t bytes)
{
    static char *memory;
    static uint64_t have;
    if (have < bytes) {
        free(memory);
        memory = malloc(bytes);
        if (!memory)
            die("run", "no memory");
        memset(memory, 'm', bytes);
        have = bytes;
    }
    return memory;
}

int main(int argc, char **argv)
{
    struct rpc_context *mount, *rpc;
    struct handle root, file;
    char line[256], kind[16];

    if (argc != 6)
        die("arguments", "ADDRESS NFSPORT MOUNTPORT EXPORT FILE");
    mount = connect_to(argv[1], atoi(argv[3]), MOUNT_PROGRAM, MOUNT_V3);
    wait_for(mount, "MNT", rpc_mount3_mnt_async(mount, on_mounted, argv[4], NULL));
    root = answered;
    rpc_destroy_context(mount);

    rpc = connect_to(argv[1], atoi(argv[2]), NFS_PROGRAM, NFS_V3);
    LOOKUP3args lookup = { { handle_of(&root), argv[5] } };
    wait_for(rpc, "LOOKUP", rpc_nfs3_lookup_async(rpc, on_found, &lookup, NULL));
    file = answered;

    while (fgets(line, sizeof line, stdin)) {
        unsigned long outstanding = 0, count = 0, bytes = 0, file_bytes = 0;
        struct run run = { .rpc = rpc, .file = &file };
        if (sscanf(line, "%15s %lu %lu %lu %lu", kind, &outstanding, &count, &bytes, &file_bytes) < 3)
            die("command", line);
        if (strcmp(kind, "read") == 0 || strcmp(kind, "fetch") == 0)
            run.kind = READ;
        else if (strcmp(kind, "write") == 0 || strcmp(kind, "store") == 0)
            run.kind = WRITE;
        else
            run.kind = GETATTR;
        if (strcmp(kind, "fetch") == 0 || strcmp(kind, "store") == 0) {
            if (bytes == 0 || file_bytes % bytes != 0)
                die("command", line);
            run.memory = file_memory(file_bytes);
        }
        run.outstanding = outstanding;
        run.count = count;
        run.bytes = bytes;
        run.file_bytes = file_bytes;
        run.laps = calloc(count ? count : 1, sizeof *run.laps);
        run.data = calloc(bytes ? bytes : 1, 1);
        if (!run.laps || !run.data)
            die("run", "no memory");
        do_run(&run);
        free(run.laps);
        free(run.data);
    }
    rpc_destroy_context(rpc);
    return 0;
}
