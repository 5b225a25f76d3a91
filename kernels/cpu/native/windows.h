// Products with weights of 4 bits: integers in groups of 32 inputs, w = scale * q + shift, as ggml's Q4_0 and Q4_1 have them.
//
// Between two roundings to float lie as many products of integers as there can: rows are rounded to signed bytes x in
// windows of 64 inputs, and the scales and shifts of an output are integers too, of one unit S, its largest magnitude /
// 32000:
//     sum over a window w x = S * x_scale * (r0 * sum (q - 8) x + r1 * sum (q - 8) x  +  s0 * sum x + s1 * sum x)
// where r = scale / S and s = (shift + 8 * scale) / S are rounded to 16 bits; 0 and 1 are the window's two groups, over
// which each sum goes. All of that fits 32 bits: 32000 * 127 * 64 < 2^31. A file's number is met to S.
//
// The sums of q x are made of bytes, of which q must be unsigned, and so begin at -8 * sum x. What they come to fits 16
// bits (8 * 127 * 32 < 2^15), and then one instruction multiplies those of both groups by r0 and r1.
//
// Layout of a tile of 16 outputs: their units S, float32; then a window after the other: 16 pairs r0, r1, 16 pairs s0,
// s1, and eight lines of 64 bytes. A line has half the outputs, those with o % 4 < 2 (A) or the others (B): as 32-bit
// lanes these of the first group and of the second in turn, so that packing sums of A and B to 16 bits leaves the two of
// an output side by side, and outputs in order. A lane's byte b holds inputs 4 * i + b of its group, i < 4 (A: line 2 * i,
// B: line 2 * i + 1) in its low half, and 16 + 4 * i + b in its high half. Rows lie likewise: 4 bytes of the first group,
// 4 of the second in turn. A last window of one group is whole, its second group zeros.
#pragma once
#include "tiles.h"

constexpr int64_t WINDOW = 2 * GROUP;
constexpr int64_t WINDOW_BYTES = 2 * LINE + LINES * LINE;              // pairs, and 4 bits an integer
constexpr int64_t MIDDLE = 8;                                          // what is taken from q
constexpr float UNITS = 32000;

static inline int64_t windows(int64_t inputs) { return (inputs + WINDOW - 1) / WINDOW; }
static inline int64_t window_tile_bytes(int64_t inputs) { return 4 * TILE + windows(inputs) * WINDOW_BYTES; }

// Where in its window the layout of rows has input k, and the layout of a tile, behind its pairs, input k of output o.
static inline int64_t place_in_row(int64_t k) { return k % GROUP / 4 * 8 + k / GROUP * 4 + k % 4; }
static inline int64_t place_in_lines(int64_t o, int64_t k) {
    const int64_t line = k % (GROUP / 2) / 4 * 2 + o / 2 % 2, lane = o / 4 * 4 + o % 2 * 2 + k / GROUP;
    return line * LINE + lane * 4 + k % 4;
}
static inline bool in_low_half(int64_t k) { return k % GROUP < GROUP / 2; }

// Rows made ready, as this form needs them. bytes: [rows, windows, WINDOW]; for each row and window its scale; of its
// integers the sums over both groups, two 16-bit integers, the first below the second; and -MIDDLE times these as two of
// 32 bits.
struct WindowRows {
    const int8_t *bytes;
    const float *scales;
    const uint32_t *sums;
    const uint64_t *starts;
};

#if defined(RADIXRT_BYTES)
// The scales of a window's outputs, in the form in which sums are multiplied by them.
struct WindowScales {
#if defined(RADIXRT_DOTS)
    vi ratios, shifts;
    static inline WindowScales of(vi ratios, vi shifts) { return {ratios, shifts}; }
    // Sums of q - MIDDLE fit 16 bits: one instruction multiplies those of both groups.
    inline vi total(SmallSums a, SmallSums b, vi sums) const {
        return dot2(dot2(vi{}, shifts, sums), ratios, pack_pairs(a.sum, b.sum));
    }
#else
    vi of_a, of_b, shifts;
    // Sums are those of q, in two parts, whose lanes alternate between the groups; MIDDLE goes into the shifts.
    static inline WindowScales of(vi ratios, vi shifts) {
        const wide_int r = (wide_int)ratios, middle = RADIXRT_SIMD(slli_epi16)(r, 3);
        static_assert(MIDDLE == 8, "the shift by 3");
        return {(vi)RADIXRT_SIMD(unpacklo_epi16)(r, r), (vi)RADIXRT_SIMD(unpackhi_epi16)(r, r),
                (vi)RADIXRT_SIMD(sub_epi16)((wide_int)shifts, middle)};
    }
    inline vi total(SmallSums a, SmallSums b, vi sums) const {
        const vf of_both = (vf)dot2(vi{}, of_a, a.sum), others = (vf)dot2(vi{}, of_b, b.sum);
        const vi first = (vi)(vf)RADIXRT_SIMD(shuffle_ps)((wide_float)of_both, (wide_float)others, 0x88);
        const vi second = (vi)(vf)RADIXRT_SIMD(shuffle_ps)((wide_float)of_both, (wide_float)others, 0xdd);
        return dot2(first + second, shifts, sums);
    }
#endif
};

// y[r * stride + o] for R rows from `row` and the outputs of one tile. first: nobody has read the tile in this step, so
// what comes next is asked of memory meanwhile.
template <int R>
RADIXRT_ONCE static void window_product(const uint8_t *tile, int64_t count, const WindowRows &x, int64_t row, float *y,
                                        int64_t stride, bool first) {
    const int8_t *bytes = x.bytes + row * count * WINDOW;
    const float *scales = x.scales + row * count;
    const uint32_t *sums = x.sums + row * count;
    const uint64_t *starts = x.starts + row * count;
    vf units[PARTS], acc[PARTS][R];
    for (int p = 0; p < PARTS; p++) {
        units[p] = load<vf>(tile + 4 * VL * p);
        for (int r = 0; r < R; r++) acc[p][r] = vf{};
    }
    tile += 4 * TILE;
    for (int64_t w = 0; w < count; w++, tile += WINDOW_BYTES, bytes += WINDOW) {
        for (int64_t i = 0; first && i < WINDOW_BYTES; i += 64) __builtin_prefetch(tile + i + 4096);
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
            const uint8_t *const part = tile + 4 * VL * p;
            if (PARTS > 1) forget(bytes);  // each part reads the rows anew: to keep them takes more registers than there are
            SmallSums a[R], b[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) a[r] = b[r] = SmallSums::begin((vi)everywhere(starts[r * count + w]));
#pragma GCC unroll 8
            for (int i = 0; i < LINES; i++) {  // first what is in low halves, then the rest of the same lines
                const uint8_t *const lines = part + 2 * LINE + i % (LINES / 2) * 2 * LINE;
                const vb both_a = load<vb>(lines), both_b = load<vb>(lines + LINE);
                const vb of_a = i < LINES / 2 ? low_halves(both_a) : high_halves(both_a);
                const vb of_b = i < LINES / 2 ? low_halves(both_b) : high_halves(both_b);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {  // one row's sums wait for each other: the rows take turns
                    const vb xs = everywhere(load<uint64_t>(bytes + r * count * WINDOW + 8 * i));
                    a[r].add(of_a, xs);
                    b[r].add(of_b, xs);
                }
            }
            const WindowScales of = WindowScales::of(load<vi>(part), load<vi>(part + LINE));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const vi total = of.total(a[r], b[r], (vi)everywhere(sums[r * count + w]));
                acc[p][r] += scales[r * count + w] * __builtin_convertvector(total, vf);
            }
        }
    }
    for (int p = 0; p < PARTS; p++)
        for (int r = 0; r < R; r++) store(y + r * stride + VL * p, units[p] * acc[p][r]);
}

// The same for rows from `row` to `end`.
RADIXRT_ONCE static void window_products(const uint8_t *tile, int64_t inputs, const WindowRows &x, int64_t row,
                                         int64_t end, float *y, int64_t stride) {
    const int64_t begin = row, count = windows(inputs);
#if defined(RADIXRT_AVX512)  // with fewer registers four rows are as many as there is room for
    for (; row + 8 <= end; row += 8, y += 8 * stride) window_product<8>(tile, count, x, row, y, stride, row == begin);
#endif
    for (; row + 4 <= end; row += 4, y += 4 * stride) window_product<4>(tile, count, x, row, y, stride, row == begin);
    for (; row + 2 <= end; row += 2, y += 2 * stride) window_product<2>(tile, count, x, row, y, stride, row == begin);
    for (; row < end; row++, y += stride) window_product<1>(tile, count, x, row, y, stride, row == begin);
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
                const uint8_t *window = tile + 4 * TILE + w * WINDOW_BYTES;
                const int8_t *bytes = x.bytes + (r * count + w) * WINDOW;
                int32_t dots[2] = {}, total = 0;
                for (int64_t k = 0; k < WINDOW; k++) {
                    const uint8_t both = window[2 * LINE + place_in_lines(o, k)];
                    dots[k / GROUP] += ((in_low_half(k) ? both & 15 : both >> 4) - MIDDLE) * bytes[place_in_row(k)];
                }
                for (int64_t g = 0; g < 2; g++) {
                    total += load<int16_t>(window + 4 * o + 2 * g) * dots[g];
                    total += load<int16_t>(window + LINE + 4 * o + 2 * g) * (int16_t)(x.sums[r * count + w] >> 16 * g);
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
        uint8_t *window = tile + 4 * TILE + g / 2 * WINDOW_BYTES;
        const float scale = half1(scales + g), middle = half1(shifts + g) + MIDDLE * scale;
        const int16_t ratio = unit > 0 ? lrintf(scale / unit) : 0, shift = unit > 0 ? lrintf(middle / unit) : 0;
        store(window + 4 * o + 2 * (g % 2), ratio);
        store(window + LINE + 4 * o + 2 * (g % 2), shift);
        for (int64_t k = 0; k < GROUP; k++) {
            const uint8_t value = q[g * GROUP + k];
            window[2 * LINE + place_in_lines(o, g % 2 * GROUP + k)] |= in_low_half(k) ? value : value << 4;
        }
    }
}
