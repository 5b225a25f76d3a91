// The most likely token of each row without its logits: the largest output of a product, the first among equals. Tiles none
// of whose outputs a row's mask allows are left out; where all rows leave a tile out, its weights are not read.
#pragma once
#include "share.h"

typedef float tile_floats __attribute__((vector_size(4 * TILE)));
typedef int32_t tile_ints __attribute__((vector_size(4 * TILE)));

struct Choice {
    const Linear *head;
    int64_t rows, allowed;    // outputs from `allowed` on are never chosen
    const int32_t *masks;     // [lines, words]: bit o % 32 of word o / 32 allows output o; those beyond are not allowed
    int64_t words;
    const int64_t *mask_of;   // [rows]: the line of `masks` that is a row's, -1: none; null where no row has any
    int64_t *chosen;          // [rows]: -1 where nothing is allowed, or the largest is no finite number
};

// What one thread has seen of a row: by place in a tile, the largest output and its tile.
struct Best {
    tile_floats value;
    tile_ints tile;
    bool spoiled;  // a NaN among them
};

// Which outputs of a tile a row may choose, a bit each.
static inline uint32_t allowed_bits(const Choice &c, int64_t row, int64_t tile) {
    const int64_t first = tile * TILE, count = least(TILE, least(c.allowed, c.head->outputs) - first);
    uint32_t bits = count <= 0 ? 0 : (1u << count) - 1;
    const int64_t line = c.mask_of ? c.mask_of[row] : -1;
    if (line < 0) return bits;
    if (first / 32 >= c.words) return 0;
    return bits & (uint32_t)c.masks[line * c.words + first / 32] >> first % 32;
}

// One tile for all rows, ROWS at a time.
static inline void choose_tile(const Choice &c, int64_t tile, const Rows &x, Best *best) {
    alignas(64) float part[ROWS][TILE];
    tile_ints lanes;
    for (int i = 0; i < TILE; i++) lanes[i] = 1 << i;
    for (int64_t row = 0; row < c.rows; row += ROWS) {
        const int64_t some = least(ROWS, c.rows - row);
        uint32_t bits[ROWS], any = 0;
        for (int64_t r = 0; r < some; r++) any |= bits[r] = allowed_bits(c, row + r, tile);
        if (!any) continue;
        products(*c.head, tile, x, row, row + some, part[0], TILE);
        for (int64_t r = 0; r < some; r++) {
            if (c.head->bias)
                for (int64_t o = 0; o < least(TILE, c.head->outputs - tile * TILE); o++)
                    part[r][o] += c.head->bias[tile * TILE + o];
            const tile_floats y = load<tile_floats>(part[r]);
            Best &known = best[row + r];
            const tile_ints may = (lanes & (int32_t)bits[r]) != 0;
            // Tiles that were another thread's come out of order.
            const tile_ints here = tile_ints{} + (int32_t)tile;
            const tile_ints better = may & ((y > known.value) | ((y == known.value) & (here < known.tile)));
            known.value = better ? y : known.value;
            known.tile = better ? here : known.tile;
            const tile_ints strange = may & (y != y);
            for (int i = 0; i < TILE; i++) known.spoiled |= strange[i] != 0;
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
