/*
 * Two cures for User Mode Linux, loaded into linux.uml with LD_PRELOAD. Neither the kernel nor any server
 * that it talks to is changed.
 *
 * 1. ptrace: UML 6.1 keeps 832 bytes of each task's extended registers (x87, SSE, AVX). A CPU with AVX-512 or
 *    AMX has more (11,008 bytes with AMX), and a host kernel refuses to set less than all of it: UML panics in
 *    put_fp_registers. So the whole area is kept here, and UML is shown its beginning.
 *
 * 2. sendmsg: UML's virtio driver describes one memory region in a VHOST_USER_SET_MEM_TABLE that has room for
 *    two: 72 bytes of payload where the protocol asks for 40. Strict servers (all that use the `vhost` crate)
 *    refuse the message. It is cut to what it says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Larger than the area of any CPU so far; the kernel says how much of it there really is. */
#define XSTATE_BYTES_MAX (64 * 1024)
#define BUCKETS 1024

/*
 * UML saves the registers of each task at an address of its own, so the address names the area. All threads of
 * one guest process run in the same traced process: reading the rest from there instead would hand one thread's
 * upper vector registers to another, and glibc copies memory through those. Only UML's one kernel thread calls
 * ptrace, so there is no lock. UML uses the addresses of dead tasks again, so the table does not grow for ever.
 */
struct area {
	struct area *next;
	const void *owner;
	size_t size_bytes;
	unsigned char bytes[];
};

static struct area *areas[BUCKETS];

static struct area **bucket(const void *owner)
{
	return &areas[((uintptr_t)owner >> 6) % BUCKETS];
}

static struct area *find(const void *owner)
{
	struct area *area = *bucket(owner);

	while (area && area->owner != owner)
		area = area->next;
	return area;
}

static struct area *find_or_add(const void *owner, size_t size_bytes)
{
	struct area *area = find(owner);

	if (area)
		return area;
	area = calloc(1, sizeof(*area) + size_bytes);
	if (!area)
		abort();
	area->owner = owner;
	area->size_bytes = size_bytes;
	area->next = *bucket(owner);
	*bucket(owner) = area;
	return area;
}

typedef long ptrace_fn(int request, pid_t pid, void *addr, void *data);

static long transfer(ptrace_fn *next, int request, pid_t pid, struct area *area)
{
	struct iovec full = { .iov_base = area->bytes, .iov_len = area->size_bytes };

	return next(request, pid, (void *)(uintptr_t)NT_X86_XSTATE, &full);
}

static size_t full_size(ptrace_fn *next, pid_t pid)
{
	static unsigned char scratch[XSTATE_BYTES_MAX];
	static size_t size_bytes;
	struct iovec all = { .iov_base = scratch, .iov_len = sizeof(scratch) };

	if (!size_bytes && next(PTRACE_GETREGSET, pid, (void *)(uintptr_t)NT_X86_XSTATE, &all) == 0)
		size_bytes = all.iov_len;
	return size_bytes;
}

static long xstate(ptrace_fn *next, int request, pid_t pid, struct iovec *uml)
{
	size_t full_bytes = full_size(next, pid);
	struct area *area;
	long result;

	if (uml->iov_len >= full_bytes)
		return next(request, pid, (void *)(uintptr_t)NT_X86_XSTATE, uml);

	area = find(uml->iov_base);
	/* A new task begins with what its process has beyond UML's part. */
	if (request == PTRACE_GETREGSET || !area) {
		area = find_or_add(uml->iov_base, full_bytes);
		result = transfer(next, PTRACE_GETREGSET, pid, area);
		if (result != 0)
			return result;
	}
	if (request == PTRACE_GETREGSET) {
		memcpy(uml->iov_base, area->bytes, uml->iov_len);
		return 0;
	}
	memcpy(area->bytes, uml->iov_base, uml->iov_len);
	return transfer(next, PTRACE_SETREGSET, pid, area);
}

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_fn *next;
	va_list args;
	pid_t pid;
	void *addr, *data;

	va_start(args, request);
	pid = va_arg(args, pid_t);
	addr = va_arg(args, void *);
	data = va_arg(args, void *);
	va_end(args);

	if (!next)
		next = (ptrace_fn *)dlsym(RTLD_NEXT, "ptrace");
	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) && (uintptr_t)addr == NT_X86_XSTATE)
		return xstate(next, request, pid, data);
	return next(request, pid, addr, data);
}

/* The beginning of a vhost-user message: three words of header, then the payload of a memory table. */
struct mem_table_message {
	uint32_t request;
	uint32_t flags;
	uint32_t payload_bytes;
	uint32_t regions;
	uint32_t padding;
} __attribute__((packed));

#define VHOST_USER_SET_MEM_TABLE 5
#define HEADER_BYTES 12
#define TABLE_BYTES(regions) (8 + 32 * (regions))

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static ssize_t (*next)(int, const struct msghdr *, int);
	unsigned char copy[HEADER_BYTES + TABLE_BYTES(1)];
	struct iovec iov = { .iov_base = copy, .iov_len = sizeof(copy) };
	struct mem_table_message head;
	struct msghdr shorter;
	size_t sent_by_uml;
	ssize_t sent;

	if (!next)
		next = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
	if (message->msg_iovlen != 1 || message->msg_iov[0].iov_len != HEADER_BYTES + TABLE_BYTES(2))
		return next(fd, message, flags);

	sent_by_uml = message->msg_iov[0].iov_len;
	memcpy(copy, message->msg_iov[0].iov_base, sizeof(copy));
	memcpy(&head, copy, sizeof(head));
	if (head.request != VHOST_USER_SET_MEM_TABLE || head.payload_bytes != TABLE_BYTES(2) || head.regions != 1)
		return next(fd, message, flags);

	head.payload_bytes = TABLE_BYTES(1);
	memcpy(copy, &head, sizeof(head));
	shorter = *message;
	shorter.msg_iov = &iov;
	sent = next(fd, &shorter, flags);
	/* UML sends the rest of a message that was cut short, so it is told that all of it went. */
	return sent == (ssize_t)sizeof(copy) ? (ssize_t)sent_by_uml : sent;
}
