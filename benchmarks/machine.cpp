// What a machine can do at most: reading memory, copying it, and multiply-adds in registers. Compiled by machine.py.
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#define KEEP(v) asm volatile("" : "+v"(v))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define KEEP(v) asm volatile("" : "+w"(v))
#else
#define KEEP(v) asm volatile("" : "+m"(v))
#endif

// After it the compiler knows nothing of the values, so that it neither merges nor leaves out what follows from them.
template <class V, int N>
inline void keep_all(V (&vectors)[N]) {
#pragma GCC unroll 12
    for (int i = 0; i < N; ++i) KEEP(vectors[i]);
}

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef uint64_t Words __attribute__((vector_size(kBytes), aligned(8), may_alias));
constexpr int kChains = 12;  // independent sums: latency (4 or 5 cycles) times two instructions a cycle, and two more

// Sum of all words of `from`, split over the threads. count: words, a multiple of 64.
extern "C" uint64_t read_words(const uint64_t* from, int64_t count, int threads) {
    uint64_t total = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : total)
    for (int64_t block = 0; block < count / 64; ++block) {
        Words sum = {};
        for (int i = 0; i < 64; i += kBytes / 8) sum += *reinterpret_cast<const Words*>(from + block * 64 + i);
        for (int i = 0; i < kBytes / 8; ++i) total += sum[i];
    }
    return total;
}

extern "C" void copy_bytes(char* to, const char* from, int64_t bytes, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; ++part) {
        const int64_t begin = bytes * part / threads, end = bytes * (part + 1) / threads;
        std::memcpy(to + begin, from + begin, end - begin);
    }
}

// Runs `turns` times kChains multiply-adds of float32 vectors in each thread; how many multiply-adds one vector holds.
extern "C" int multiply_floats(int64_t turns, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Floats sums[kChains] = {}, a = {}, b = {};
        KEEP(b);
        keep_all(sums);
        for (int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
            for (int i = 0; i < kChains; ++i) {
                KEEP(a);
                sums[i] = sums[i] * a + b;
            }
        }
        keep_all(sums);
    }
    return kBytes / 4;
}

// The same of the best byte products: of 4 bytes into 32 bits where the CPU has them, of 2 bytes into 16 bits (whose
// sums have to be widened now and then, which is not counted here) elsewhere. 0: none that this file knows.
extern "C" int multiply_bytes(int64_t turns, int threads) {
#if defined(__AVX512VNNI__)
#define STEP(sum) sum = _mm512_dpbusd_epi32(sum, a, b)
    typedef __m512i Bytes;
#elif defined(__AVXVNNI__)
#define STEP(sum) sum = _mm256_dpbusd_avx_epi32(sum, a, b)
    typedef __m256i Bytes;
#elif defined(__AVX512BW__)
#define STEP(sum) { Bytes product = _mm512_maddubs_epi16(a, b); KEEP(product); sum = _mm512_add_epi16(sum, product); }
    typedef __m512i Bytes;
#elif defined(__AVX2__)
#define STEP(sum) { Bytes product = _mm256_maddubs_epi16(a, b); KEEP(product); sum = _mm256_add_epi16(sum, product); }
    typedef __m256i Bytes;
#elif defined(__ARM_FEATURE_DOTPROD)
#define STEP(sum) sum = vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b))
    typedef int32x4_t Bytes;
#endif
#if defined(STEP)
#pragma omp parallel num_threads(threads)
    {
        Bytes sums[kChains] = {}, a = {}, b = {};
        KEEP(b);
        keep_all(sums);
        for (int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
            for (int i = 0; i < kChains; ++i) {
                KEEP(a);
                STEP(sums[i]);
            }
        }
        keep_all(sums);
    }
    return sizeof(Bytes);
#else
    return 0;
#endif
}
