// Shows that an ordinary C program finds what it expects: arguments, environment, input, heap, time, exit code.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv, char **envp) {
  for (int i = 1; i < argc; i++)
    printf("arg %s\n", argv[i]);
  for (char **variable = envp; *variable; variable++)
    printf("env %s\n", *variable);
  char line[256];
  while (fgets(line, sizeof line, stdin))
    printf("line %s", line);
  size_t size = 8 << 20;
  char *block = malloc(size);
  if (!block)
    return 1;
  memset(block, 7, size);
  long sum = 0;
  for (size_t i = 0; i < size; i++)
    sum += block[i];
  block = realloc(block, 2 * size);
  printf("sum %ld\n", sum + block[size - 1]);
  free(block);
  printf("time %s\n", time(NULL) > 1500000000 ? "now" : "wrong");
  printf("pid %d\n", (int)getpid());
  return 42;
}
