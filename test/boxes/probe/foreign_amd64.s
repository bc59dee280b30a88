// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func enter80(nr uint32) int32
TEXT ·enter80(SB), NOSPLIT, $0-12
	MOVL nr+0(FP), AX
	INT  $0x80
	MOVL AX, ret+8(FP)
	RET
