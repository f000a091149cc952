/*
 * Three cures for User Mode Linux, loaded into linux.uml with LD_PRELOAD. Neither the kernel nor any server
 * that it talks to is changed.
 *
 * 1. ptrace: UML 6.1 keeps 2,696 bytes of each task's extended registers. A CPU with AMX has 11,008, and a host
 *    kernel refuses to set less than all of them: UML panics in put_fp_registers. So the rest is added.
 *
 * 2. ptrace: a process of the guest is a process of the host whose system calls UML catches. Were UML killed, they would
 *    run on, uncaught, with UML's rights. So the host kernel is asked to kill them with it.
 *
 * 3. sendmsg: UML's virtio driver describes one memory region in a VHOST_USER_SET_MEM_TABLE that has room for
 *    two: 72 bytes of payload where the protocol asks for 40. Strict servers (all that use the `vhost` crate)
 *    refuse the message. It is cut to what it says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Larger than the area of any CPU so far; the kernel says how much of it there really is. */
#define XSTATE_BYTES_MAX (64 * 1024)

/* What UML calls it; the C library has no name for it any more. */
#define OLD_SETOPTIONS 21

typedef long ptrace_fn(int request, pid_t pid, void *addr, void *data);

/*
 * UML's part reaches to the end of AVX-512 and the protection keys. What lies beyond is AMX, which a process may
 * use only after it asked the host kernel, and that no process in a guest can: so it is the same, initial, for all.
 */
static long set_xstate(ptrace_fn *next, pid_t pid, const struct iovec *part)
{
	static unsigned char area[XSTATE_BYTES_MAX];
	static size_t area_bytes;
	void *note = (void *)(uintptr_t)NT_X86_XSTATE;
	struct iovec whole = { .iov_base = area, .iov_len = sizeof(area) };

	if (!area_bytes) {
		if (next(PTRACE_GETREGSET, pid, note, &whole) != 0)
			return -1;
		area_bytes = whole.iov_len;
	}
	memcpy(area, part->iov_base, part->iov_len < area_bytes ? part->iov_len : area_bytes);
	whole.iov_len = area_bytes;
	return next(PTRACE_SETREGSET, pid, note, &whole);
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
	if (request == PTRACE_SETREGSET && (uintptr_t)addr == NT_X86_XSTATE)
		return set_xstate(next, pid, data);
	if (request == PTRACE_SETOPTIONS || (int)request == OLD_SETOPTIONS)
		data = (void *)((uintptr_t)data | PTRACE_O_EXITKILL);
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
