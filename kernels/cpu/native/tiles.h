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

// acc[o] += the sum over b < 4 of the unsigned q[4 * o + b] times the signed byte b of x.
static inline i16x dot4(i16x acc, b64x q, uint32_t x) {
#if defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)
    return (i16x)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)q, _mm512_set1_epi32((int)x));
#else
    // maddubs saturates at 16 bits: take the halves of q apart, whose products fit.
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1), xs = _mm256_set1_epi32((int)x);
    __m256i part[2], sum[2];
    memcpy(part, &q, 64);
    for (int i = 0; i < 2; i++) {
        __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(part[i], low), xs);
        __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(part[i], 4), low), xs);
        sum[i] = _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_slli_epi32(_mm256_madd_epi16(b, one), 4));
    }
    i16x added;
    memcpy(&added, sum, 64);
    return acc + added;
#endif
}
#endif
