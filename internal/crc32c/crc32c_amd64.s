#include "textflag.h"

// foldAVX512 and foldSSE cut their input in the same way:
//
//	odd octets | four streams of 2*groups + extra words | front | groups
//
// A word is 8 octets. The streams go through crc32q side by side, which hides its
// latency; the first begins with the CRC given and the odd octets. What follows
// them is folded by carry-less multiplication, two blocks at a time, which keeps
// another unit of the processor busy. A group is two blocks, and with them two
// words of each stream. The front is two blocks as well, zeros where it has fewer
// words. In the end all is moved to the last 16 octets, and their CRC is the
// result.
//
// What the registers hold:
//
//	AX BX CX DX  CRCs of the streams
//	SI R9        where the first and the fourth stream are
//	R8           octets of a stream
//	DI           where the groups are
//	R10          groups
//	R11          words outside groups, then of the front
//	R12          odd octets
//	R13          extra
//	R14          octets of all groups' blocks, then with the front

// PAIR takes a word of the first two streams, OTHERS of the other two.
#define PAIR(o)   CRC32Q o(SI), AX; CRC32Q o(SI)(R8*1), BX
#define OTHERS(o) CRC32Q o(SI)(R8*2), CX; CRC32Q o(R9), DX

// ODD takes the odd octets.
#define ODD(odd2, odd4, done) \
	TESTB  $1, R12;  \
	JZ     odd2;     \
	CRC32B (SI), AX; \
	INCQ   SI;       \
odd2:                \
	TESTB  $2, R12;  \
	JZ     odd4;     \
	CRC32W (SI), AX; \
	ADDQ   $2, SI;   \
odd4:                \
	TESTB  $4, R12;  \
	JZ     done;     \
	CRC32L (SI), AX; \
	ADDQ   $4, SI;   \
done:

// START makes one stream four.
#define START \
	LEAQ (R8)(R8*2), R9; \
	ADDQ SI, R9;         \
	XORL BX, BX;         \
	XORL CX, CX;         \
	XORL DX, DX

// EXTRA takes the extra words.
#define EXTRA(loop, done) \
	TESTQ R13, R13; \
	JZ    done;     \
loop:               \
	PAIR(0);        \
	OTHERS(0);      \
	ADDQ  $8, SI;   \
	ADDQ  $8, R9;   \
	DECQ  R13;      \
	JNZ   loop;     \
done:

// func oneStream(crc uint32, b []byte) uint32
TEXT ·oneStream(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), DX
	MOVL DX, R12
	ODD(odd2, odd4, oddDone)
	SHRQ $3, DX
	JZ   done

word:
	CRC32Q (SI), AX
	ADDQ   $8, SI
	DECQ   DX
	JNZ    word

done:
	MOVL AX, ret+32(FP)
	RET

// func foldAVX512(crc uint32, b []byte) uint32
TEXT ·foldAVX512(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), DX

	// A group takes 192 octets. At least five words stay outside: the front costs
	// the same however full it is.
	LEAQ   -40(DX), R10
	IMUL3Q $87382, R10, R10 // 2^24/192, rounded up
	SHRQ   $24, R10
	LEAQ   (SI)(DX*1), DI
	MOVQ   R10, R14
	SHLQ   $7, R14
	SUBQ   R14, DI
	MOVQ   R10, R11
	SHLQ   $6, R11
	ADDQ   R14, R11
	SUBQ   R11, DX
	MOVQ   DX, R11
	SHRQ   $3, R11
	MOVL   DX, R12
	ANDL   $7, R12

	// The front has room for 16. More than that and the streams take 4, 8 or 12,
	// which leaves 13 or more.
	LEAQ    -13(R11), R13
	SHRQ    $2, R13
	XORL    BX, BX
	CMPQ    R11, $16
	CMOVQLS BX, R13
	LEAQ    (R13*4), BX
	SUBQ    BX, R11
	LEAQ    (R13)(R10*2), R8
	SHLQ    $3, R8
	LEAQ    (R14)(R11*8), R14

	// Masked words are not touched, so they may lie before the input.
	MOVL            $16, CX
	SUBL            R11, CX
	MOVL            $-1, BX
	SHLL            CX, BX
	KMOVW           BX, K1
	SHRL            $8, BX
	KMOVW           BX, K2
	VMOVDQU64.Z     -128(DI), K1, Z0
	VMOVDQU64.Z     -64(DI), K2, Z1
	VBROADCASTI32X4 ·foldNext512(SB), Z2

	// The streams' constants: of the fourth and the third, the second and the first.
	LEAQ        ·shift(SB), DX
	ADDQ        R14, DX
	VMOVQ       (DX), X3
	VMOVQ       (DX)(R8*2), X4
	ADDQ        R8, DX
	VINSERTI128 $1, (DX), Y3, Y3
	VINSERTI128 $1, (DX)(R8*2), Y4, Y4

	ODD(odd2, odd4, oddDone)
	START
	EXTRA(extra, extraDone)
	TESTQ R10, R10
	JZ    last

	// Measured to be the best order; others take up to a fourth longer. 0x96 is
	// the xor of three.
group:
	PAIR(0)
	VPCLMULQDQ $0x00, Z2, Z0, Z5
	VPCLMULQDQ $0x11, Z2, Z0, Z0
	OTHERS(0)
	VPCLMULQDQ $0x00, Z2, Z1, Z6
	VPCLMULQDQ $0x11, Z2, Z1, Z1
	PAIR(8)
	VPTERNLOGQ $0x96, 64(DI), Z6, Z1
	OTHERS(8)
	VPTERNLOGQ $0x96, (DI), Z5, Z0
	ADDQ       $16, SI
	ADDQ       $16, R9
	ADDQ       $128, DI
	DECQ       R10
	JNZ        group

last:
	VMOVDQU64     ·foldLast+0(SB), Z5
	VMOVDQU64     ·foldLast+64(SB), Z6
	VPCLMULQDQ    $0x00, Z5, Z0, Z7
	VPCLMULQDQ    $0x11, Z5, Z0, Z0
	VPCLMULQDQ    $0x00, Z6, Z1, Z8
	VPCLMULQDQ    $0x11, Z6, Z1, Z1
	VMOVD         DX, X9
	VMOVD         CX, X10
	VMOVD         BX, X11
	VMOVD         AX, X12
	VINSERTI128   $1, X10, Y9, Y9
	VINSERTI128   $1, X12, Y11, Y11
	VPCLMULQDQ    $0x00, Y3, Y9, Y9
	VPCLMULQDQ    $0x00, Y4, Y11, Y11
	VPTERNLOGQ    $0x96, Z7, Z8, Z0
	VPXORQ        Z0, Z1, Z1
	VPXOR         Y9, Y11, Y11
	VEXTRACTI64X4 $1, Z1, Y0
	VPTERNLOGQ    $0x96, Y0, Y11, Y1
	VEXTRACTI128  $1, Y1, X0
	VPXOR         X0, X1, X1
	VMOVQ         X1, BX
	VPEXTRQ       $1, X1, CX
	VZEROUPPER
	XORL          AX, AX
	CRC32Q        BX, AX
	CRC32Q        CX, AX
	MOVL          AX, ret+32(FP)
	RET

// func foldSSE(crc uint32, b []byte) uint32
TEXT ·foldSSE(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), DX

	// A group takes 96 octets. At least one word stays outside; the front takes
	// four, the streams what is beyond.
	LEAQ   -8(DX), R10
	IMUL3Q $174763, R10, R10 // 2^24/96, rounded up
	SHRQ   $24, R10
	LEAQ   (SI)(DX*1), DI
	MOVQ   R10, R14
	SHLQ   $5, R14
	SUBQ   R14, DI
	LEAQ   (R14)(R14*2), R11
	SUBQ   R11, DX
	MOVQ   DX, R11
	SHRQ   $3, R11
	MOVL   DX, R12
	ANDL   $7, R12
	LEAQ   -1(R11), R13
	SHRQ   $2, R13
	LEAQ   (R13*4), BX
	SUBQ   BX, R11
	LEAQ   (R13)(R10*2), R8
	SHLQ   $3, R8
	LEAQ   (R14)(R11*8), R14

	// The streams are long enough for what is loaded in vain to be theirs.
	LEAQ  ·frontMask(SB), BX
	MOVOU (BX)(R11*8), X2
	MOVOU 16(BX)(R11*8), X3
	MOVOU -32(DI), X0
	MOVOU -16(DI), X1
	PAND  X2, X0
	PAND  X3, X1
	MOVOU ·foldNext128(SB), X2

	// The streams' constants, of the fourth first.
	LEAQ ·shift(SB), DX
	ADDQ R14, DX
	MOVQ (DX), X8
	ADDQ R8, DX
	MOVQ (DX), X9
	ADDQ R8, DX
	MOVQ (DX), X10
	ADDQ R8, DX
	MOVQ (DX), X11

	ODD(odd2, odd4, oddDone)
	START
	EXTRA(extra, extraDone)
	TESTQ R10, R10
	JZ    last

group:
	PAIR(0)
	MOVOA     X0, X5
	MOVOA     X1, X6
	PCLMULQDQ $0x00, X2, X5
	PCLMULQDQ $0x00, X2, X6
	PCLMULQDQ $0x11, X2, X0
	PCLMULQDQ $0x11, X2, X1
	OTHERS(0)
	MOVOU     (DI), X3
	MOVOU     16(DI), X4
	PXOR      X3, X5
	PXOR      X4, X6
	PAIR(8)
	PXOR      X5, X0
	PXOR      X6, X1
	OTHERS(8)
	ADDQ      $16, SI
	ADDQ      $16, R9
	ADDQ      $32, DI
	DECQ      R10
	JNZ       group

last:
	MOVOU     ·foldLast+96(SB), X3
	MOVOU     ·foldLast+112(SB), X4
	MOVOA     X0, X5
	MOVOA     X1, X6
	PCLMULQDQ $0x00, X3, X5
	PCLMULQDQ $0x11, X3, X0
	PCLMULQDQ $0x00, X4, X6
	PCLMULQDQ $0x11, X4, X1
	MOVL      AX, X12
	MOVL      BX, X13
	MOVL      CX, X14
	MOVL      DX, X15
	PCLMULQDQ $0x00, X11, X12
	PCLMULQDQ $0x00, X10, X13
	PCLMULQDQ $0x00, X9, X14
	PCLMULQDQ $0x00, X8, X15
	PXOR      X5, X0
	PXOR      X6, X1
	PXOR      X12, X13
	PXOR      X14, X15
	PXOR      X0, X1
	PXOR      X13, X15
	PXOR      X15, X1
	MOVQ      X1, BX
	PSRLDQ    $8, X1
	MOVQ      X1, CX
	XORL      AX, AX
	CRC32Q    BX, AX
	CRC32Q    CX, AX
	MOVL      AX, ret+32(FP)
	RET
