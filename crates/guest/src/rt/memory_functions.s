# memmove, memset, memcmp and strlen, as C has them. Weak under their C names, so that a C library wins.
#
# In assembly because a compiler would turn the same loops into calls of the same functions.

.section .text.coracle_memmove, "ax", @progbits
.globl coracle_memmove
.type coracle_memmove, @function
coracle_memmove:                        # rdi to, rsi from, rdx bytes
    mov rax, rdi
    cmp rdx, 16
    jb 4f
    mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jb 3f                               # The target starts within the source: last bytes first.
    movups xmm1, [rsi + rdx - 16]       # The last 16, which may not be a whole step.
    lea r8, [rdi + rdx - 16]
2:  cmp rdi, r8
    jae 2f
    movups xmm0, [rsi]
    movups [rdi], xmm0
    add rsi, 16
    add rdi, 16
    jmp 2b
2:  movups [r8], xmm1
    ret
3:  movups xmm1, [rsi]                  # The first 16, likewise.
2:  cmp rdx, 16
    jbe 2f
    movups xmm0, [rsi + rdx - 16]
    movups [rdi + rdx - 16], xmm0
    sub rdx, 16
    jmp 2b
2:  movups [rdi], xmm1
    ret
4:  cmp edx, 8                          # Fewer than 16: two pieces that may overlap, both read before either is written.
    jb 2f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
2:  cmp edx, 4
    jb 2f
    mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
2:  test edx, edx
    jz 2f
    movzx ecx, byte ptr [rsi]           # One to three: first, middle, last.
    movzx r8d, byte ptr [rsi + rdx - 1]
    mov r9, rdx
    shr r9, 1
    movzx r10d, byte ptr [rsi + r9]
    mov [rdi], cl
    mov [rdi + r9], r10b
    mov [rdi + rdx - 1], r8b
2:  ret
.size coracle_memmove, . - coracle_memmove

.section .text.coracle_memset, "ax", @progbits
.globl coracle_memset
.type coracle_memset, @function
coracle_memset:                         # rdi to, esi byte, rdx bytes
    mov rax, rdi
    movzx esi, sil
    cmp rdx, 8
    jb 3f
    mov rcx, 0x0101010101010101
    imul rsi, rcx
    cmp rdx, 16
    jb 2f
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    lea r8, [rdi + rdx - 16]
4:  cmp rdi, r8
    jae 4f
    movups [rdi], xmm0
    add rdi, 16
    jmp 4b
4:  movups [r8], xmm0
    ret
2:  mov [rdi], rsi
    mov [rdi + rdx - 8], rsi
    ret
3:  test edx, edx
    jz 2f
    mov [rdi], sil
    inc rdi
    dec edx
    jmp 3b
2:  ret
.size coracle_memset, . - coracle_memset

.section .text.coracle_memcmp, "ax", @progbits
.globl coracle_memcmp
.type coracle_memcmp, @function
coracle_memcmp:                         # rdi left, rsi right, rdx bytes
    cmp rdx, 8
    jb 3f
    mov rax, [rdi]
    mov rcx, [rsi]
    cmp rax, rcx
    jne 2f
    add rdi, 8
    add rsi, 8
    sub rdx, 8
    jmp coracle_memcmp
2:  bswap rax                           # The first byte that differs decides.
    bswap rcx
    cmp rax, rcx
    sbb eax, eax
    or eax, 1
    ret
3:  test edx, edx
    jz 4f
    movzx eax, byte ptr [rdi]
    movzx ecx, byte ptr [rsi]
    sub eax, ecx
    jne 2f
    inc rdi
    inc rsi
    dec edx
    jmp 3b
4:  xor eax, eax
2:  ret
.size coracle_memcmp, . - coracle_memcmp

.section .text.coracle_strlen, "ax", @progbits
.globl coracle_strlen
.type coracle_strlen, @function
coracle_strlen:                         # rdi text
    mov rax, rdi
2:  cmp byte ptr [rax], 0
    je 2f
    inc rax
    jmp 2b
2:  sub rax, rdi
    ret
.size coracle_strlen, . - coracle_strlen
.text
