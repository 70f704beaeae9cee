# The entry point of programs without the standard library, for the linker's -e.
#
# A position-independent program is loaded as it lies in the file, so its own addresses must be added up first: nothing
# that is called before may use one. There are only relative relocations, as nothing is linked dynamically.

.section .text.coracle_start, "ax", @progbits
.globl coracle_start
.type coracle_start, @function
.weak _DYNAMIC
.hidden _DYNAMIC
.hidden __ehdr_start
coracle_start:
    xor ebp, ebp                        # The outermost frame.
    mov r12, rsp
    lea rsi, [rip + _DYNAMIC]
    test rsi, rsi
    jz 5f                               # Linked to a fixed address.
    lea rdi, [rip + __ehdr_start]       # The load address.
    xor ecx, ecx
    xor r8d, r8d
2:  mov rax, [rsi]
    mov rdx, [rsi + 8]
    add rsi, 16
    cmp rax, 7                          # DT_RELA
    cmove rcx, rdx
    cmp rax, 8                          # DT_RELASZ
    cmove r8, rdx
    test rax, rax                       # DT_NULL
    jnz 2b
    add rcx, rdi
    add r8, rcx
3:  cmp rcx, r8
    jae 5f
    cmp dword ptr [rcx + 8], 8          # R_X86_64_RELATIVE
    jne 4f
    mov rax, [rcx]
    mov rdx, [rcx + 16]
    add rdx, rdi
    mov [rdi + rax], rdx
4:  add rcx, 24
    jmp 3b
5:  mov rdi, r12
    and rsp, -16
    call coracle_main
    ud2
.size coracle_start, . - coracle_start
.text
