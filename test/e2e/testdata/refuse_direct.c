/* refuse_direct PROGRAM ARG...: runs a program to which the kernel refuses O_DIRECT with EINVAL,
 * as some file systems do. A seccomp filter does it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIELD(f) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, f))
#define ARG(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)

int main(int argc, char **argv)
{
	/* Jump distances count the instructions skipped. */
	struct sock_filter code[] = {
		/* 0 */ FIELD(nr),
		/* 1 */ IS(SYS_openat2, 9, 0), /* its flags lie in memory, which a filter cannot see */
		/* 2 */ IS(SYS_open, 6, 0),
		/* 3 */ IS(SYS_openat, 3, 0),
		/* 4 */ IS(SYS_fcntl, 0, 8),
		/* 5 */ ARG(1),
		/* 6 */ IS(F_SETFL, 0, 6),
		/* 7 */ ARG(2), /* flags of openat and F_SETFL */
		/* 8 */ BPF_STMT(BPF_JMP | BPF_JA, 1),
		/* 9 */ ARG(1), /* flags of open */
		/* 10 */ HAS(O_DIRECT, 1, 2),
		/* 11 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
		/* 12 */ RETURN(SECCOMP_RET_ERRNO | EINVAL),
		/* 13 */ RETURN(SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof code / sizeof *code, code};

	if (argc < 2) {
		fprintf(stderr, "usage: refuse_direct PROGRAM ARG...\n");
		return 2;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("refuse_direct: seccomp");
		return 2;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
