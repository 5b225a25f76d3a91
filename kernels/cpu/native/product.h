// C [rows, columns] = or += A [rows, length] * B [length, columns], for blocks that lie in the first caches.
//
// An element of A and of B is 32 bits: a float32, or two neighbours of the summed dimension, in bfloat16 (where the CPU
// multiplies them) or as 16-bit integers, whose sums in C are 32-bit integers. columns is a multiple of VL.
#pragma once
#include "vec.h"

struct Floats {
    typedef vf Sum;
    static constexpr int STEP = 1;  // elements of the summed dimension in a word
    static inline vf mac(vf acc, uint32_t a, vu b) {
        float x;
        memcpy(&x, &a, 4);
        return acc + x * (vf)b;
    }
};

#if defined(RADIXRT_BF16)
struct Pairs {
    typedef vf Sum;
    static constexpr int STEP = 2;
    static inline vf mac(vf acc, uint32_t a, vu b) {
        return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
    }
};
#endif

struct Ints {
    typedef vi Sum;
    static constexpr int STEP = 2;
    static inline vi mac(vi acc, uint32_t a, vu b) {
#if defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)
        return (vi)_mm512_dpwssd_epi32((__m512i)acc, _mm512_set1_epi32((int)a), (__m512i)b);
#elif defined(RADIXRT_AVX512)
        return acc + (vi)_mm512_madd_epi16(_mm512_set1_epi32((int)a), (__m512i)b);
#elif defined(__AVXVNNI__)
        return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, _mm256_set1_epi32((int)a), (__m256i)b);
#elif defined(__AVX2__)
        return acc + (vi)_mm256_madd_epi16(_mm256_set1_epi32((int)a), (__m256i)b);
#else
        return acc + (int32_t)(int16_t)a * ((vi)(b << 16) >> 16) + ((int32_t)a >> 16) * ((vi)b >> 16);
#endif
    }
};

template <class Mac, int R, int N>
RADIXRT_ONCE static void product_tile(const uint32_t *a, int64_t lda, const uint32_t *b, int64_t ldb, int64_t length,
                                      float *c, int64_t ldc, bool add) {
    typedef typename Mac::Sum Sum;
    Sum acc[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[r][n] = add ? load<Sum>(c + r * ldc + n * VL) : Sum{};
    for (int64_t i = 0; i < length; i++) {
        vu line[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) line[n] = load<vu>(b + i * ldb + n * VL);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[r][n] = Mac::mac(acc[r][n], a[r * lda + i], line[n]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store(c + r * ldc + n * VL, acc[r][n]);
}

// R rows of A times all columns, N vectors of these at a time.
template <class Mac, int R, int N>
static inline void product_rows(const uint32_t *a, int64_t lda, const uint32_t *b, int64_t ldb, int64_t columns,
                                int64_t length, float *c, int64_t ldc, bool add) {
    int64_t n = 0;
    for (; n + N * VL <= columns; n += N * VL) product_tile<Mac, R, N>(a, lda, b + n, ldb, length, c + n, ldc, add);
    for (; n < columns; n += VL) product_tile<Mac, R, 1>(a, lda, b + n, ldb, length, c + n, ldc, add);
}

template <class Mac>
static void product(const uint32_t *a, int64_t lda, int64_t rows, const uint32_t *b, int64_t ldb, int64_t columns,
                    int64_t length, float *c, int64_t ldc, bool add) {
    // As many sums as there are registers for; fewer would wait for each other.
    constexpr int OF_SIX = VL == 16 ? 4 : 2, OF_FEW = 4;
    int64_t r = 0;
    for (; r + 6 <= rows; r += 6)
        product_rows<Mac, 6, OF_SIX>(a + r * lda, lda, b, ldb, columns, length, c + r * ldc, ldc, add);
    for (; r + 3 <= rows; r += 3)
        product_rows<Mac, 3, OF_FEW>(a + r * lda, lda, b, ldb, columns, length, c + r * ldc, ldc, add);
    for (; r < rows; r++)
        product_rows<Mac, 1, OF_FEW>(a + r * lda, lda, b, ldb, columns, length, c + r * ldc, ldc, add);
}
