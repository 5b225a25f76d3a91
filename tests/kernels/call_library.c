// Calls functions of a library over memory that lies in a file: what tests use to run a library of another architecture
// under an emulator. Arguments: the library; the file; the address at which the file's bytes are to be, which pointers in
// it and in the arguments count from; then for each call "call", the function's name, and its arguments: integers, or
// floats with an f in front. The results are printed, one a line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

// Integers and floats are passed in registers of their own, and those that a function does not take do no harm.
typedef int64_t (*function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int64_t, float);

int main(int count, char **arguments) {
    struct stat facts;
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    const int file = open(arguments[2], O_RDWR);
    void *const address = (void *)strtoull(arguments[3], NULL, 10);
    if (file < 0 || fstat(file, &facts)) return perror(arguments[2]), 1;
    if (mmap(address, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        return perror("mmap"), 1;
    for (int at = 4; at < count;) {
        int64_t a[12] = {0};
        float number = 0;
        int taken = 0;
        const char *name = arguments[at + 1];
        for (at += 2; at < count && strcmp(arguments[at], "call"); at++)
            if (arguments[at][0] == 'f')
                number = strtof(arguments[at] + 1, NULL);
            else if (taken < 12)
                a[taken++] = strtoll(arguments[at], NULL, 10);
        const function called = (function)dlsym(library, name);
        if (!called) return fprintf(stderr, "%s\n", dlerror()), 1;
        printf("%lld\n", (long long)called(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], number));
    }
    return 0;
}
