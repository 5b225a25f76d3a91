// A whole step of the decoder in one parallel region: between its parts threads meet at a barrier, and share work out as
// share.h says. What follows a product, or attention, is done by whoever has made the numbers, while they are at hand:
// rotation and the pool behind the first product, the gate behind the third, rounding to 8 bits behind all but two.
//
// The residual and everything pointwise stay float32.
#pragma once
#include <initializer_list>

#include "attention.h"
#include "linear.h"
#include "pointwise.h"
#include "share.h"

struct LayerWeights {
    const float *input_norm, *mlp_norm, *q_norm, *k_norm;  // q_norm and k_norm: null where there are none
    Linear qkv, output, gate_up, down;
};

struct Decoder {
    const LayerWeights *layers;
    int64_t layers_count, hidden, inner, kv_heads, group, width, window;
    const float *final_norm;
    float eps, scale;
};

struct Step {
    Reads reads;
    float *residual;         // [tokens, hidden]: the embedded tokens; spoiled
    const float *cos, *sin;  // [tokens, width]
    const int64_t *slots;    // [tokens] where keys and values go
    void *kv;                // [layers, 2, kv_heads, pool, width]
    int64_t pool;
    const int64_t *wanted;   // [wanted_count] ascending: the tokens whose hidden states anybody reads
    int64_t wanted_count;    // -1: all
    void *out;               // [wanted_count or tokens, hidden] of the pool's type
    void *scratch;
    double *spent;           // [3] or null: seconds of pointwise parts, of products, of attention, waits included
};

// Where the parts of a step keep what they make.
struct Buffers {
    float *attended, *added, *normed, *partial;  // normed: a row for each thread
    void *q;
    Rows x, gated;
    Counter *counters;
    int64_t counters_count, counters_each;  // in all, and of a layer
    static constexpr int64_t SHARED = 5;    // things that are shared out in a layer
    // Laid out from `memory`; null: only the size counts, which `end` then says.
    Buffers(const Decoder &d, int64_t tokens, const Cut &cut, int threads, char *memory) {
        auto take = [&](int64_t bytes) {
            char *at = memory;
            memory += round_up(bytes, 64);
            return at;
        };
        auto floats = [&](int64_t count) { return (float *)take(4 * count); };
        const int64_t heads = d.kv_heads * d.group, widest = most(d.hidden, heads * d.width);
        Heads h = {};
        h.kv_heads = d.kv_heads, h.group = d.group, h.width = d.width;
        counters_each = SHARED * threads;
        counters_count = counters_each * d.layers_count;
        counters = (Counter *)take(sizeof(Counter) * counters_count);
        q = take(4 * tokens * heads * d.width);
        attended = floats(tokens * heads * d.width);
        added = floats(tokens * d.hidden);
        normed = floats(threads * round_up(d.hidden, GROUP));
        partial = floats(cut.partial_floats(tokens, h));
        for (Rows *rows : {&x, &gated}) {
            const int64_t n = tokens * (rows == &x ? widest : d.inner);
            rows->half = (bf16 *)take(2 * n);
            rows->bytes = (int8_t *)take(n);
            rows->scales = floats(n / GROUP + 1);
            rows->sums = floats(n / GROUP + 1);
        }
        end = memory;
    }
    char *end;
};

// y [.., outputs] of one tile for rows from .. end.
static inline void linear_tile(const Linear &w, int64_t tile, const Rows &x, int64_t from, int64_t end, float *y) {
    alignas(64) float part[ROWS][TILE];
    const int64_t first = tile * TILE, count = least(TILE, w.outputs - first);
    for (int64_t row = from; row < end; row += ROWS) {
        const int64_t some = least(ROWS, end - row);
        products(w, tile, x, row, some, part);
        for (int64_t r = 0; r < some; r++)
            for (int64_t o = 0; o < count; o++)
                y[(row + r) * w.outputs + first + o] = part[r][o] + (w.bias ? w.bias[first + o] : 0);
    }
}

// Numbers first .. first + count of silu(gate) * up for rows from .. end, made ready for the product that follows (`bits`
// of that): a pair of tiles (of gate and up each) at a time, for that is what a group needs, but for a single last one.
static inline void gated_pair(const Linear &w, int64_t pair, const Rows &x, int64_t from, int64_t end, int64_t bits,
                              const Rows &gated) {
    alignas(64) float gate[ROWS][TILE], up[ROWS][TILE], inner[ROWS][2 * TILE];
    const int64_t n = w.outputs / 2, first = pair * 2 * TILE, count = least(2 * TILE, n - first);
    for (int64_t row = from; row < end; row += ROWS) {
        const int64_t some = least(ROWS, end - row);
        for (int64_t at = 0; at < count; at += TILE) {
            const int64_t tile = (first + at) / TILE;
            products(w, tile, x, row, some, gate);
            products(w, tile + n / TILE, x, row, some, up);
            for (int64_t r = 0; r < some; r++) {
                if (w.bias)
                    for (int64_t o = 0; o < TILE; o++)
                        gate[r][o] += w.bias[first + at + o], up[r][o] += w.bias[n + first + at + o];
                silu_mul_row(gate[r], up[r], TILE, inner[r] + at);
            }
        }
        for (int64_t r = 0; r < some; r++) prepare(inner[r], n, bits, gated, row + r, first, count);
    }
}

// One head of one token, which it spoils: norm where there is one, rotation; a query to q, a key or value into the pool.
template <class E>
static inline void place_head(const Decoder &d, const LayerWeights &layer, const Step &step, int64_t token, int64_t i,
                              float *head, E *q, E *keys, E *values) {
    const int64_t heads = d.kv_heads * d.group, width = d.width, slot = step.slots[token];
    const float *cos = step.cos + token * width, *sin = step.sin + token * width;
    if (i >= heads + d.kv_heads) {
        E *to = values + ((i - heads - d.kv_heads) * step.pool + slot) * width;
        int64_t e = 0;
        for (; e + VL <= width; e += VL) narrow(to + e, load<vf>(head + e));
        for (; e < width; e++) narrow1(to + e, head[e]);
        return;
    }
    const float *norm = i < heads ? layer.q_norm : layer.k_norm;
    if (norm) add_norm_row(head, (const float *)nullptr, norm, d.eps, width, head);
    rotate(head, cos, sin, width,
           i < heads ? q + (token * heads + i) * width : keys + ((i - heads) * step.pool + slot) * width);
}

// Head i of tokens first .. end: its product, placed. Where heads are no whole tiles, two compute the one that they share.
template <class E>
static void head_product(const Decoder &d, const LayerWeights &layer, const Step &step, const Rows &x, int64_t i,
                         int64_t first, int64_t end, E *q, E *keys, E *values) {
    alignas(64) float part[ROWS][TILE], head[ROWS][MOST_WIDTH];
    const Linear &w = layer.qkv;
    const int64_t begin = i * d.width, stop = begin + d.width;
    for (int64_t row = first; row < end; row += ROWS) {
        const int64_t some = least(ROWS, end - row);
        for (int64_t tile = begin / TILE; tile * TILE < stop; tile++) {
            products(w, tile, x, row, some, part);
            const int64_t from = most(begin, tile * TILE), to = least(stop, (tile + 1) * TILE);
            for (int64_t r = 0; r < some; r++)
                for (int64_t o = from; o < to; o++)
                    head[r][o - begin] = part[r][o - tile * TILE] + (w.bias ? w.bias[o] : 0);
        }
        for (int64_t r = 0; r < some; r++) place_head(d, layer, step, row + r, i, head[r], q, keys, values);
    }
}

constexpr int64_t SOME_TOKENS = 64;  // tokens of a tile, or of a head, that a thread takes at a time: there are few of those
static inline int64_t blocks_of(int64_t tokens) { return (tokens + SOME_TOKENS - 1) / SOME_TOKENS; }

// Moves the wanted tokens to the front: what attention has made of them (`bits` of the next product) and the residual.
static void keep_wanted(const Step &step, const Rows &x, int64_t inputs, int64_t bits, int64_t hidden) {
    const int64_t groups = inputs / GROUP;
    for (int64_t k = 0; k < step.wanted_count; k++) {
        const int64_t from = step.wanted[k];
        if (from == k) continue;
        memcpy(step.residual + k * hidden, step.residual + from * hidden, hidden * sizeof(float));
        if (bits == 16) {
            memcpy(x.half + k * inputs, x.half + from * inputs, inputs * sizeof(bf16));
            continue;
        }
        memcpy(x.bytes + k * inputs, x.bytes + from * inputs, inputs);
        memcpy(x.scales + k * groups, x.scales + from * groups, groups * sizeof(float));
        memcpy(x.sums + k * groups, x.sums + from * groups, groups * sizeof(float));
    }
}

// What one thread does of the step; all threads of the team run it.
template <class Pool>
static void forward(const Decoder &d, const Step &step, const Cut &cut, const Buffers &b, const Team &team) {
    typedef typename Pool::E E;
    int64_t tokens = step.reads.tokens;  // in the last layer, behind attention, those that are wanted
    const int64_t heads = d.kv_heads * d.group, hidden = d.hidden;
    const int64_t attended = heads * d.width, half_layer = d.kv_heads * step.pool * d.width;
    enum { POINTWISE, PRODUCTS, ATTENTION };
    const bool timed = step.spent && team.thread == 0;
    double last = timed ? omp_get_wtime() : 0;
    auto meet = [&](int part) {
#pragma omp barrier
        if (!timed) return;
        const double now = omp_get_wtime();
        step.spent[part] += now - last;
        last = now;
    };
    auto each_token = [&](auto work) {
        const int64_t end = tokens * (team.thread + 1) / team.threads;
        for (int64_t t = tokens * team.thread / team.threads; t < end; t++) work(t);
        meet(POINTWISE);
    };
    float *const normed = b.normed + team.thread * round_up(hidden, GROUP);
    // work(tile, first, end) for `count` tiles and all tokens; of many tokens a block at a time, so that nobody is waited
    // for long.
    auto share_tiles = [&](Counter *counters, int64_t count, int64_t chunk, auto work) {
        const int64_t blocks = most(1, blocks_of(tokens));
        share(team, counters, count * blocks, blocks > 1 ? 1 : chunk, [&](int64_t i) {
            const int64_t first = i % blocks * SOME_TOKENS;
            work(i / blocks, first, least(tokens, first + SOME_TOKENS));
        });
    };
    // y of a product; `then` is the next one, whose beginning is asked of memory before the others are waited for.
    auto linear = [&](Counter *counters, const Linear &w, const Rows &x, float *y, const Linear *then) {
        share_tiles(counters, tiles(w), chunk(w),
                    [&](int64_t tile, int64_t first, int64_t end) { linear_tile(w, tile, x, first, end, y); });
        if (then) ask_ahead(team, *then);
        meet(PRODUCTS);
    };

    for (int64_t l = 0; l < d.layers_count; l++) {
        const LayerWeights &layer = d.layers[l];
        Counter *counters = b.counters + l * b.counters_each;
        E *q = (E *)b.q, *keys = (E *)step.kv + 2 * l * half_layer, *values = keys + half_layer;
        const Heads h = {q, keys, values, nullptr, attended, step.pool, d.kv_heads, d.group, d.width, d.scale};

        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, l ? b.added + t * hidden : nullptr, layer.input_norm, d.eps, hidden,
                         normed);
            prepare(normed, hidden, layer.qkv.bits, b.x, t);
        });

        share_tiles(counters, heads + 2 * d.kv_heads, 1, [&](int64_t i, int64_t first, int64_t end) {
            head_product(d, layer, step, b.x, i, first, end, q, keys, values);
        });
        meet(PRODUCTS);

        // A head's output goes straight into the rows of the next product, where it is whole groups.
        const int64_t bits = layer.output.bits;
        const bool direct = bits == 16 || d.width % GROUP == 0;
        auto finish = [&](int64_t token, int64_t head, const float *out) {
            if (direct)
                prepare(out, attended, bits, b.x, token, head * d.width, d.width);
            else
                memcpy(b.attended + token * attended + head * d.width, out, d.width * sizeof(float));
        };
        share(team, counters + team.threads, cut.tasks(d.kv_heads), 1,
              [&](int64_t task) { attention_task<Pool>(step.reads, h, cut, task, b.partial, finish); });
        ask_ahead(team, layer.output);
        meet(ATTENTION);
        if (cut.splits > 1) {
            for (int64_t i = team.thread; i < tokens * heads; i += team.threads)
                attention_merge(step.reads, h, cut, i, b.partial, finish);
            meet(ATTENTION);
        }
        if (!direct) each_token([&](int64_t t) { prepare(b.attended + t * attended, attended, bits, b.x, t); });

        if (step.wanted_count >= 0 && l + 1 == d.layers_count) {
            if (team.thread == 0) keep_wanted(step, b.x, attended, bits, hidden);
            meet(POINTWISE);
            tokens = step.wanted_count;
        }
        linear(counters + 2 * team.threads, layer.output, b.x, b.added, &layer.gate_up);
        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, b.added + t * hidden, layer.mlp_norm, d.eps, hidden,
                         normed);
            prepare(normed, hidden, layer.gate_up.bits, b.x, t);
        });
        share_tiles(counters + 3 * team.threads, (d.inner + 2 * TILE - 1) / (2 * TILE),
                    most(1, chunk(layer.gate_up) / 4), [&](int64_t pair, int64_t first, int64_t end) {
                        gated_pair(layer.gate_up, pair, b.x, first, end, layer.down.bits, b.gated);
                    });
        ask_ahead(team, layer.down);
        meet(PRODUCTS);
        linear(counters + 4 * team.threads, layer.down, b.gated, b.added,
               l + 1 < d.layers_count ? &d.layers[l + 1].qkv : nullptr);
    }
    each_token([&](int64_t t) {
        add_norm_row(step.residual + t * hidden, b.added + t * hidden, d.final_norm, d.eps, hidden,
                     (E *)step.out + t * hidden);
    });
}
