// Vectors that any compiler of the GCC family lowers to what the CPU has: VL floats each.
//
// The library is compiled for the machine that runs it (see build.py), so what the CPU can do is known here, at compile
// time. What is written for one instruction set is little: products of pairs and of bytes, conversions
// of float16, sums over a vector, and the transposition of a block.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define RADIXRT_AVX512 1
constexpr int VL = 16;
#elif defined(__AVX__)
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif
#if defined(RADIXRT_AVX512) && defined(__AVX512BF16__)
#define RADIXRT_BF16 1
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

// Compiled once, not once for every call with other constants: the library is compiled while somebody waits.
#if defined(__clang__)
#define RADIXRT_ONCE __attribute__((noinline))
#else
#define RADIXRT_ONCE __attribute__((noinline, noclone))
#endif

// The compiler's flags are for a short wait (build.py); here its best pays.
#if defined(__clang__)
#define RADIXRT_CLOSELY
#else
#define RADIXRT_CLOSELY __attribute__((optimize("O3")))
#endif
#define RADIXRT_INSIDE static inline __attribute__((always_inline))

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

typedef uint16_t bf16;  // the upper half of a float32
struct f16 {            // IEEE 754 binary16
    uint16_t bits;
};

constexpr float NEGATIVE_INFINITY = -__builtin_inff();

template <class V> static inline V load(const void *from) {
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}
template <class V> static inline void store(void *to, V v) { memcpy(to, &v, sizeof v); }

static inline vf all(float x) { return x - vf{}; }
// 0, 1, 2, ...
static inline vi lanes() {
    vi v;
    for (int i = 0; i < VL; i++) v[i] = i;
    return v;
}
static inline vf larger(vf a, vf b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Float32 of VL elements, and back with rounding to nearest even (a NaN stays one).
static inline vf widen(const float *x) { return load<vf>(x); }
static inline vf widen(const bf16 *x) {
#if defined(__AVX2__) && !defined(RADIXRT_AVX512)  // GCC widens the two halves of it apart
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16);
#else
    return (vf)(__builtin_convertvector(load<vh>(x), vu) << 16);
#endif
}
static inline void narrow(float *to, vf x) { store(to, x); }
static inline void narrow(bf16 *to, vf x) {
#if defined(RADIXRT_BF16)
    store(to, _mm512_cvtneps_pbh((__m512)x));
#else
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = x == x ? rounded : (bits >> 16) | 0x40;
    store(to, __builtin_convertvector(rounded, vh));
#endif
}
static inline float wide(float x) { return x; }
static inline float wide(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline void narrow1(float *to, float x) { *to = x; }
static inline void narrow1(bf16 *to, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    *to = x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
}

// Float16 likewise, in plain integer arithmetic: magnitudes are moved to their place in a float32 and the exponent is set
// right by a multiplication, which is exact for subnormal numbers too.
static inline vf widen_f16(vu h) {
    const vu sign = (h & 0x8000) << 16, magnitude = (h & 0x7fff) << 13;
    const vu bits = (vu)((vf)magnitude * 0x1p112f);
    return (vf)((magnitude >= (0x7c00u << 13) ? bits | 0x7f800000u : bits) | sign);
}
static inline vu narrow_f16(vf x) {
    const vu sign = ((vu)x >> 16) & 0x8000, bits = (vu)x & 0x7fffffffu;
    const vu normal = (bits + 0xfff + ((bits >> 13) & 1) - (112u << 23)) >> 13;
    const vu subnormal = (vu)((vf)bits + 0.5f) - 0x3f000000u;  // the addition rounds to units of 2^-24
    vu half = bits < 0x38800000u ? subnormal : normal;
    half = bits >= 0x477ff000u ? vu{} + 0x7c00u : half;
    half = bits > 0x7f800000u ? vu{} + 0x7e00u : half;
    return half | sign;
}
#if defined(RADIXRT_AVX512)
static inline vf widen(const f16 *x) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }
static inline void narrow(f16 *to, vf x) { _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, 0)); }
#elif defined(__AVX2__) && defined(__F16C__)
static inline vf widen(const f16 *x) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }
static inline void narrow(f16 *to, vf x) { _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, 0)); }
#elif defined(__aarch64__)
static inline vf widen(const f16 *x) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits))); }
static inline void narrow(f16 *to, vf x) { vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x))); }
#else
static inline vf widen(const f16 *x) { return widen_f16(__builtin_convertvector(load<vh>(x), vu)); }
static inline void narrow(f16 *to, vf x) { store(to, __builtin_convertvector(narrow_f16(x), vh)); }
#endif
static inline float wide(f16 x) { return widen_f16(vu{} + x.bits)[0]; }
static inline void narrow1(f16 *to, float x) { to->bits = (uint16_t)narrow_f16(all(x))[0]; }

// The nearest integers, ties to even; |x| < 2^22.
static inline vf nearest_even(vf x) { return (x + 12582912.0f) - 12582912.0f; }

#if defined(RADIXRT_AVX512)
static inline float sum(vf v) { return _mm512_reduce_add_ps((__m512)v); }
static inline float largest(vf v) { return _mm512_reduce_max_ps((__m512)v); }
static inline int32_t sum(vi v) { return _mm512_reduce_add_epi32((__m512i)v); }
static inline int32_t largest(vi v) { return _mm512_reduce_max_epi32((__m512i)v); }
#elif defined(__AVX2__)
// Elements n places away: three of them bring all together.
template <int n, class V> static inline V away(V v) {
    if (n == 4) return (V)_mm256_permute2x128_si256((__m256i)v, (__m256i)v, 1);
    return (V)_mm256_shuffle_epi32((__m256i)v, n == 2 ? 0x4e : 0xb1);
}
static inline float sum(vf v) {
    v += away<4>(v);
    v += away<2>(v);
    return (v + away<1>(v))[0];
}
static inline int32_t sum(vi v) {
    v += away<4>(v);
    v += away<2>(v);
    return (v + away<1>(v))[0];
}
static inline float largest(vf v) {
    v = (vf)_mm256_max_ps((__m256)v, (__m256)away<4>(v));
    v = (vf)_mm256_max_ps((__m256)v, (__m256)away<2>(v));
    return ((vf)_mm256_max_ps((__m256)v, (__m256)away<1>(v)))[0];
}
static inline int32_t largest(vi v) {
    v = (vi)_mm256_max_epi32((__m256i)v, (__m256i)away<4>(v));
    v = (vi)_mm256_max_epi32((__m256i)v, (__m256i)away<2>(v));
    return ((vi)_mm256_max_epi32((__m256i)v, (__m256i)away<1>(v)))[0];
}
#else
static inline float sum(vf v) {
    float total = 0;
    for (int i = 0; i < VL; i++) total += v[i];
    return total;
}
static inline int32_t sum(vi v) {
    int32_t total = 0;
    for (int i = 0; i < VL; i++) total += v[i];
    return total;
}
static inline int32_t largest(vi v) {
    int32_t best = v[0];
    for (int i = 1; i < VL; i++) best = v[i] > best ? v[i] : best;
    return best;
}
static inline float largest(vf v) {
    float best = v[0];
    for (int i = 1; i < VL; i++) best = v[i] > best ? v[i] : best;
    return best;
}
#endif

// The largest magnitude of x [count], as its bits: 0x7f800000 or more where one is not finite.
static inline int32_t largest_bits(const float *x, int64_t count) {
    vi highest = vi{};  // magnitudes compare as their bits do, and what is not finite is above all that is
    int64_t i = 0;
    for (; i + VL <= count; i += VL) {
        const vi magnitude = load<vi>(x + i) & 0x7fffffff;
        highest = magnitude > highest ? magnitude : highest;
    }
    int32_t most = largest(highest);
    for (; i < count; i++) {
        const int32_t magnitude = load<int32_t>(x + i) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

// e^x to about 2e-7, relative: 2^n times a polynomial for 2^f, -1/2 <= f <= 1/2. 0 where it would be below 2^-125 (or is
// all but 0); very large, or infinite, beyond 2^127; NaN for NaN.
static inline vf exponential(vf x) {
    vf scaled = x * 1.44269504088896341f;
#if defined(RADIXRT_AVX512)
    scaled = scaled < -150.0f ? all(-150.0f) : scaled;
    const __m512 n = _mm512_roundscale_ps((__m512)scaled, 0);
    const vf f = scaled - (vf)n;
#else
    const vf magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    scaled = scaled > 127.0f ? all(127.0f) : scaled;
    const vf shifted = scaled + magic, f = scaled - (shifted - magic);
#endif
    vf p = all(1.535336188e-4f);
    p = p * f + 1.339887440e-3f;
    p = p * f + 9.618437357e-3f;
    p = p * f + 5.550332548e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472028e-1f;
    p = p * f + 1.0f;
#if defined(RADIXRT_AVX512)
    return (vf)_mm512_scalef_ps((__m512)p, n);
#else
    const vi n = ((vi)shifted - (vi)magic) << 23;
    return scaled < -125.0f ? vf{} : (vf)((vi)p + n);
#endif
}
static inline float exponential1(float x) { return exponential(all(x))[0]; }
