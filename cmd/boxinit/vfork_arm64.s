// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func vforkSyscall(trap, a1, a2 uintptr) (r1, errno uintptr)
//
// The address of return is in a register, of which each of parent and child has its own.
TEXT ·vforkSyscall(SB),NOSPLIT,$0-40
	MOVD	a1+8(FP), R0
	MOVD	a2+16(FP), R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$0, R5
	MOVD	trap+0(FP), R8
	SVC
	CMN	$4095, R0
	BCC	ok
	MOVD	$-1, R4
	MOVD	R4, r1+24(FP)
	NEG	R0, R0
	MOVD	R0, errno+32(FP)
	RET
ok:
	MOVD	R0, r1+24(FP)
	MOVD	ZR, errno+32(FP)
	RET

// func cloneWaiting(args, size uintptr) (pid, errno uintptr)
//
// The child waits until it is killed. It has the memory and the stack of its parent, and touches neither.
TEXT ·cloneWaiting(SB),NOSPLIT,$0-32
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$0, R5
	MOVD	$435, R8	// clone3
	SVC
	CMN	$4095, R0
	BCC	cloned
	MOVD	$-1, R4
	MOVD	R4, pid+16(FP)
	NEG	R0, R0
	MOVD	R0, errno+24(FP)
	RET
cloned:
	CBZ	R0, wait
	MOVD	R0, pid+16(FP)
	MOVD	ZR, errno+24(FP)
	RET
wait:
	MOVD	$0, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$73, R8	// ppoll of nothing, without an end
	SVC
	JMP	wait
