// The lines of a key-value pool: one head's key or value of one token, in the pool's type, and how they become operands of
// product.h.
//
// A float32 or float16 line is `width` numbers, widened to float32 where they are multiplied. So is a bfloat16 line, unless
// the CPU multiplies pairs of them. An int8 line is `width` signed bytes q and a float32 scale: x = scale * q. Its bytes
// are multiplied as pairs of 16-bit integers, which every CPU does at twice the rate of float32 or better: the other
// factor, a query or the weights of a block of values, is rounded to 16 bits, and the sums are exact:
// 127 * 32767 * MOST_WIDTH < 2^31.
#pragma once
#include "product.h"

constexpr int64_t BLOCK = 64;        // keys at a time
constexpr int64_t MOST_WIDTH = 256;  // of a head
constexpr float UNITS_16 = 32767;    // magnitude of the largest factor

enum PoolType : int64_t { FLOAT32, BFLOAT16, FLOAT16, INT8 };

// max|x| of x [count]; NaN where one of them is not finite.
static inline float largest_magnitude(const float *x, int64_t count) {
    const int32_t bits = largest_bits(x, count);
    return bits < 0x7f800000 ? load<float>(&bits) : __builtin_nanf("");
}

// Each kind of lines has: E, the elements; STEP, how many of them make one 32-bit word of a product; bytes(width) of a
// line; words(line, w), the VL words from word w on, and word(line, w), one of them; put(x, width, line), which stores the
// float32s x [width].
template <class T> struct WideLines {
    typedef T E;
    typedef Floats Mac;
    static constexpr int STEP = Mac::STEP;
    static inline int64_t bytes(int64_t width) { return width * (int64_t)sizeof(E); }
    static inline vu words(const char *line, int64_t w) { return (vu)widen((const E *)line + w); }
    static inline uint32_t word(const char *line, int64_t w) {
        const float x = wide(((const E *)line)[w]);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        return bits;
    }
    static void put(const float *x, int64_t width, char *line) {
        E *const to = (E *)line;
        int64_t e = 0;
        for (; e + VL <= width; e += VL) narrow(to + e, load<vf>(x + e));
        for (; e < width; e++) narrow1(to + e, x[e]);
    }
};

#if defined(RADIXRT_BF16)
struct PairLines {
    typedef bf16 E;
    typedef Pairs Mac;
    static constexpr int STEP = Mac::STEP;
    static inline int64_t bytes(int64_t width) { return width * (int64_t)sizeof(E); }
    static inline vu words(const char *line, int64_t w) { return load<vu>(line + 4 * w); }
    static inline uint32_t word(const char *line, int64_t w) { return load<uint32_t>(line + 4 * w); }
    static void put(const float *x, int64_t width, char *line) { WideLines<bf16>::put(x, width, line); }
};
typedef PairLines HalfLines;
#else
typedef WideLines<bf16> HalfLines;
#endif

struct ByteLines {
    typedef int8_t E;
    typedef Ints Mac;
    static constexpr int STEP = Mac::STEP;
    typedef int8_t Bytes __attribute__((vector_size(2 * VL)));
    typedef int16_t Shorts __attribute__((vector_size(4 * VL)));
    static inline int64_t bytes(int64_t width) { return width + (int64_t)sizeof(float); }
    static inline vu words(const char *line, int64_t w) { return widened(load<Bytes>(line + 2 * w)); }
    static inline uint32_t word(const char *line, int64_t w) { return word(line[2 * w], line[2 * w + 1]); }
    static inline uint32_t word(int8_t first, int8_t second) {
        return (uint32_t)(uint16_t)(int16_t)first | (uint32_t)(uint16_t)(int16_t)second << 16;
    }
    static inline vu widened(Bytes x) {
#if defined(RADIXRT_AVX512)
        return (vu)_mm512_cvtepi8_epi16((__m256i)x);
#elif defined(__AVX2__)
        return (vu)_mm256_cvtepi8_epi16((__m128i)x);
#else
        return (vu)__builtin_convertvector(x, Shorts);
#endif
    }
    static inline float scale(const char *line, int64_t width) { return load<float>(line + width); }
    // scale = max|x| / 127, and the nearest integers, ties to even. Of what is not finite the scale is NaN.
    static void put(const float *x, int64_t width, char *line) {
        float scale = largest_magnitude(x, width) / 127.0f;
        if (scale < 0x1p-126f) scale = 0;
        memcpy(line + width, &scale, sizeof scale);
        if (!(scale > 0)) {
            memset(line, 0, width);
            return;
        }
        typedef int8_t vb __attribute__((vector_size(VL)));
        int64_t e = 0;
        for (; e + VL <= width; e += VL) {
            const vf q = nearest_even(load<vf>(x + e) / scale);
            store(line + e, __builtin_convertvector(__builtin_convertvector(q, vi), vb));
        }
        for (; e < width; e++) line[e] = (int8_t)nearest_even(all(x[e] / scale))[0];
    }
};

// Rounds x [count], of which `most` is the largest magnitude, to 16-bit integers; returns their unit. 0 and NaN make zeros.
static inline float round_to_16(const float *x, int64_t count, float most, int16_t *to) {
    if (!(most > 0)) {
        memset(to, 0, count * sizeof(int16_t));
        return most;
    }
    const float unit = most / UNITS_16;
    typedef int16_t vs __attribute__((vector_size(2 * VL)));
    int64_t e = 0;
    for (; e + VL <= count; e += VL) {
        const vf q = nearest_even(load<vf>(x + e) / unit);
        store(to + e, __builtin_convertvector(__builtin_convertvector(q, vi), vs));
    }
    for (; e < count; e++) to[e] = (int16_t)nearest_even(all(x[e] / unit))[0];
    return unit;
}

// A query as words of a product; returns what scores are to be multiplied by.
struct Query {
    static inline float words(Floats, const float *q, int64_t width, uint32_t *to) {
        memcpy(to, q, width * sizeof(float));
        return 1;
    }
#if defined(RADIXRT_BF16)
    static inline float words(Pairs, const float *q, int64_t width, uint32_t *to) {
        WideLines<bf16>::put(q, width, (char *)to);
        return 1;
    }
#endif
    static inline float words(Ints, const float *q, int64_t width, uint32_t *to) {
        const float unit = round_to_16(q, width, largest_magnitude(q, width), (int16_t *)to);
        return unit == 0 ? 1 : unit;  // of a query that is zero, all scores are
    }
};

// VL lines of VL words -> their columns, at to, to + stride, ..
RADIXRT_INSIDE void transpose(vu *x, uint32_t *to, int64_t stride) {
#if defined(RADIXRT_AVX512)
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = (__m512i)x[i];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88));
        _mm512_storeu_si512(to + (4 + i) * stride, _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0x88));
        _mm512_storeu_si512(to + (8 + i) * stride, _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd));
        _mm512_storeu_si512(to + (12 + i) * stride, _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0xdd));
    }
#elif defined(__AVX2__)
    __m256i a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32((__m256i)x[2 * i], (__m256i)x[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32((__m256i)x[2 * i], (__m256i)x[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        store(to + i * stride, (vu)_mm256_permute2x128_si256(b[i], b[4 + i], 0x20));
        store(to + (4 + i) * stride, (vu)_mm256_permute2x128_si256(b[i], b[4 + i], 0x31));
    }
#else
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < VL; j++) to[j * stride + i] = x[i][j];
#endif
}

// Lines that will be fetched next: asked of memory while the ones at hand are worked on.
struct Ahead {
    const int32_t *slots;
    int64_t count;
    inline void lines(const char *from, int64_t bytes, int64_t first, int64_t end) const {
        for (int64_t i = first; i < least(end, count); i++) {
            const char *line = from + slots[i] * bytes;
            for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(line + b, 0, 2);
        }
    }
};

// Keys of `count` slots as columns: to [words, BLOCK]; columns up to the next multiple of VL are zero.
template <class Lines>
RADIXRT_CLOSELY RADIXRT_ONCE static void fetch_keys(const char *keys, int64_t width, const int32_t *slots, int64_t count,
                                                    uint32_t *to, const Ahead &ahead) {
    const int64_t words = width / Lines::STEP, bytes = Lines::bytes(width), whole = words / VL * VL;
    for (int64_t done = 0; done < count; done += VL) {
        ahead.lines(keys, bytes, done, done + VL);
        const char *lines[VL];
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) lines[i] = done + i < count ? keys + slots[done + i] * bytes : nullptr;
        for (int64_t w = 0; w < whole; w += VL) {
            vu part[VL];
#pragma GCC unroll 16
            for (int i = 0; i < VL; i++) part[i] = lines[i] ? Lines::words(lines[i], w) : vu{};
            transpose(part, to + w * BLOCK + done, BLOCK);
        }
        for (int64_t w = whole; w < words; w++)
            for (int i = 0; i < VL; i++) to[w * BLOCK + done + i] = lines[i] ? Lines::word(lines[i], w) : 0;
    }
    ahead.lines(keys, bytes, round_up(count, VL), BLOCK);
}

// Which of two lines of 32 elements (those of the second counted from 32) come to lie where when they take turns.
struct Turns {
    uint16_t low[32], high[32];
    constexpr Turns() : low(), high() {
        for (int i = 0; i < 32; i++) low[i] = i / 2 + i % 2 * 32, high[i] = 16 + i / 2 + i % 2 * 32;
    }
};

// Words of a product over keys, VL of them or one, from a value's elements d and those of the next value.
template <class E> struct ValueWords {
    static inline vu words(const char *value, const char *, int64_t d) { return WideLines<E>::words(value, d); }
    static inline uint32_t word(const char *value, const char *, int64_t d) { return WideLines<E>::word(value, d); }
};
#if defined(RADIXRT_BF16)
template <> struct ValueWords<bf16> {
    static inline vu words(const char *value, const char *second, int64_t d) {
        return __builtin_convertvector(load<vh>(value + 2 * d), vu) |
               (__builtin_convertvector(load<vh>(second + 2 * d), vu) << 16);
    }
    static inline uint32_t word(const char *value, const char *second, int64_t d) {
        return (uint32_t)load<bf16>(value + 2 * d) | (uint32_t)load<bf16>(second + 2 * d) << 16;
    }
};
#endif
template <> struct ValueWords<int8_t> {
    static inline vu words(const char *value, const char *second, int64_t d) {
#if defined(RADIXRT_AVX512)
        const __m128i a = _mm_loadu_si128((const __m128i *)(value + d)), b = _mm_loadu_si128((const __m128i *)(second + d));
        return (vu)_mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
#elif defined(__AVX2__)
        const __m128i a = _mm_loadl_epi64((const __m128i *)(value + d)), b = _mm_loadl_epi64((const __m128i *)(second + d));
        return (vu)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
#else
        typedef int8_t vb __attribute__((vector_size(VL)));
        const vi a = __builtin_convertvector(load<vb>(value + d), vi), b = __builtin_convertvector(load<vb>(second + d), vi);
        return ((vu)a & 0xffff) | (vu)b << 16;
#endif
    }
    static inline uint32_t word(const char *value, const char *second, int64_t d) {
        return ByteLines::word(value[d], second[d]);
    }
};

// Values of `count` slots: to [ceil(count / STEP), wide]; a missing second of a pair and what lies beyond width are 0.
template <class Lines>
RADIXRT_CLOSELY RADIXRT_ONCE static void fetch_values(const char *values, int64_t width, int64_t wide,
                                                      const int32_t *slots, int64_t count, uint32_t *to,
                                                      const Ahead &ahead) {
    typedef ValueWords<typename Lines::E> Words;
    static const char nothing[MOST_WIDTH * sizeof(float)] = {};
    const int64_t bytes = Lines::bytes(width);
    for (int64_t k = 0; k < count; k += Lines::STEP, to += wide) {
        ahead.lines(values, bytes, k, k + Lines::STEP);
        const char *value = values + slots[k] * bytes;
        const char *second = Lines::STEP == 2 && k + 1 < count ? values + slots[k + 1] * bytes : nothing;
        int64_t d = 0;
#if defined(RADIXRT_BF16)
        if (Lines::STEP == 2 && sizeof(typename Lines::E) == 2) {  // elements of the two in turn, 32 of each at once
            alignas(64) static constexpr Turns turns;
            const __m512i low = _mm512_load_si512(turns.low), high = _mm512_load_si512(turns.high);
            for (; d + 2 * VL <= width; d += 2 * VL) {
                const __m512i a = _mm512_loadu_si512(value + 2 * d), b = _mm512_loadu_si512(second + 2 * d);
                _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, low, b));
                _mm512_storeu_si512(to + d + VL, _mm512_permutex2var_epi16(a, high, b));
            }
        }
#endif
        for (; d + VL <= width; d += VL) store(to + d, Words::words(value, second, d));
        for (; d < width; d++) to[d] = Words::word(value, second, d);
        for (; d < wide; d++) to[d] = 0;
    }
    ahead.lines(values, bytes, round_up(count, Lines::STEP), BLOCK);
}
