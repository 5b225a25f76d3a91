// Products with weights of 4 bits: integers in groups of 32 inputs, w = scale * q + shift, as ggml's Q4_0 and Q4_1 have them.
//
// Between two roundings to float lie as many products of integers as there can: rows are rounded to signed bytes x in
// windows of 64 inputs, and the scales and shifts of an output are integers too, of one unit S, its largest magnitude /
// 32000:
//     sum over a window w x = S * x_scale * (r0 * sum q x + r1 * sum q x  +  s0 * sum x + s1 * sum x)
// where r = scale / S and s = shift / S are rounded to 16 bits; 0 and 1 are the window's two groups, over which each
// sum goes. All of that fits 32 bits: 32000 * 127 * 64 < 2^31. A file's number is met to S.
//
// Layout of a tile of 16 outputs: their units S, float32; then a window after the other: 16 pairs r0, r1, 16 pairs s0,
// s1, and for each group four lines of 64 bytes. Byte 4 * o + b of line i holds q of output o: of input 4 * i + b in its
// low half, and of input 16 + 4 * i + b in its high half. A last window of one group is whole, its second group zeros.
#pragma once
#include "tiles.h"

constexpr int64_t WINDOW = 2 * GROUP;
constexpr int64_t LINES = GROUP / 4, LINE = 4 * TILE;                  // of a group's integers as bytes; bytes of a line
constexpr int64_t WINDOW_BYTES = 2 * LINE + LINES * LINE;              // pairs, and 4 bits an integer
constexpr float UNITS = 32000;

static inline int64_t windows(int64_t inputs) { return (inputs + WINDOW - 1) / WINDOW; }
static inline int64_t window_tile_bytes(int64_t inputs) { return 4 * TILE + windows(inputs) * WINDOW_BYTES; }

// Rows made ready, as this form needs them: bytes [rows, inputs], and [rows, windows] scales and sums of the bytes, two
// 16-bit integers each: of the first group below that of the second.
struct WindowRows {
    const int8_t *bytes;
    const float *scales;
    const uint32_t *sums;
};

#if defined(__AVX2__)
// lane o: the products of its two 16-bit integers with those of x.
static inline i16x pair_sums(i16x pairs, uint32_t x) {
#if defined(RADIXRT_AVX512)
    return (i16x)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi32((int)x));
#else
    __m256i part[2];
    memcpy(part, &pairs, 64);
    for (int i = 0; i < 2; i++) part[i] = _mm256_madd_epi16(part[i], _mm256_set1_epi32((int)x));
    memcpy(&pairs, part, 64);
    return pairs;
#endif
}

// y[r * stride + o] for R rows from `row` and the outputs of one tile. first: nobody has read the tile in this step, so
// what comes next is asked of memory meanwhile.
template <int R>
RADIXRT_ONCE static void window_product(const uint8_t *tile, int64_t inputs, const WindowRows &x, int64_t row, float *y,
                                        int64_t stride, bool first) {
    const int64_t count = windows(inputs), groups = inputs / GROUP;
    const int8_t *bytes = x.bytes + row * inputs;
    const float *scales = x.scales + row * count;
    const uint32_t *sums = x.sums + row * count;
    const f16x unit = load<f16x>(tile);
    tile += 4 * TILE;
    f16x acc[R];
    for (int r = 0; r < R; r++) acc[r] = f16x{};
    for (int64_t w = 0; w < count; w++, tile += WINDOW_BYTES) {
        for (int64_t i = 0; first && i < WINDOW_BYTES; i += 64) __builtin_prefetch(tile + i + 4096);
        const i16x ratios = load<i16x>(tile), shifts = load<i16x>(tile + LINE);
        i16x total[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) total[r] = pair_sums(shifts, sums[r * count + w]);
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
            if (w * 2 + g == groups) break;
            const uint8_t *lines = tile + 2 * LINE + g * LINES / 2 * LINE;
            const i16x ratio = (g ? ratios : ratios << 16) >> 16;
            b64x low[LINES / 2], high[LINES / 2];
#pragma GCC unroll 4
            for (int i = 0; i < LINES / 2; i++) {
                const b64x both = load<b64x>(lines + LINE * i);
                low[i] = both & 15, high[i] = (b64x)((u16x)both >> 4) & 15;
            }
            i16x dot[R];
            for (int r = 0; r < R; r++) dot[r] = i16x{};
            const int8_t *group = bytes + (w * 2 + g) * GROUP;
#pragma GCC unroll 4
            for (int i = 0; i < LINES / 2; i++) {  // one row's sums wait for each other: the rows take turns
#pragma GCC unroll 8
                for (int r = 0; r < R; r++)
                    dot[r] = dot4(dot[r], low[i], load<uint32_t>(group + r * inputs + 4 * i));
#pragma GCC unroll 8
                for (int r = 0; r < R; r++)
                    dot[r] = dot4(dot[r], high[i], load<uint32_t>(group + r * inputs + GROUP / 2 + 4 * i));
            }
            for (int r = 0; r < R; r++) total[r] += ratio * dot[r];
        }
        for (int r = 0; r < R; r++) acc[r] += scales[r * count + w] * __builtin_convertvector(total[r], f16x);
    }
    for (int r = 0; r < R; r++) store(y + r * stride, unit * acc[r]);
}

// The same for rows from `row` to `end`.
RADIXRT_ONCE static void window_products(const uint8_t *tile, int64_t inputs, const WindowRows &x, int64_t row,
                                         int64_t end, float *y, int64_t stride) {
    const int64_t begin = row;
    for (; row + 8 <= end; row += 8, y += 8 * stride) window_product<8>(tile, inputs, x, row, y, stride, row == begin);
    for (; row + 4 <= end; row += 4, y += 4 * stride) window_product<4>(tile, inputs, x, row, y, stride, row == begin);
    for (; row + 2 <= end; row += 2, y += 2 * stride) window_product<2>(tile, inputs, x, row, y, stride, row == begin);
    for (; row < end; row++, y += stride) window_product<1>(tile, inputs, x, row, y, stride, row == begin);
}
#else
// The same for any CPU, as the layout reads.
static void window_products(const uint8_t *tile, int64_t inputs, const WindowRows &x, int64_t row, int64_t end, float *y,
                            int64_t stride) {
    const int64_t count = windows(inputs);
    for (int64_t r = row; r < end; r++)
        for (int64_t o = 0; o < TILE; o++) {
            float acc = 0;
            for (int64_t w = 0; w < count; w++) {
                const uint8_t *window = tile + 4 * TILE + w * WINDOW_BYTES, *lines = window + 2 * LINE;
                const uint32_t sums = x.sums[r * count + w];
                int32_t total = 0;
                for (int64_t g = 0; g < least(2, inputs / GROUP - w * 2); g++, lines += LINES / 2 * LINE) {
                    int32_t dot = 0;
                    for (int64_t k = 0; k < GROUP; k++) {
                        const uint8_t both = lines[k % (GROUP / 2) / 4 * LINE + 4 * o + k % 4];
                        dot += (k < GROUP / 2 ? both & 15 : both >> 4) * x.bytes[r * inputs + (w * 2 + g) * GROUP + k];
                    }
                    total += load<int16_t>(window + 4 * o + 2 * g) * dot;
                    total += load<int16_t>(window + LINE + 4 * o + 2 * g) * (int16_t)(sums >> 16 * g);
                }
                acc += x.scales[r * count + w] * total;
            }
            y[(r - row) * stride + o] = load<float>(tile + 4 * o) * acc;
        }
}
#endif

// Packs output o of a tile, which is all zeros before: q uint8[inputs] below 16, float16 scales and shifts [inputs / GROUP].
static void pack_windows(const uint8_t *q, const uint16_t *scales, const uint16_t *shifts, int64_t inputs, int64_t o,
                         uint8_t *tile) {
    const int64_t groups = inputs / GROUP;
    float largest_magnitude = 0;
    bool finite = true;
    for (int64_t g = 0; g < groups; g++) {
        const float low = half1(shifts + g), high = low + 15 * half1(scales + g);
        largest_magnitude = fmaxf(largest_magnitude, fmaxf(fabsf(low), fabsf(high)));
        finite = finite && (scales[g] & 0x7c00) != 0x7c00 && (shifts[g] & 0x7c00) != 0x7c00;
    }
    // Where a weight is no number, the unit says so, and every product with it.
    const float unit = finite ? largest_magnitude / UNITS : __builtin_nanf("");
    store(tile + 4 * o, unit);
    for (int64_t g = 0; g < groups; g++) {
        uint8_t *window = tile + 4 * TILE + g / 2 * WINDOW_BYTES, *lines = window + (2 + g % 2 * LINES / 2) * LINE;
        const int16_t ratio = unit > 0 ? lrintf(half1(scales + g) / unit) : 0;
        const int16_t shift = unit > 0 ? lrintf(half1(shifts + g) / unit) : 0;
        store(window + 4 * o + 2 * (g % 2), ratio);
        store(window + LINE + 4 * o + 2 * (g % 2), shift);
        for (int64_t k = 0; k < GROUP; k++) {
            const uint8_t value = q[g * GROUP + k];
            lines[k % (GROUP / 2) / 4 * LINE + 4 * o + k % 4] |= k < GROUP / 2 ? value : value << 4;
        }
    }
}
