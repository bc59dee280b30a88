// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func vforkSyscall(trap, a1, a2 uintptr) (r1, errno uintptr)
//
// The child returns first, and its calls overwrite what is above the stack pointer of the caller: the address of return is kept
// in a register until both have it.
TEXT ·vforkSyscall(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$0, R9
	MOVQ	trap+0(FP), AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	MOVQ	$-1, r1+24(FP)
	NEGQ	AX
	MOVQ	AX, errno+32(FP)
	RET
ok:
	MOVQ	AX, r1+24(FP)
	MOVQ	$0, errno+32(FP)
	RET

// func cloneWaiting(args, size uintptr) (pid, errno uintptr)
//
// The child waits until it is killed. It has the memory and the stack of its parent, and touches neither.
TEXT ·cloneWaiting(SB),NOSPLIT,$0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$0, R9
	MOVQ	$435, AX	// clone3
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JLS	cloned
	MOVQ	$-1, pid+16(FP)
	NEGQ	AX
	MOVQ	AX, errno+24(FP)
	RET
cloned:
	CMPQ	AX, $0
	JEQ	wait
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET
wait:
	MOVQ	$0, DI
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$271, AX	// ppoll of nothing, without an end
	SYSCALL
	JMP	wait
