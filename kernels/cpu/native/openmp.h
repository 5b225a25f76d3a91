// OpenMP's functions. Apple's compiler has no header of them: the library of them is the one that torch has loaded.
#pragma once
#if __has_include(<omp.h>)
#include <omp.h>
#else
extern "C" {
int omp_get_max_threads(void);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
double omp_get_wtime(void);
}
#endif
