// Products of a few rows with a weight matrix, which is read once: at that width, memory is the limit.
//
// Three forms of a weight [outputs, inputs]:
//   16  bfloat16, as it is.
//   4, 8  unsigned 4- or 8-bit integers in groups of 32 inputs: w = scale * q + shift, with a float16 scale and shift a
//       group. ggml's Q4_0, Q4_1 and Q8_0 blocks fit exactly. Rows x are made 8-bit integers in the same groups
//       (scale: the group's largest magnitude / 127), so that
//           sum w x = x_scale * (scale * sum q x_q  +  shift * sum x_q)        with integer sums.
// Layout of 4 and 8: tiles of 16 outputs; in a tile, a group after the other: 16 scales, 16 shifts, then the integers as
// lines of 64 bytes: byte 4 * o + b of line i belongs to output o, input 4 * i + b. With 4 bits there are four such lines:
// line i holds that of 8-bit line i in its low halves, and that of line i + 4 in its high halves.
#pragma once
#include "vec.h"

constexpr int64_t GROUP = 32, TILE = 16;
constexpr int64_t ROWS = 8;  // rows that are taken through a tile together

struct Linear {
    int64_t bits, outputs, inputs;
    const void *weight;
    const float *bias;  // or null
};

// Rows made ready for products: as bfloat16, or as 8-bit groups. Sizes are for `inputs` columns.
struct Rows {
    bf16 *half;
    int8_t *bytes;
    float *scales, *sums;  // [rows, inputs / GROUP]: the scale, and scale * sum of the group's integers
};

static inline int64_t group_bytes(int64_t bits) { return 4 * TILE + TILE * GROUP * bits / 8; }

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

// y[r][o] for R rows and the 16 outputs of one tile.
template <int BITS, int R>
static inline void tile_product(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, float (*y)[TILE]) {
    constexpr int64_t SIZE = 4 * TILE + TILE * GROUP * BITS / 8;
    f16x acc[R];
    for (int r = 0; r < R; r++) acc[r] = f16x{};
    const int8_t *bytes = x.bytes + row * groups * GROUP;
    const float *scales = x.scales + row * groups, *sums = x.sums + row * groups;
    for (int64_t g = 0; g < groups; g++, tile += SIZE) {
        for (int64_t i = 0; i < SIZE; i += 64) __builtin_prefetch(tile + i + 2048);
        const f16x scale = halves(tile), shift = halves(tile + 2 * TILE);
        b64x q[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (BITS == 8)
                q[i] = load<b64x>(tile + 4 * TILE + 64 * i);
            else if (i < 4)
                q[i] = load<b64x>(tile + 4 * TILE + 64 * i) & 15;
            else
                q[i] = (b64x)((u16x)load<b64x>(tile + 4 * TILE + 64 * (i - 4)) >> 4) & 15;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            i16x even = i16x{}, odd = i16x{};
            const int8_t *group = bytes + (r * groups + g) * GROUP;
#pragma GCC unroll 4
            for (int i = 0; i < 8; i += 2) {
                even = dot4(even, q[i], load<uint32_t>(group + 4 * i));
                odd = dot4(odd, q[i + 1], load<uint32_t>(group + 4 * i + 4));
            }
            acc[r] += scale * scales[r * groups + g] * __builtin_convertvector(even + odd, f16x);
            acc[r] += shift * sums[r * groups + g];
        }
    }
    for (int r = 0; r < R; r++) store(y[r], acc[r]);
}

template <int BITS>
static void tile_products(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, int64_t rows,
                          float (*y)[TILE]) {
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) tile_product<BITS, 8>(tile, groups, x, row + r, y + r);
    for (; r + 4 <= rows; r += 4) tile_product<BITS, 4>(tile, groups, x, row + r, y + r);
    for (; r + 2 <= rows; r += 2) tile_product<BITS, 2>(tile, groups, x, row + r, y + r);
    for (; r < rows; r++) tile_product<BITS, 1>(tile, groups, x, row + r, y + r);
}
#else
static inline float half1(const uint8_t *at) {
    const uint32_t bits = load<uint16_t>(at), shifted = (bits & 0x7fff) << 13;
    const float x = load<float>(&shifted) * 5.192296858534828e33f;
    return bits & 0x8000 ? -x : x;
}

// The same for any CPU, as the layout reads.
template <int BITS>
static void tile_products(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, int64_t rows,
                          float (*y)[TILE]) {
    memset(y, 0, rows * TILE * sizeof(float));
    for (int64_t g = 0; g < groups; g++, tile += 4 * TILE + TILE * GROUP * BITS / 8) {
        uint8_t q[TILE * GROUP];
        for (int64_t i = 0; i < TILE * GROUP; i++) {
            const uint8_t *lines = tile + 4 * TILE;
            q[i] = BITS == 8 ? lines[i] : i < TILE * GROUP / 2 ? lines[i] & 15 : lines[i - TILE * GROUP / 2] >> 4;
        }
        for (int64_t r = 0; r < rows; r++) {
            const int8_t *group = x.bytes + ((row + r) * groups + g) * GROUP;
            const float scale = x.scales[(row + r) * groups + g], sum = x.sums[(row + r) * groups + g];
            int32_t dots[TILE] = {};
            for (int64_t i = 0; i < GROUP / 4; i++)
                for (int64_t o = 0; o < TILE; o++)
                    for (int64_t b = 0; b < 4; b++) dots[o] += q[4 * TILE * i + 4 * o + b] * group[4 * i + b];
            for (int64_t o = 0; o < TILE; o++)
                y[r][o] += half1(tile + 2 * o) * scale * dots[o] + half1(tile + 2 * TILE + 2 * o) * sum;
        }
    }
}
#endif

// R rows times O outputs of a bfloat16 weight.
template <int R, int O>
static inline void half_product(const bf16 *weight, int64_t inputs, const bf16 *x, float (*y)[TILE]) {
    vf acc[R][O];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) acc[r][o] = vf{};
    int64_t k = 0;
#if defined(RADIXRT_BF16)
    for (; k + 32 <= inputs; k += 32) {
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) {
            const __m512bh w = (__m512bh)_mm512_loadu_si512(weight + o * inputs + k);
            __builtin_prefetch(weight + o * inputs + k + 1024);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                acc[r][o] = (vf)_mm512_dpbf16_ps((__m512)acc[r][o], (__m512bh)_mm512_loadu_si512(x + r * inputs + k), w);
        }
    }
#endif
    for (; k + VL <= inputs; k += VL)
#pragma GCC unroll 8
        for (int o = 0; o < O; o++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r][o] += widen(weight + o * inputs + k) * widen(x + r * inputs + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) {
            y[r][o] = sum(acc[r][o]);
            for (int64_t i = k; i < inputs; i++) y[r][o] += wide(weight[o * inputs + i]) * wide(x[r * inputs + i]);
        }
}

template <int O>
static inline void half_outputs(const bf16 *weight, int64_t inputs, const bf16 *x, int64_t rows, float (*y)[TILE]) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) half_product<4, O>(weight, inputs, x + r * inputs, y + r);
    for (; r < rows; r++) half_product<1, O>(weight, inputs, x + r * inputs, y + r);
}

// The products of ROWS rows at most, from `row`, with the 16 outputs of a tile: y[r][o], bias not yet added.
static inline void products(const Linear &w, int64_t tile, const Rows &x, int64_t row, int64_t rows, float (*y)[TILE]) {
    if (w.bits == 16) {
        const bf16 *weight = (const bf16 *)w.weight + tile * TILE * w.inputs, *from = x.half + row * w.inputs;
        const int64_t outputs = least(TILE, w.outputs - tile * TILE);
        int64_t o = 0;
        for (; o + 4 <= outputs; o += 4)
            half_outputs<4>(weight + o * w.inputs, w.inputs, from, rows, (float (*)[TILE])(&y[0][o]));
        for (; o < outputs; o++) half_outputs<1>(weight + o * w.inputs, w.inputs, from, rows, (float (*)[TILE])(&y[0][o]));
        return;
    }
    const int64_t groups = w.inputs / GROUP;
    const uint8_t *from = (const uint8_t *)w.weight + tile * groups * group_bytes(w.bits);
    if (w.bits == 4)
        tile_products<4>(from, groups, x, row, rows, y);
    else
        tile_products<8>(from, groups, x, row, rows, y);
}

static inline int64_t tile_bytes(const Linear &w) {
    return w.bits == 16 ? 2 * TILE * w.inputs : w.inputs / GROUP * group_bytes(w.bits);
}
static inline int64_t tiles(const Linear &w) { return (w.outputs + TILE - 1) / TILE; }

// Numbers at .. at + count of a row of `inputs` made ready for products with weights of `bits`; with 4 and 8 bits they are
// whole groups.
static void prepare(const float *from, int64_t inputs, int64_t bits, const Rows &x, int64_t row, int64_t at,
                    int64_t count) {
    if (bits == 16) {
        bf16 *to = x.half + row * inputs + at;
        int64_t i = 0;
        for (; i + VL <= count; i += VL) narrow(to + i, load<vf>(from + i));
        for (; i < count; i++) narrow1(to + i, from[i]);
        return;
    }
    const int64_t groups = inputs / GROUP;
    for (int64_t g = at / GROUP; g < (at + count) / GROUP; g++) {
        const float *part = from + g * GROUP - at;
        vf high = vf{};
        for (int i = 0; i < GROUP; i += VL) {
            vf v = load<vf>(part + i);
            high = larger(larger(v, -v), high);
        }
        const float largest_magnitude = largest(high), scale = largest_magnitude / 127;
        // A NaN or an infinity among them: the scale says so, and every product of the row with it.
        const float inverse = largest_magnitude > 0 ? 127 / largest_magnitude : 0;
        int8_t *to = x.bytes + row * inputs + g * GROUP;
        vi total = vi{};
        vf spoiled = vf{};
        for (int i = 0; i < GROUP; i += VL) {
            spoiled += load<vf>(part + i) * 0.0f;
            const vf magic = all(12582912.0f);  // rounds to an integer
            vi n = (vi)(load<vf>(part + i) * inverse + magic) - (vi)magic;
            total += n;
            typedef int8_t vb __attribute__((vector_size(VL)));
            store(to + i, __builtin_convertvector(n, vb));
        }
        int32_t sum_of_integers = 0;
        for (int i = 0; i < VL; i++) sum_of_integers += total[i];
        const float nothing = sum(spoiled);  // or NaN
        x.scales[row * groups + g] = scale + nothing;
        x.sums[row * groups + g] = scale * sum_of_integers + nothing;
    }
}

static inline void prepare(const float *from, int64_t inputs, int64_t bits, const Rows &x, int64_t row) {
    prepare(from, inputs, bits, x, row, 0, inputs);
}
