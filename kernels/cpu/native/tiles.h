// Products of bytes, as the CPU's integer instructions make them: a vector of VL lanes of 32 bits is a part of the 16
// outputs of a tile. The products of integer weights (linear.h, windows.h) are written once over these functions.
//
// A lane holds four weights of one output, and is multiplied by four inputs of a row:
//   VNNI                       one instruction multiplies, and adds all four products to 32 bits
//   NEON's dot product         the same, of signed bytes alone: 4-bit weights are so too, and of 8-bit weights 128 is taken
//                              first; with i8mm there is one for unsigned weights
//   AVX2, AVX-512 without it   `maddubs` adds products in pairs to 16 bits. Weights of 4 bits are small enough that
//                              eight such pairs fit there (8 * 2 * 15 * 127 < 2^15), so that the step to 32 bits is
//                              taken once for eight products. For 8 bits it is taken each time.
#pragma once
#include "vec.h"

constexpr int64_t GROUP = 32, TILE = 16;
constexpr int64_t LINES = GROUP / 4, LINE = 4 * TILE;  // of a group in a tile: lines of four inputs, bytes of a line

// A float16 number that is one: no NaN, no infinity.
static inline float half1(const void *at) {
    const uint32_t bits = load<uint16_t>(at), shifted = (bits & 0x7fff) << 13;
    const float x = load<float>(&shifted) * 5.192296858534828e33f;
    return bits & 0x8000 ? -x : x;
}

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
#define RADIXRT_BYTES 1
constexpr int PARTS = TILE / VL;  // vectors of a tile

typedef uint8_t vb __attribute__((vector_size(VL * 4)));

static inline vb low_halves(vb bytes) { return bytes & 15; }
static inline vb high_halves(vb bytes) { return (vb)((vu)bytes >> 4) & 15; }
#endif

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define RADIXRT_DOTS 1

// VL float16 numbers.
static inline vf halves(const uint8_t *at) { return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }

// x again and again.
static inline vb everywhere(uint32_t x) { return (vb)vdupq_n_u32(x); }
static inline vb everywhere(uint64_t x) { return (vb)vdupq_n_u64(x); }

// Adds to each lane the products of four bytes of q, which are below 128, with four signed ones.
static inline vi dot4(vi sum, vb q, vb x) { return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)q, (int8x16_t)x); }
// Adds to each lane the products of its two signed 16-bit integers.
static inline vi dot2(vi sum, vi a, vi b) {
    const int16x8_t u = (int16x8_t)a, v = (int16x8_t)b;
    const int32x4_t low = vmull_s16(vget_low_s16(u), vget_low_s16(v)), high = vmull_high_s16(u, v);
    return sum + (vi)vpaddq_s32(low, high);
}
// The lanes of a, then those of b as 16 bits, which they must fit.
static inline vi pack_pairs(vi a, vi b) { return (vi)vqmovn_high_s32(vqmovn_s32((int32x4_t)a), (int32x4_t)b); }

#elif defined(__AVX2__)
#if defined(RADIXRT_AVX512)
typedef __m512i wide_int;
typedef __m512 wide_float;
#define RADIXRT_SIMD(name) _mm512_##name
#else
typedef __m256i wide_int;
typedef __m256 wide_float;
#define RADIXRT_SIMD(name) _mm256_##name
#endif

// VL float16 numbers.
static inline vf halves(const uint8_t *at) {
#if defined(RADIXRT_AVX512)
    return (vf)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)at));
#else
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#endif
}

// x again and again.
static inline vb everywhere(uint32_t x) { return (vb)RADIXRT_SIMD(set1_epi32)((int)x); }
#if defined(RADIXRT_AVX512)
static inline vb everywhere(uint64_t x) { return (vb)_mm512_set1_epi64((int64_t)x); }
#else
static inline vb everywhere(uint64_t x) { return (vb)_mm256_set1_epi64x((int64_t)x); }
#endif

#if (defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)) || (!defined(RADIXRT_AVX512) && defined(__AVXVNNI__))
#define RADIXRT_DOTS 1
// Adds to each lane the products of four unsigned bytes with four signed ones.
static inline vi dot4(vi sum, vb q, vb x) {
#if defined(RADIXRT_AVX512)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)q, (__m512i)x);
#else
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)q, (__m256i)x);
#endif
}
// Adds to each lane the products of its two signed 16-bit integers.
static inline vi dot2(vi sum, vi a, vi b) {
#if defined(RADIXRT_AVX512)
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
    return (vi)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#endif
}
#else
static inline vi dot2(vi sum, vi a, vi b) { return sum + (vi)RADIXRT_SIMD(madd_epi16)((wide_int)a, (wide_int)b); }
#endif

// The lanes of a and b as 16 bits, which they must fit: of each 128 bits those of a, then those of b.
static inline vi pack_pairs(vi a, vi b) { return (vi)RADIXRT_SIMD(packs_epi32)((wide_int)a, (wide_int)b); }
#endif

#if defined(RADIXRT_BYTES)
// Sums are made in the order in which they are written: the compiler would else add them up as a tree, for which there are
// too few registers.
template <class V> static inline void keep_order(V &sum) {
#if defined(__x86_64__)
    asm("" : "+v"(sum));
#endif
}

// What the compiler knows of a pointer's target is not used for what is read through it from here on.
template <class T> static inline void forget(const T *&pointer) { asm volatile("" : "+r"(pointer)); }

// Running sums of q x, a lane each: eight times four products of weights below 16. Those of dot products begin at `start`.
struct SmallSums {
#if defined(RADIXRT_DOTS)
    vi sum;
    static inline SmallSums begin(vi start) { return {start}; }
    inline void add(vb q, vb x) { sum = dot4(sum, q, x); }
#else
    vi sum;  // two sums of 16 bits in a lane
    static inline SmallSums begin(vi) { return {vi{}}; }
    inline void add(vb q, vb x) {
        const wide_int pairs = RADIXRT_SIMD(maddubs_epi16)((wide_int)q, (wide_int)x);
        sum = (vi)RADIXRT_SIMD(add_epi16)((wide_int)sum, pairs);
        keep_order(sum);
    }
#endif
};

// Weights of 8 bits in the form in which they are multiplied, and what is then missing from a sum: BIAS * sum x.
struct ByteWeights {
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
    static constexpr int32_t BIAS = 128;
    vb q;  // q - 128, signed
    static inline ByteWeights of(vb q) { return {q ^ 128}; }
    inline vi dot(vi sum, vb x) const { return dot4(sum, q, x); }
#elif defined(__ARM_FEATURE_DOTPROD)
    static constexpr int32_t BIAS = 0;
    vb q;
    static inline ByteWeights of(vb q) { return {q}; }
    inline vi dot(vi sum, vb x) const { return (vi)vusdotq_s32((int32x4_t)sum, (uint8x16_t)q, (int8x16_t)x); }
#elif defined(RADIXRT_DOTS)
    static constexpr int32_t BIAS = 0;
    vb q;
    static inline ByteWeights of(vb q) { return {q}; }
    inline vi dot(vi sum, vb x) const { return dot4(sum, q, x); }
#else
    static constexpr int32_t BIAS = 128;
    wide_int magnitude, sign;  // of q - 128: products of pairs fit 16 bits then (2 * 128 * 127 < 2^15)
    static inline ByteWeights of(vb q) {
        const wide_int w = (wide_int)(q ^ 128);
        return {RADIXRT_SIMD(abs_epi8)(w), w};
    }
    inline vi dot(vi sum, vb x) const {
#if defined(RADIXRT_AVX512)
        const wide_int turned = _mm512_mask_sub_epi8((wide_int)x, _mm512_movepi8_mask(sign), wide_int{}, (wide_int)x);
#else
        const wide_int turned = _mm256_sign_epi8((wide_int)x, sign);
#endif
        const wide_int pairs = RADIXRT_SIMD(maddubs_epi16)(magnitude, turned);
        vi next = sum + (vi)RADIXRT_SIMD(madd_epi16)(pairs, RADIXRT_SIMD(set1_epi16)(1));
        keep_order(next);
        return next;
    }
#endif
};
#endif
