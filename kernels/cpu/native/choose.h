// The most likely token of each row without its logits: the largest output of a product, the first among equals. Rows that
// ask for it get all their outputs instead, in the same pass over the weights. Tiles none of whose outputs a row's mask
// allows are left out; where all rows leave a tile out, its weights are not read.
#pragma once
#include <algorithm>

#include "share.h"

typedef float tile_floats __attribute__((vector_size(4 * TILE)));
typedef int32_t tile_ints __attribute__((vector_size(4 * TILE)));

struct Choice {
    const Linear *head;
    int64_t rows, allowed;    // outputs from `allowed` on are never chosen
    const int32_t *masks;     // [lines, words]: bit o % 32 of word o / 32 allows output o; those beyond are not allowed
    int64_t words;
    const int64_t *mask_of;   // [rows]: the line of `masks` that is a row's, -1: none; null where no row has any
    const int64_t *logits_of; // [rows]: the line of `logits` that takes the row's outputs; -1: none, the row is chosen for
    float *logits;            // [lines, outputs], those from `allowed` on too; -inf in tiles that are left out
    int64_t *chosen;          // [rows]: -1 where nothing is allowed, the largest is no finite number, or the row has logits
};

// What one thread has seen of a row: by place in a tile, the largest output and its tile.
struct Best {
    tile_floats value;
    tile_ints tile;
    bool spoiled;  // a NaN among them
};

// Which outputs of a tile a row has a use for, a bit each.
static inline uint32_t allowed_bits(const Choice &c, int64_t row, int64_t tile) {
    const int64_t outputs = c.logits_of[row] < 0 ? least(c.allowed, c.head->outputs) : c.head->outputs;
    const int64_t first = tile * TILE, count = least(TILE, outputs - first);
    uint32_t bits = count <= 0 ? 0 : (1u << count) - 1;
    const int64_t line = c.mask_of ? c.mask_of[row] : -1;
    if (line < 0) return bits;
    if (first / 32 >= c.words) return 0;
    return bits & (uint32_t)c.masks[line * c.words + first / 32] >> first % 32;
}

// What a row makes of a tile's outputs y, of which it may choose those in `bits`.
static inline void compare_tile(int64_t tile, uint32_t bits, const float *y, Best &known) {
    tile_ints lanes;
    for (int i = 0; i < TILE; i++) lanes[i] = 1 << i;
    const tile_floats values = load<tile_floats>(y);
    const tile_ints may = (lanes & (int32_t)bits) != 0;
    // Tiles that were another thread's come out of order.
    const tile_ints here = tile_ints{} + (int32_t)tile;
    const tile_ints better = may & ((values > known.value) | ((values == known.value) & (here < known.tile)));
    known.value = better ? values : known.value;
    known.tile = better ? here : known.tile;
    const tile_ints strange = may & (values != values);
    for (int i = 0; i < TILE; i++) known.spoiled |= strange[i] != 0;
}

// The order in which rows are taken through a tile: those that leave much out lie together.
static void order_rows(const Choice &c, int64_t *order, int64_t *width) {
    for (int64_t row = 0; row < c.rows; row++) {
        const int64_t line = c.mask_of ? c.mask_of[row] : -1;
        order[row] = row;
        width[row] = line < 0 ? 32 * c.words : 0;
        for (int64_t i = 0; line >= 0 && i < c.words; i++)
            width[row] += __builtin_popcount((uint32_t)c.masks[line * c.words + i]);
    }
    std::sort(order, order + c.rows,
              [&](int64_t a, int64_t b) { return width[a] < width[b] || (width[a] == width[b] && a < b); });
}

// One tile for all rows, ROWS at a time; x and `best` have them in their order.
static inline void choose_tile(const Choice &c, int64_t tile, const int64_t *order, const Rows &x, Best *best) {
    alignas(64) float part[ROWS][TILE];
    const int64_t first = tile * TILE, count = least(TILE, c.head->outputs - first);
    for (int64_t row = 0; row < c.rows; row += ROWS) {
        const int64_t some = least(ROWS, c.rows - row);
        uint32_t bits[ROWS];
        int64_t from = some, end = 0;  // the rows that have a use for it, and what lies between them
        for (int64_t r = 0; r < some; r++) {
            bits[r] = allowed_bits(c, order[row + r], tile);
            if (bits[r]) from = least(from, r), end = r + 1;
        }
        if (from < end) products(*c.head, tile, x, row + from, row + end, part[from], TILE);
        for (int64_t r = from; c.head->bias && r < end; r++)
            for (int64_t o = 0; o < count; o++) part[r][o] += c.head->bias[first + o];
        for (int64_t r = 0; r < some; r++) {
            const int64_t line = c.logits_of[order[row + r]];
            if (line < 0) {
                if (bits[r]) compare_tile(tile, bits[r], part[r], best[row + r]);
                continue;
            }
            float *const logits = c.logits + line * c.head->outputs + first;
            const tile_floats y = bits[r] ? load<tile_floats>(part[r]) : tile_floats{} + NEGATIVE_INFINITY;
            if (count == TILE)
                store(logits, y);
            else
                memcpy(logits, &y, count * sizeof(float));
        }
    }
}

// The choice from what all threads have seen of a row: best[thread * rows + row].
static inline int64_t settle(const Choice &c, int64_t row, const Best *best, int threads) {
    float highest = NEGATIVE_INFINITY;
    int64_t chosen = -1;
    for (int t = 0; t < threads; t++) {
        const Best &part = best[t * c.rows + row];
        if (part.spoiled) return -1;
        for (int i = 0; i < TILE; i++) {
            const int64_t output = part.tile[i] * TILE + i;
            const float value = part.value[i];
            if (value > highest || (value == highest && chosen >= 0 && output < chosen)) highest = value, chosen = output;
        }
    }
    return highest < -NEGATIVE_INFINITY ? chosen : -1;
}
