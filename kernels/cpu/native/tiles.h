// Vectors of 16 lanes, one for each output of a tile, and the sums of byte products that integer weights are multiplied by.
#pragma once
#include "vec.h"

constexpr int64_t GROUP = 32, TILE = 16;

// A float16 number that is one: no NaN, no infinity.
static inline float half1(const void *at) {
    const uint32_t bits = load<uint16_t>(at), shifted = (bits & 0x7fff) << 13;
    const float x = load<float>(&shifted) * 5.192296858534828e33f;
    return bits & 0x8000 ? -x : x;
}

#if defined(__AVX2__)
typedef float f16x __attribute__((vector_size(64)));
typedef int32_t i16x __attribute__((vector_size(64)));
typedef uint32_t u16x __attribute__((vector_size(64)));
typedef uint16_t h16x __attribute__((vector_size(32)));
typedef uint8_t b64x __attribute__((vector_size(64)));

// 16 float16 numbers.
static inline f16x halves(const uint8_t *at) {
#if defined(RADIXRT_AVX512)
    return (f16x)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)at));
#else
    u16x bits = __builtin_convertvector(load<h16x>(at), u16x);
    u16x shifted = (bits & 0x7fff) << 13;  // 2^-112 times the number, subnormal ones included
    u16x scaled = (u16x)((f16x)shifted * 5.192296858534828e33f);
    return (f16x)(scaled | (bits & 0x8000) << 16);
#endif
}

#if !defined(RADIXRT_AVX512)
static inline i16x joined(__m256i low, __m256i high) {
    const __m256i part[2] = {low, high};
    i16x whole;
    memcpy(&whole, part, 64);
    return whole;
}
template <class V> static inline __m256i half_of(const V &v, int i) { return _mm256_loadu_si256((const __m256i *)&v + i); }

// Sums of four products; maddubs saturates at 16 bits: the halves of 8 bits are taken apart, and their products fit.
template <int BITS> static inline __m256i four_products(__m256i q, __m256i x) {
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    if (BITS == 4) return _mm256_madd_epi16(_mm256_maddubs_epi16(q, x), one);
    const __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(q, low), x);
    const __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(q, 4), low), x);
    return _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_slli_epi32(_mm256_madd_epi16(b, one), 4));
}
#endif

// x again and again.
static inline b64x everywhere(uint32_t x) {
#if defined(RADIXRT_AVX512)
    return (b64x)_mm512_set1_epi32((int)x);
#else
    return (b64x)joined(_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x));
#endif
}
static inline b64x everywhere(uint64_t x) {
#if defined(RADIXRT_AVX512)
    return (b64x)_mm512_set1_epi64((int64_t)x);
#else
    return (b64x)joined(_mm256_set1_epi64x((int64_t)x), _mm256_set1_epi64x((int64_t)x));
#endif
}

// acc[o] += the sum over b < 4 of byte 4 * o + b of q, unsigned and of BITS, times that of x, signed.
template <int BITS> static inline i16x dot4(i16x acc, b64x q, b64x x) {
#if defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)
    return (i16x)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)q, (__m512i)x);
#elif defined(RADIXRT_AVX512)
    const __m512i low = _mm512_set1_epi8(15), one = _mm512_set1_epi16(1);
    if (BITS == 4) return acc + (i16x)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)q, (__m512i)x), one);
    // maddubs saturates at 16 bits: the halves of 8 bits are taken apart, and their products fit.
    const __m512i a = _mm512_maddubs_epi16((__m512i)q & low, (__m512i)x);
    const __m512i b = _mm512_maddubs_epi16(_mm512_srli_epi16((__m512i)q, 4) & low, (__m512i)x);
    return acc + (i16x)_mm512_madd_epi16(a, one) + ((i16x)_mm512_madd_epi16(b, one) << 4);
#else
    return acc + joined(four_products<BITS>(half_of(q, 0), half_of(x, 0)), four_products<BITS>(half_of(q, 1), half_of(x, 1)));
#endif
}

// acc[o] += the products of the two 16-bit integers of lane o of a and of b.
static inline i16x dot2(i16x acc, i16x a, i16x b) {
#if defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)
    return (i16x)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(RADIXRT_AVX512)
    return acc + (i16x)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return acc + joined(_mm256_madd_epi16(half_of(a, 0), half_of(b, 0)), _mm256_madd_epi16(half_of(a, 1), half_of(b, 1)));
#endif
}

// The lanes of a and b as 16 bits, which they must fit: of each 128 bits those of a, then those of b.
static inline i16x pack_pairs(i16x a, i16x b) {
#if defined(RADIXRT_AVX512)
    return (i16x)_mm512_packs_epi32((__m512i)a, (__m512i)b);
#else
    return joined(_mm256_packs_epi32(half_of(a, 0), half_of(b, 0)), _mm256_packs_epi32(half_of(a, 1), half_of(b, 1)));
#endif
}
#endif
