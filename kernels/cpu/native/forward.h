// A whole narrow step of the decoder in one parallel region: between its parts threads meet at a barrier, and take work
// from a counter, so that one which loses its core for a while is not waited for longer than it must be.
//
// The residual and everything pointwise stay float32.
#pragma once
#include <omp.h>

#include <atomic>
#include <initializer_list>

#include "attention.h"
#include "linear.h"
#include "pointwise.h"

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
    void *out;               // [tokens, hidden] of the pool's type
    void *scratch;
    double *spent;           // [3] or null: seconds of pointwise parts, of products, of attention, waits included
};

typedef std::atomic<int64_t> Counter;

// Runs work(i) for i < count, `chunk` at a time, until the counter has none left.
template <class Work> static inline void share(Counter &counter, int64_t count, int64_t chunk, Work work) {
    for (int64_t at; (at = counter.fetch_add(chunk, std::memory_order_relaxed)) < count;)
        for (int64_t i = at; i < least(count, at + chunk); i++) work(i);
}

// Where the parts of a step keep what they make.
struct Buffers {
    float *qkv, *attended, *added, *normed, *inner, *partial;
    void *q;
    Rows x, gated;
    Counter *counters;
    static constexpr int64_t COUNTERS = 8;  // a layer

    // Laid out from `memory`; null: only the size counts, which `end` then says.
    Buffers(const Decoder &d, int64_t tokens, const Cut &cut, char *memory) {
        auto take = [&](int64_t bytes) {
            char *at = memory;
            memory += round_up(bytes, 64);
            return at;
        };
        auto floats = [&](int64_t count) { return (float *)take(4 * count); };
        const int64_t heads = d.kv_heads * d.group, widest = most(d.hidden, heads * d.width);
        Heads h = {};
        h.kv_heads = d.kv_heads, h.group = d.group, h.width = d.width;
        counters = (Counter *)take(sizeof(Counter) * COUNTERS * (d.layers_count + 1));
        qkv = floats(tokens * (heads + 2 * d.kv_heads) * d.width);
        q = take(4 * tokens * heads * d.width);
        attended = floats(tokens * heads * d.width);
        added = floats(tokens * d.hidden);
        normed = floats(tokens * widest);
        inner = floats(tokens * d.inner);
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

constexpr int64_t CHUNK_BYTES = 16384;  // of weights that a thread takes at a time

static inline int64_t chunk(const Linear &w) {
    const int64_t bytes = w.bits == 16 ? 2 * TILE * w.inputs : w.inputs / GROUP * group_bytes(w.bits);
    return most(1, CHUNK_BYTES / bytes);
}

// y [rows, outputs] of one tile for all rows.
static inline void linear_tile(const Linear &w, int64_t tile, const Rows &x, int64_t rows, float *y) {
    alignas(64) float part[ROWS][TILE];
    const int64_t first = tile * TILE, count = least(TILE, w.outputs - first);
    for (int64_t row = 0; row < rows; row += ROWS) {
        const int64_t some = least(ROWS, rows - row);
        products(w, tile, x, row, some, part);
        for (int64_t r = 0; r < some; r++)
            for (int64_t o = 0; o < count; o++)
                y[(row + r) * w.outputs + first + o] = part[r][o] + (w.bias ? w.bias[first + o] : 0);
    }
}

// inner [rows, n]: silu(gate) * up for the outputs of one tile of the gate; n is a multiple of TILE.
static inline void gated_tile(const Linear &w, int64_t tile, const Rows &x, int64_t rows, float *inner) {
    alignas(64) float gate[ROWS][TILE], up[ROWS][TILE];
    const int64_t n = w.outputs / 2, first = tile * TILE;
    for (int64_t row = 0; row < rows; row += ROWS) {
        const int64_t some = least(ROWS, rows - row);
        products(w, tile, x, row, some, gate);
        products(w, tile + n / TILE, x, row, some, up);
        for (int64_t r = 0; r < some; r++) {
            if (w.bias)
                for (int64_t o = 0; o < TILE; o++) gate[r][o] += w.bias[first + o], up[r][o] += w.bias[n + first + o];
            silu_mul_row(gate[r], up[r], TILE, inner + (row + r) * n + first);
        }
    }
}

// One token's heads: norm where there is one, rotation; queries to q, keys and values into the pool.
template <class E>
static void place_heads(const Decoder &d, const LayerWeights &layer, const Step &step, int64_t token, const float *qkv,
                        E *q, E *keys, E *values) {
    const int64_t heads = d.kv_heads * d.group, width = d.width;
    const float *cos = step.cos + token * width, *sin = step.sin + token * width;
    const int64_t slot = step.slots[token];
    float head[256];
    for (int64_t i = 0; i < heads + d.kv_heads; i++) {
        memcpy(head, qkv + i * width, width * sizeof(float));
        const float *norm = i < heads ? layer.q_norm : layer.k_norm;
        if (norm) add_norm_row(head, (const float *)nullptr, norm, d.eps, width, head);
        rotate(head, cos, sin, width, i < heads ? q + i * width : keys + ((i - heads) * step.pool + slot) * width);
    }
    for (int64_t i = 0; i < d.kv_heads; i++)
        for (int64_t e = 0; e < width; e++)
            narrow1(values + (i * step.pool + slot) * width + e, qkv[(heads + d.kv_heads + i) * width + e]);
}

// What one thread does of the step; all threads of the team run it.
template <class Pool>
static void forward(const Decoder &d, const Step &step, const Cut &cut, const Buffers &b, int thread, int threads) {
    typedef typename Pool::E E;
    const int64_t tokens = step.reads.tokens, heads = d.kv_heads * d.group, hidden = d.hidden;
    const int64_t attended = heads * d.width, qkv_width = attended + 2 * d.kv_heads * d.width;
    const int64_t half_layer = d.kv_heads * step.pool * d.width;
    enum { POINTWISE, PRODUCTS, ATTENTION };
    const bool timed = step.spent && thread == 0;
    double last = timed ? omp_get_wtime() : 0;
    auto spend = [&](int part) {
        if (!timed) return;
        const double now = omp_get_wtime();
        step.spent[part] += now - last;
        last = now;
    };

    auto each_token = [&](auto work) {
        for (int64_t t = thread; t < tokens; t += threads) work(t);
#pragma omp barrier
        spend(POINTWISE);
    };
    auto each_tile = [&](Counter &counter, const Linear &w, int64_t count, auto work) {
        share(counter, count, chunk(w), work);
#pragma omp barrier
        spend(PRODUCTS);
    };
    auto linear = [&](Counter &counter, const Linear &w, const Rows &x, float *y) {
        each_tile(counter, w, tiles(w), [&](int64_t tile) { linear_tile(w, tile, x, tokens, y); });
    };

    for (int64_t l = 0; l < d.layers_count; l++) {
        const LayerWeights &layer = d.layers[l];
        Counter *counters = b.counters + l * Buffers::COUNTERS;
        E *keys = (E *)step.kv + 2 * l * half_layer, *values = keys + half_layer;
        const Heads h = {b.q, keys, values, b.attended, attended, step.pool, d.kv_heads, d.group, d.width, 1, d.scale};

        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, l ? b.added + t * hidden : nullptr, layer.input_norm, d.eps, hidden,
                         b.normed + t * hidden);
            prepare(b.normed + t * hidden, hidden, layer.qkv.bits, b.x, t);
        });
        linear(counters[0], layer.qkv, b.x, b.qkv);
        each_token([&](int64_t t) {
            place_heads(d, layer, step, t, b.qkv + t * qkv_width, (E *)b.q + t * attended, keys, values);
        });
        share(counters[1], cut.tasks(d.kv_heads), 1,
              [&](int64_t task) { attention_task<Pool>(step.reads, h, cut, task, b.partial); });
#pragma omp barrier
        spend(ATTENTION);
        each_token([&](int64_t t) {
            if (cut.splits > 1)
                for (int64_t i = t * heads; i < (t + 1) * heads; i++)
                    attention_merge<E>(step.reads, h, cut, i, b.partial);
            prepare(b.attended + t * attended, attended, layer.output.bits, b.x, t);
        });
        linear(counters[2], layer.output, b.x, b.added);
        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, b.added + t * hidden, layer.mlp_norm, d.eps, hidden,
                         b.normed + t * hidden);
            prepare(b.normed + t * hidden, hidden, layer.gate_up.bits, b.x, t);
        });
        each_tile(counters[3], layer.gate_up, d.inner / TILE,
                  [&](int64_t tile) { gated_tile(layer.gate_up, tile, b.x, tokens, b.inner); });
        each_token([&](int64_t t) { prepare(b.inner + t * d.inner, d.inner, layer.down.bits, b.gated, t); });
        linear(counters[4], layer.down, b.gated, b.added);
    }
    each_token([&](int64_t t) {
        add_norm_row(step.residual + t * hidden, b.added + t * hidden, d.final_norm, d.eps, hidden,
                     (E *)step.out + t * hidden);
    });
}
