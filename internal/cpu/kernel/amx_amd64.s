#include "textflag.h"

// Matrix products on AMX tiles, and the packing of their panels.
//
// Go's assembler does not know AMX or AVX512_BF16, so their instructions are bytes here, for fixed registers only.
// A tile is 16 rows of 64 bytes: 16 x 16 float32 of C, 16 x 32 bfloat16 of A, or 16 pairs of k by 16 columns of B, the two
// elements of a pair side by side. Tiles 0-3 are the 32 x 32 block of C, 4-5 two tiles of A, 6-7 two tiles of B:
//
//	0 1   A0 = 4 (rows 0-15)    B0 = 6 (columns 0-15)
//	2 3   A1 = 5 (rows 16-31)   B1 = 7 (columns 16-31)
//
// Each function configures the tiles itself and releases them before it returns. Go never preempts assembly, so no
// other goroutine can see them, and a thread outside these functions has no tile state to save.

#define LDTILECFG_AX   BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00
#define TILERELEASE    BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0
#define TILEZERO(t)    BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $(0xc0+8*t)

// Tile t of C starts from the memory at BX, rows CX bytes apart; it ends in the memory at DX.
#define LOADC(t)       BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x04+8*t); BYTE $0x0b
#define LOADC64(t)     BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $(0x44+8*t); BYTE $0x0b; BYTE $0x40
#define STOREC(t)      BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $(0x04+8*t); BYTE $0x0a
#define STOREC64(t)    BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $(0x44+8*t); BYTE $0x0a; BYTE $0x40

// LOADA and LOADB load the two tiles at SI+off or DI+off; AX is 64, the bytes of a row.
#define LOADA(off) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0xa4; BYTE $0x06; LONG $(off); \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0xac; BYTE $0x06; LONG $(off+1024)
#define LOADB(off) \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0xb4; BYTE $0x07; LONG $(off); \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0xbc; BYTE $0x07; LONG $(off+1024)

// TDPBF16PS: C += A B, all four tiles of C.
#define MULTIPLY \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x4a; BYTE $0x5c; BYTE $0xc4; \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x42; BYTE $0x5c; BYTE $0xcc; \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x4a; BYTE $0x5c; BYTE $0xd5; \
	BYTE $0xc4; BYTE $0xe2; BYTE $0x42; BYTE $0x5c; BYTE $0xdd

// VCVTNE2PS2BF16: words 0-15 of Z2 = bfloat16(Z0), words 16-31 = bfloat16(Z1), to nearest even; NaN stays NaN.
#define CVT_Z0_Z1_Z2   BYTE $0x62; BYTE $0xf2; BYTE $0x77; BYTE $0x48; BYTE $0x72; BYTE $0xd0

// Palette 1, eight tiles of 16 rows of 64 bytes.
DATA tilecfg<>+0(SB)/8, $1
DATA tilecfg<>+8(SB)/8, $0
DATA tilecfg<>+16(SB)/8, $0x0040004000400040
DATA tilecfg<>+24(SB)/8, $0x0040004000400040
DATA tilecfg<>+32(SB)/8, $0
DATA tilecfg<>+40(SB)/8, $0
DATA tilecfg<>+48(SB)/8, $0x1010101010101010
DATA tilecfg<>+56(SB)/8, $0
GLOBL tilecfg<>(SB), RODATA|NOPTR, $64

// BEGIN: R8 A, R9 B, R10 C, R11 Init, R12 tiles left; AX 64.
#define BEGIN \
	LEAQ tilecfg<>(SB), AX; LDTILECFG_AX; MOVQ $64, AX; \
	MOVQ b_A+0(FP), R8; MOVQ b_B+8(FP), R9; MOVQ b_C+16(FP), R10; \
	MOVQ b_Init+24(FP), R11; MOVQ b_Count+88(FP), R12

// The tiles of C from Init, which is not nil.
#define INITC \
	MOVQ b_LDInit+40(FP), CX; MOVQ R11, BX; LOADC(0); LOADC64(1); \
	MOVQ CX, R13; SHLQ $4, R13; ADDQ R13, BX; LOADC(2); LOADC64(3); \
	ADDQ b_InitStep+72(FP), R11

// NEXTC: BX the rows of the next block of C, CX their distance, R15 the groups of K over which they are prefetched.
// Its 64 lines lie far apart, so no hardware prefetcher sees them coming, and a tile waits for all its rows.
#define NEXTC \
	MOVQ R10, BX; ADDQ b_CStep+64(FP), BX; MOVQ b_LDC+32(FP), CX; MOVQ $16, R15

// FETCHC: two rows of it.
#define FETCHC \
	PREFETCHT0 (BX); PREFETCHT0 64(BX); ADDQ CX, BX; PREFETCHT0 (BX); PREFETCHT0 64(BX); ADDQ CX, BX

#define ZEROC TILEZERO(0); TILEZERO(1); TILEZERO(2); TILEZERO(3)

// The tiles of C to memory, and on to the next block.
#define FINISHC \
	MOVQ b_LDC+32(FP), CX; MOVQ R10, DX; STOREC(0); STOREC64(1); \
	MOVQ CX, R13; SHLQ $4, R13; ADDQ R13, DX; STOREC(2); STOREC64(3); \
	ADDQ b_AStep+48(FP), R8; ADDQ b_BStep+56(FP), R9; ADDQ b_CStep+64(FP), R10

// func multiplyBF16(b Block)
// A panel's 32 elements of K are 2 KiB: two tiles.
TEXT ·multiplyBF16(SB), NOSPLIT, $0-96
	BEGIN

block:
	TESTQ R11, R11
	JZ    zero
	INITC
	JMP   run

zero:
	ZEROC

run:
	MOVQ R8, SI
	MOVQ R9, DI
	MOVQ b_K+80(FP), R14

	NEXTC

loop:
	LOADA(0)
	LOADB(0)
	MULTIPLY
	ADDQ  $2048, SI
	ADDQ  $2048, DI
	TESTQ R15, R15
	JZ    fetched
	FETCHC
	DECQ  R15

fetched:
	DECQ R14
	JNZ  loop
	FINISHC
	DECQ R12
	JNZ  block
	TILERELEASE
	RET

// func multiplySplit(b Block)
// Every float32 is h + m + l, three bfloat16 of 8 bits each; a panel's 32 elements of K are 6 KiB: two tiles of h, of m, of l.
// The product keeps h h + h m + m h + m m + l h + h l; what it leaves out (m l, l m, l l) is below 2^-24 of the term.
TEXT ·multiplySplit(SB), NOSPLIT, $0-96
	BEGIN

block:
	TESTQ R11, R11
	JZ    zero
	INITC
	JMP   run

zero:
	ZEROC

run:
	MOVQ R8, SI
	MOVQ R9, DI
	MOVQ b_K+80(FP), R14

	NEXTC

loop:
	LOADA(0)
	LOADB(4096)
	MULTIPLY
	LOADA(4096)
	LOADB(0)
	MULTIPLY
	LOADA(2048)
	MULTIPLY
	LOADB(2048)
	MULTIPLY
	LOADA(0)
	MULTIPLY
	LOADB(0)
	MULTIPLY
	ADDQ  $6144, SI
	ADDQ  $6144, DI
	TESTQ R15, R15
	JZ    fetched
	FETCHC
	DECQ  R15

fetched:
	DECQ R14
	JNZ  loop
	FINISHC
	DECQ R12
	JNZ  block
	TILERELEASE
	RET

// Splitting a float32 x into bfloat16 parts takes the part h that its upper half rounds to, and goes on with x - h, which is
// exact. HALF does it for x = Z0 and Z1 at once: h in the upper halves of Z2 and Z3. Z5 is 0x8000, Z6 is 0xffff0000 in every lane.
// A NaN may come out as some number there, but what is left of it is NaN, and the last part, which VCVTNE2PS2BF16 rounds, keeps it.
#define HALF \
	VPADDD Z5, Z0, Z2; VPANDD Z6, Z2, Z2; VSUBPS Z2, Z0, Z0; \
	VPADDD Z5, Z1, Z3; VPANDD Z6, Z3, Z3; VSUBPS Z3, Z1, Z1

#define HALVES \
	MOVL $0x8000, AX; VPBROADCASTD AX, Z5; MOVL $0xffff0000, AX; VPBROADCASTD AX, Z6

// The upper halves of two vectors, one after the other.
DATA uppers<>+0(SB)/8, $0x0007000500030001
DATA uppers<>+8(SB)/8, $0x000f000d000b0009
DATA uppers<>+16(SB)/8, $0x0017001500130011
DATA uppers<>+24(SB)/8, $0x001f001d001b0019
DATA uppers<>+32(SB)/8, $0x0027002500230021
DATA uppers<>+40(SB)/8, $0x002f002d002b0029
DATA uppers<>+48(SB)/8, $0x0037003500330031
DATA uppers<>+56(SB)/8, $0x003f003d003b0039
GLOBL uppers<>(SB), RODATA|NOPTR, $64

// func rowsBF16(dst *byte, src *float32, stride uintptr)
// A tile from 16 rows of 32 float32, stride bytes apart: A's layout where K is contiguous.
TEXT ·rowsBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), BX
	MOVQ $16, CX

row:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	CVT_Z0_Z1_Z2
	VMOVDQU64 Z2, (DI)
	ADDQ BX, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  row
	VZEROUPPER
	RET

// func rowsSplit(dst *byte, src *float32, stride uintptr)
// As rowsBF16, three tiles 2 KiB apart: h, m and l.
TEXT ·rowsSplit(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), BX
	MOVQ $16, CX
	HALVES
	VMOVDQU64 uppers<>(SB), Z7

row:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	HALF
	VPERMT2W Z3, Z7, Z2
	VMOVDQU64 Z2, (DI)
	HALF
	VPERMT2W Z3, Z7, Z2
	VMOVDQU64 Z2, 2048(DI)
	CVT_Z0_Z1_Z2
	VMOVDQU64 Z2, 4096(DI)
	ADDQ BX, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  row
	VZEROUPPER
	RET

// Words 0, 16, 1, 17, …: the elements of two rows, side by side.
DATA interleave<>+0(SB)/8, $0x0011000100100000
DATA interleave<>+8(SB)/8, $0x0013000300120002
DATA interleave<>+16(SB)/8, $0x0015000500140004
DATA interleave<>+24(SB)/8, $0x0017000700160006
DATA interleave<>+32(SB)/8, $0x0019000900180008
DATA interleave<>+40(SB)/8, $0x001b000b001a000a
DATA interleave<>+48(SB)/8, $0x001d000d001c000c
DATA interleave<>+56(SB)/8, $0x001f000f001e000e
GLOBL interleave<>(SB), RODATA|NOPTR, $64

// func pairsBF16(dst *byte, src *float32, stride uintptr)
// A tile from 32 rows (of K) of 16 float32, stride bytes apart: B's layout where its columns are contiguous.
TEXT ·pairsBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), BX
	MOVQ $16, CX
	VMOVDQU64 interleave<>(SB), Z4

pair:
	VMOVUPS (SI), Z0
	VMOVUPS (SI)(BX*1), Z1
	CVT_Z0_Z1_Z2
	VPERMW  Z2, Z4, Z3
	VMOVDQU64 Z3, (DI)
	LEAQ (SI)(BX*2), SI
	ADDQ $64, DI
	DECQ CX
	JNZ  pair
	VZEROUPPER
	RET

// func pairsSplit(dst *byte, src *float32, stride uintptr)
// As pairsBF16, three tiles 2 KiB apart.
TEXT ·pairsSplit(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), BX
	MOVQ $16, CX
	HALVES
	VMOVDQU64 interleave<>(SB), Z4

pair:
	VMOVUPS (SI), Z0
	VMOVUPS (SI)(BX*1), Z1
	HALF
	VPSRLD  $16, Z2, Z2
	VPORD   Z3, Z2, Z2
	VMOVDQU64 Z2, (DI)
	HALF
	VPSRLD  $16, Z2, Z2
	VPORD   Z3, Z2, Z2
	VMOVDQU64 Z2, 2048(DI)
	CVT_Z0_Z1_Z2
	VPERMW  Z2, Z4, Z3
	VMOVDQU64 Z3, 4096(DI)
	LEAQ (SI)(BX*2), SI
	ADDQ $64, DI
	DECQ CX
	JNZ  pair
	VZEROUPPER
	RET

// Rows a, b (and c, d) of 4-byte elements become their 2 x 2 blocks' transposes, then their 4 x 4 blocks', in each 128-bit lane.
#define STAGE1(a, b, lo, hi) VUNPCKLPS b, a, lo; VUNPCKHPS b, a, hi
#define STAGE2(a, b, lo, hi) VUNPCKLPD b, a, lo; VUNPCKHPD b, a, hi

// Column j of lanes 0-3 of rows 0-3 (a), 4-7 (b), 8-11 (c), 12-15 (d): columns j, 4+j, 8+j and 12+j of the tile.
#define STAGE3(a, b, c, d, j) \
	VSHUFI32X4 $0x88, b, a, Z16; VSHUFI32X4 $0xdd, b, a, Z17; \
	VSHUFI32X4 $0x88, d, c, Z18; VSHUFI32X4 $0xdd, d, c, Z19; \
	VSHUFI32X4 $0x88, Z18, Z16, Z20; VMOVDQU64 Z20, (64*j)(DI); \
	VSHUFI32X4 $0x88, Z19, Z17, Z21; VMOVDQU64 Z21, (64*j+256)(DI); \
	VSHUFI32X4 $0xdd, Z18, Z16, Z22; VMOVDQU64 Z22, (64*j+512)(DI); \
	VSHUFI32X4 $0xdd, Z19, Z17, Z23; VMOVDQU64 Z23, (64*j+768)(DI)

// func transposeTile(t *byte)
// Transposes 16 x 16 elements of 4 bytes in place: A's layout of a tile becomes B's, and back.
TEXT ·transposeTile(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	VMOVDQU64 (DI), Z0
	VMOVDQU64 64(DI), Z1
	VMOVDQU64 128(DI), Z2
	VMOVDQU64 192(DI), Z3
	VMOVDQU64 256(DI), Z4
	VMOVDQU64 320(DI), Z5
	VMOVDQU64 384(DI), Z6
	VMOVDQU64 448(DI), Z7
	VMOVDQU64 512(DI), Z8
	VMOVDQU64 576(DI), Z9
	VMOVDQU64 640(DI), Z10
	VMOVDQU64 704(DI), Z11
	VMOVDQU64 768(DI), Z12
	VMOVDQU64 832(DI), Z13
	VMOVDQU64 896(DI), Z14
	VMOVDQU64 960(DI), Z15
	STAGE1(Z0, Z1, Z16, Z17)
	STAGE1(Z2, Z3, Z18, Z19)
	STAGE1(Z4, Z5, Z20, Z21)
	STAGE1(Z6, Z7, Z22, Z23)
	STAGE1(Z8, Z9, Z24, Z25)
	STAGE1(Z10, Z11, Z26, Z27)
	STAGE1(Z12, Z13, Z28, Z29)
	STAGE1(Z14, Z15, Z30, Z31)
	STAGE2(Z16, Z18, Z0, Z1)
	STAGE2(Z17, Z19, Z2, Z3)
	STAGE2(Z20, Z22, Z4, Z5)
	STAGE2(Z21, Z23, Z6, Z7)
	STAGE2(Z24, Z26, Z8, Z9)
	STAGE2(Z25, Z27, Z10, Z11)
	STAGE2(Z28, Z30, Z12, Z13)
	STAGE2(Z29, Z31, Z14, Z15)
	STAGE3(Z0, Z4, Z8, Z12, 0)
	STAGE3(Z1, Z5, Z9, Z13, 1)
	STAGE3(Z2, Z6, Z10, Z14, 2)
	STAGE3(Z3, Z7, Z11, Z15, 3)
	VZEROUPPER
	RET
