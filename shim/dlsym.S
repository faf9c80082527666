/*
 * dlsym.S: dlsym, in front of the loader's own.
 *
 * What dlsym answers for RTLD_NEXT and RTLD_DEFAULT depends on its caller, which it knows by the
 * return address. So whatever is not answered here (lookup.c decides) goes on with a jump, stack and
 * registers as they came.
 */
#if defined(__x86_64__)

	.text
	.globl dlsym
	.type dlsym, @function
	.hidden dlsym_choose
	.p2align 4
dlsym:
	.cfi_startproc
	endbr64
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	movq 24(%rsp), %rdx		/* the caller */
	call dlsym_choose		/* rax: the answer, or null; rdx: the loader's dlsym */
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	testq %rax, %rax
	jz 1f
	ret
1:	jmp *%rdx
	.cfi_endproc
	.size dlsym, . - dlsym

#elif defined(__aarch64__)

	.text
	.globl dlsym
	.type dlsym, %function
	.hidden dlsym_choose
	.p2align 4
dlsym:
	.cfi_startproc
	hint #34			/* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	mov x29, sp
	stp x0, x1, [sp, #16]
	mov x2, x30			/* the caller */
	bl dlsym_choose			/* x0: the answer, or null; x1: the loader's dlsym */
	mov x17, x0
	mov x16, x1
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbz x17, 1f
	mov x0, x17
	ret
1:	br x16
	.cfi_endproc
	.size dlsym, . - dlsym

#else
#error "dlsym is written for x86-64 and aarch64"
#endif

	.section .note.GNU-stack, "", %progbits
