#include "textflag.h"

// func flush(p *byte, n int)
TEXT ·flush(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
	ADDQ AX, CX
	ANDQ $~63, AX

line:
	CLFLUSHOPT (AX)
	ADDQ $64, AX
	CMPQ AX, CX
	JB   line
	RET

// func hasCLFLUSHOPT() bool
TEXT ·hasCLFLUSHOPT(SB), NOSPLIT, $0-1
	MOVB $0, ret+0(FP)
	XORL AX, AX
	CPUID
	CMPL AX, $7
	JB   done
	MOVL $7, AX
	XORL CX, CX
	CPUID
	SHRL $23, BX // structured extended features, EBX
	ANDL $1, BX
	MOVB BX, ret+0(FP)

done:
	RET
