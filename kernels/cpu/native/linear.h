// Products of rows with a weight matrix, a tile of 16 outputs at a time.
//
// Three forms of a weight [outputs, inputs]:
//   16  bfloat16, as it is. Rows are bfloat16 too where the CPU multiplies these, else float32.
//   8   unsigned integers in groups of 32 inputs: w = scale * q + shift, with a float16 scale and shift a group. ggml's
//       Q8_0 blocks fit exactly. Rows x are made 8-bit integers in the same groups (scale: the group's largest
//       magnitude / 127), so that
//           sum w x = x_scale * (scale * sum q x_q  +  shift * sum x_q)        with integer sums.
//       In a tile, a group after the other: 16 scales, 16 shifts, then the integers as lines of 64 bytes: byte 4 * o + b
//       of line i belongs to output o, input 4 * i + b.
//   4   the same of 4 bits, which windows.h multiplies.
#pragma once
#include "scratch.h"
#include "windows.h"

constexpr int64_t ROWS = 8;  // rows that are taken through a tile together
#if defined(RADIXRT_BF16)
typedef bf16 row_half;  // what rows are made for products with bfloat16 weights
constexpr int HALF_ROWS = 4, HALF_OUTPUTS = 4;  // a block of these whose sums fit the registers
#else
typedef float row_half;
constexpr int HALF_ROWS = VL == 16 ? 4 : 6, HALF_OUTPUTS = VL == 16 ? 4 : 2;
#endif
// Inputs of a row that are rounded by one scale for products with weights of `bits`; GROUP or more.
static inline int64_t span(int64_t bits) { return bits == 4 ? WINDOW : GROUP; }
constexpr int64_t EIGHT_BYTES = 4 * TILE + GROUP * TILE;  // of a group of 8 bits

struct Linear {
    int64_t bits, outputs, inputs;
    const void *weight;
    const float *bias;  // or null
};

// Rows made ready for products: as bfloat16 or float32, or as 8-bit groups. Sizes are for `inputs` columns.
struct Rows {
    row_half *half;
    int8_t *bytes;
    float *scales, *sums;  // [rows, inputs / GROUP]: the scale, and scale * sum of the group's integers (not with 4 bits)
    uint32_t *pairs;       // with 4 bits, where scales are of windows: the sums as windows.h has them
    uint64_t *starts;      // likewise
    // Lays them out for `count` rows of `inputs`.
    void lay_out(int64_t count, int64_t inputs, Pieces &memory) {
        const int64_t spans = count * ((inputs + GROUP - 1) / GROUP);
        half = memory.take<row_half>(count * inputs);
        bytes = memory.take<int8_t>(count * round_up(inputs, WINDOW));
        scales = memory.take<float>(spans);
        sums = memory.take<float>(spans);
        pairs = memory.take<uint32_t>(spans);
        starts = memory.take<uint64_t>(spans);
    }
};

// Bytes of a row of `inputs` made ready: with 4 bits its windows are whole.
static inline int64_t row_bytes(int64_t inputs, int64_t bits) { return bits == 4 ? round_up(inputs, WINDOW) : inputs; }

static inline int64_t tile_bytes(const Linear &w) {
    const int64_t eight = w.inputs / GROUP * EIGHT_BYTES;
    return w.bits == 16 ? 2 * TILE * w.inputs : w.bits == 8 ? eight : window_tile_bytes(w.inputs);
}
static inline int64_t tiles(const Linear &w) { return (w.outputs + TILE - 1) / TILE; }

#if defined(RADIXRT_BYTES)
// y[r * stride + o] for R rows and the 16 outputs of one tile.
template <int R>
RADIXRT_ONCE static void tile_product(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, float *y,
                                      int64_t stride) {
    constexpr int CHAINS = R < 4 || VL == 16 ? 2 : 1;  // sums of a row that do not wait for each other
    vf acc[PARTS][R];
    for (int p = 0; p < PARTS; p++)
        for (int r = 0; r < R; r++) acc[p][r] = vf{};
    const int8_t *bytes = x.bytes + row * groups * GROUP;
    const float *scales = x.scales + row * groups, *sums = x.sums + row * groups;
    const uint32_t *starts = x.pairs + row * groups;
    for (int64_t g = 0; g < groups; g++, tile += EIGHT_BYTES) {
        for (int64_t i = 0; i < EIGHT_BYTES; i += 64) __builtin_prefetch(tile + i + 2048);
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
            vi dots[R][CHAINS];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int c = 0; c < CHAINS; c++)
                    dots[r][c] = ByteWeights::BIAS && !c ? (vi)everywhere(starts[r * groups + g]) : vi{};
#pragma GCC unroll 8
            for (int i = 0; i < LINES; i++) {
                const ByteWeights q = ByteWeights::of(load<vb>(tile + 4 * TILE + LINE * i + 4 * VL * p));
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const vb xs = everywhere(load<uint32_t>(bytes + (r * groups + g) * GROUP + 4 * i));
                    dots[r][i % CHAINS] = q.dot(dots[r][i % CHAINS], xs);
                }
            }
            const vf scale = halves(tile + 2 * VL * p), shift = halves(tile + 2 * TILE + 2 * VL * p);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const vi dot = CHAINS == 2 ? dots[r][0] + dots[r][CHAINS - 1] : dots[r][0];
                acc[p][r] += scale * scales[r * groups + g] * __builtin_convertvector(dot, vf);
                acc[p][r] += shift * sums[r * groups + g];
            }
        }
    }
    for (int p = 0; p < PARTS; p++)
        for (int r = 0; r < R; r++) store(y + r * stride + VL * p, acc[p][r]);
}

static void tile_products(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, int64_t end, float *y,
                          int64_t stride) {
    for (; row + 8 <= end; row += 8, y += 8 * stride) tile_product<8>(tile, groups, x, row, y, stride);
    for (; row + 4 <= end; row += 4, y += 4 * stride) tile_product<4>(tile, groups, x, row, y, stride);
    for (; row + 2 <= end; row += 2, y += 2 * stride) tile_product<2>(tile, groups, x, row, y, stride);
    for (; row < end; row++, y += stride) tile_product<1>(tile, groups, x, row, y, stride);
}
#else
// The same for any CPU, as the layout reads.
static void tile_products(const uint8_t *tile, int64_t groups, const Rows &x, int64_t row, int64_t end, float *y,
                          int64_t stride) {
    for (int64_t r = row; r < end; r++) memset(y + (r - row) * stride, 0, TILE * sizeof(float));
    for (int64_t g = 0; g < groups; g++, tile += EIGHT_BYTES) {
        const uint8_t *q = tile + 4 * TILE;
        for (int64_t r = row; r < end; r++) {
            const int8_t *group = x.bytes + (r * groups + g) * GROUP;
            const float scale = x.scales[r * groups + g], sum = x.sums[r * groups + g];
            int32_t dots[TILE] = {};
            for (int64_t i = 0; i < LINES; i++)
                for (int64_t o = 0; o < TILE; o++)
                    for (int64_t b = 0; b < 4; b++) dots[o] += q[LINE * i + 4 * o + b] * group[4 * i + b];
            for (int64_t o = 0; o < TILE; o++)
                y[(r - row) * stride + o] += half1(tile + 2 * o) * scale * dots[o] + half1(tile + 2 * TILE + 2 * o) * sum;
        }
    }
}
#endif

// Packs output o of a tile of 8 bits: q uint8[inputs], float16 scales and shifts [inputs / GROUP].
static void pack_eight(const uint8_t *q, const uint16_t *scales, const uint16_t *shifts, int64_t inputs, int64_t o,
                       uint8_t *tile) {
    for (int64_t g = 0; g < inputs / GROUP; g++, tile += EIGHT_BYTES) {
        store(tile + 2 * o, scales[g]);
        store(tile + 2 * TILE + 2 * o, shifts[g]);
        for (int64_t k = 0; k < GROUP; k++) tile[4 * TILE + k / 4 * LINE + 4 * o + k % 4] = q[g * GROUP + k];
    }
}

// R rows times O outputs of a bfloat16 weight.
template <int R, int O>
RADIXRT_ONCE static void half_product(const bf16 *weight, int64_t inputs, const row_half *x, float *y, int64_t stride) {
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
    for (; k + VL <= inputs; k += VL) {
        vf w[O];
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) {
            w[o] = widen(weight + o * inputs + k);
            if (k % 32 == 0) __builtin_prefetch(weight + o * inputs + k + 1024);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const vf row = widen(x + r * inputs + k);
#pragma GCC unroll 8
            for (int o = 0; o < O; o++) acc[r][o] += w[o] * row;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int o = 0; o < O; o++) {
            float total = sum(acc[r][o]);
            for (int64_t i = k; i < inputs; i++) total += wide(weight[o * inputs + i]) * wide(x[r * inputs + i]);
            y[r * stride + o] = total;
        }
}

// `rows` rows times O outputs, in blocks whose sums fit the registers.
template <int O>
static inline void half_outputs(const bf16 *weight, int64_t inputs, const row_half *x, int64_t rows, float *y,
                                int64_t stride) {
    constexpr int R = HALF_ROWS, BLOCK_OUTPUTS = O < HALF_OUTPUTS ? O : HALF_OUTPUTS;
    int64_t r = 0;
    for (; r + R <= rows; r += R)
        for (int o = 0; o < O; o += BLOCK_OUTPUTS)
            half_product<R, BLOCK_OUTPUTS>(weight + o * inputs, inputs, x + r * inputs, y + r * stride + o, stride);
    for (; r + R / 2 <= rows; r += R / 2)
        for (int o = 0; o < O; o += BLOCK_OUTPUTS)
            half_product<R / 2, BLOCK_OUTPUTS>(weight + o * inputs, inputs, x + r * inputs, y + r * stride + o, stride);
    for (; r < rows; r++) half_product<1, O>(weight, inputs, x + r * inputs, y + r * stride, stride);
}

// The products of rows from .. end with the 16 outputs of a tile: y[(r - from) * stride + o], bias not yet added.
RADIXRT_ONCE static void products(const Linear &w, int64_t tile, const Rows &x, int64_t from, int64_t end, float *y,
                                  int64_t stride) {
    const uint8_t *packed = (const uint8_t *)w.weight + tile * tile_bytes(w);
    if (w.bits == 4) return window_products(packed, w.inputs, {x.bytes, x.scales, x.pairs, x.starts}, from, end, y, stride);
    if (w.bits == 8) return tile_products(packed, w.inputs / GROUP, x, from, end, y, stride);
    const bf16 *weight = (const bf16 *)packed;
    const int64_t outputs = least(TILE, w.outputs - tile * TILE);
    constexpr int64_t SOME = 2 * HALF_ROWS;
    for (int64_t row = from; row < end; row += SOME, y += SOME * stride) {
        const row_half *rows = x.half + row * w.inputs;
        const int64_t some = least(SOME, end - row);
        int64_t o = 0;
        for (; o + 4 <= outputs; o += 4) half_outputs<4>(weight + o * w.inputs, w.inputs, rows, some, y + o, stride);
        for (; o < outputs; o++) half_outputs<1>(weight + o * w.inputs, w.inputs, rows, some, y + o, stride);
    }
}

// Room of the thread for `rows` rows of what tiles give, until its next call.
static inline float *room(int64_t rows, int64_t width) {
    static thread_local Scratch scratch;
    return (float *)scratch.need(rows * width * sizeof(float));
}

// y [.., outputs] of one tile for rows from .. end.
RADIXRT_ONCE static void linear_tile(const Linear &w, int64_t tile, const Rows &x, int64_t from, int64_t end, float *y) {
    const int64_t first = tile * TILE, count = least(TILE, w.outputs - first);
    if (count == TILE && !w.bias) return products(w, tile, x, from, end, y + from * w.outputs + first, w.outputs);
    float *const part = room(end - from, TILE);
    products(w, tile, x, from, end, part, TILE);
    for (int64_t row = from; row < end; row++)
        for (int64_t o = 0; o < count; o++)
            y[row * w.outputs + first + o] = part[(row - from) * TILE + o] + (w.bias ? w.bias[first + o] : 0);
}

// What numbers up to a magnitude, given as its bits, are multiplied by to become bytes, and the bytes to become them again; no number where
// that is none, and then neither is any product of the row.
static inline float to_bytes(int32_t bits) { return bits > 0 ? 127 / load<float>(&bits) : 0; }
static inline float from_bytes(int32_t bits) {
    return bits < 0x7f800000 ? load<float>(&bits) * (1.0f / 127) : __builtin_nanf("");
}
// The nearest integers, below 2^22 in magnitude.
static inline vi nearest(vf x) {
    const vf magic = all(12582912.0f);
    return (vi)(x + magic) - (vi)magic;
}

// Numbers at .. at + count of a row as bytes in groups with a scale.
static inline void round_groups(const float *from, int64_t inputs, const Rows &x, int64_t row, int64_t at, int64_t count) {
    int8_t *const to = x.bytes + row * inputs;
    for (int64_t first = at; first < at + count; first += GROUP, from += GROUP) {
        const int64_t place = row * (inputs / GROUP) + first / GROUP;
        const int32_t bits = largest_bits(from, GROUP);
        const float inverse = to_bytes(bits);
        vi sums = vi{};
        for (int64_t i = 0; i < GROUP; i += VL) {
            const vi n = nearest(load<vf>(from + i) * inverse);
            sums += n;
            typedef int8_t narrow_bytes __attribute__((vector_size(VL)));
            store(to + first + i, __builtin_convertvector(n, narrow_bytes));
        }
        x.scales[place] = from_bytes(bits);
        const int32_t total = sum(sums);
        x.sums[place] = x.scales[place] * total;
#if defined(RADIXRT_BYTES)
        x.pairs[place] = (uint32_t)(ByteWeights::BIAS * total);
#endif
    }
}

// Numbers at .. at + count of a row as bytes in windows with a scale, as windows.h has them; of the last one of a row the
// second group may be missing.
static inline void round_windows(const float *from, int64_t inputs, const Rows &x, int64_t row, int64_t at, int64_t count) {
    for (int64_t first = at; first < at + count; first += WINDOW, from += WINDOW) {
        const int64_t place = row * windows(inputs) + first / WINDOW, some = least(WINDOW, inputs - first);
        int8_t *const to = x.bytes + place * WINDOW;
        const int32_t bits = largest_bits(from, some);
        const float inverse = to_bytes(bits);
        x.scales[place] = from_bytes(bits);
#if defined(__AVX2__)
        vi n[WINDOW / VL] = {};
#pragma GCC unroll 8
        for (int i = 0; i < WINDOW / VL; i++)
            if (i * VL < some) n[i] = nearest(load<vf>(from + i * VL) * inverse);
        // As bytes in fours: those of the first group and of the second in turn. MIDDLE times their sums, by lanes.
        const vb middle = everywhere((uint32_t)MIDDLE * 0x01010101);
#if defined(RADIXRT_AVX512)
        const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32((__m512i)n[0], (__m512i)n[1]),
                                                 _mm512_packs_epi32((__m512i)n[2], (__m512i)n[3]));
        const __m512i turns = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        const __m512i bytes = _mm512_permutexvar_epi32(turns, mixed);
        _mm512_storeu_si512(to, bytes);
        const __m512i fours = _mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)middle, bytes), _mm512_set1_epi16(1));
        const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
#else
        __m256i groups[2];  // fours of a group: the even ones, then the odd ones
        for (int g = 0; g < 2; g++)
            groups[g] = _mm256_packs_epi16(_mm256_packs_epi32((__m256i)n[4 * g], (__m256i)n[4 * g + 1]),
                                           _mm256_packs_epi32((__m256i)n[4 * g + 2], (__m256i)n[4 * g + 3]));
        const __m256i low = _mm256_permute4x64_epi64(_mm256_unpacklo_epi32(groups[0], groups[1]), 0xd8);
        const __m256i high = _mm256_permute4x64_epi64(_mm256_unpackhi_epi32(groups[0], groups[1]), 0xd8);
        _mm256_storeu_si256((__m256i *)to, low);
        _mm256_storeu_si256((__m256i *)(to + 32), high);
        const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)middle, low),
                                               _mm256_maddubs_epi16((__m256i)middle, high));
        const __m256i eight = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        const __m128i sums = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));  // MIDDLE times those of both groups
        _mm_storel_epi64((__m128i *)(x.starts + place), _mm_sub_epi32(_mm_setzero_si128(), sums));
        const __m128i single = _mm_srai_epi32(sums, 3);  // MIDDLE is 2^3
        x.pairs[place] = (uint32_t)_mm_cvtsi128_si32(_mm_packs_epi32(single, single));
#else
        int32_t sums[2] = {};
        memset(to, 0, WINDOW);
        for (int64_t k = 0; k < some; k += VL) {
            const vi n = nearest(load<vf>(from + k) * inverse);
            typedef int8_t narrow_bytes __attribute__((vector_size(VL)));
            const narrow_bytes fours = __builtin_convertvector(n, narrow_bytes);
            for (int64_t i = 0; i < VL; i += 4) memcpy(to + place_in_row(k + i), (const char *)&fours + i, 4);
            sums[k / GROUP] += sum(n);
        }
        x.pairs[place] = (uint16_t)sums[0] | (uint32_t)sums[1] << 16;
        x.starts[place] = (uint32_t)(-MIDDLE * sums[0]) | (uint64_t)(-MIDDLE * sums[1]) << 32;
#endif
    }
}

// Numbers at .. at + count of a row of `inputs` made ready for products with weights of `bits`; with 8 and 4 bits they are
// whole groups, or windows.
RADIXRT_ONCE static void prepare(const float *from, int64_t inputs, int64_t bits, const Rows &x, int64_t row, int64_t at,
                                 int64_t count) {
    if (bits == 4) return round_windows(from, inputs, x, row, at, count);
    if (bits == 8) return round_groups(from, inputs, x, row, at, count);
    row_half *to = x.half + row * inputs + at;
    int64_t i = 0;
    for (; i + VL <= count; i += VL) narrow(to + i, load<vf>(from + i));
    for (; i < count; i++) narrow1(to + i, from[i]);
}

static inline void prepare(const float *from, int64_t inputs, int64_t bits, const Rows &x, int64_t row) {
    prepare(from, inputs, bits, x, row, 0, inputs);
}
