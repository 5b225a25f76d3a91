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
#include "scratch.h"
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
    void *kv;                // [layers, 2, kv_heads, pool] lines of the pool's type
    int64_t pool, type;      // slots; a PoolType
    const int64_t *wanted;   // [wanted_count] ascending: the tokens whose hidden states anybody reads
    int64_t wanted_count;    // -1: all
    void *out;               // [wanted_count or tokens, hidden], bfloat16 where `half`, else float32
    int64_t half;
    void *scratch;
    double *spent;           // [3] or null: seconds of pointwise parts, of products, of attention, waits included
};

// Where the parts of a step keep what they make.
struct Buffers {
    float *q, *attended, *added, *normed, *partial;  // normed: a row for each thread
    Rows x, gated;
    Counter *counters;
    int64_t counters_count;
    static constexpr int64_t SHARED = 8;  // things that are shared out in a layer, at most
    char *end;
    // Laid out from `memory`; null: only the size counts, which `end` then says.
    Buffers(const Decoder &d, int64_t tokens, const Cut &cut, int threads, char *memory) {
        Pieces pieces = {memory};
        const int64_t heads = d.kv_heads * d.group, widest = most(d.hidden, heads * d.width);
        Heads h = {};
        h.kv_heads = d.kv_heads, h.group = d.group, h.width = d.width;
        counters_count = (SHARED * d.layers_count + 1) * threads;  // and for the final norm
        counters = pieces.take<Counter>(counters_count);
        q = pieces.take<float>(tokens * heads * d.width);
        attended = pieces.take<float>(tokens * heads * d.width);
        added = pieces.take<float>(tokens * d.hidden);
        normed = pieces.take<float>(threads * round_up(d.hidden, GROUP));
        partial = pieces.take<float>(cut.partial_floats(tokens, h));
        x.lay_out(tokens, widest, pieces);
        gated.lay_out(tokens, d.inner, pieces);
        end = pieces.at;
    }
};

// Numbers first .. first + WINDOW, or to the end, of silu(gate) * up for rows from .. end, made ready for the product that
// follows (`bits` of that): a window is what scales need at most.
RADIXRT_ONCE static void gated_window(const Linear &w, int64_t window, const Rows &x, int64_t from, int64_t end,
                                      int64_t bits, const Rows &gated) {
    const int64_t n = w.outputs / 2, first = window * WINDOW, count = least(WINDOW, n - first);
    float *const gate = room(end - from, 2 * WINDOW), *const up = gate + WINDOW;
    for (int64_t at = 0; at < count; at += TILE) {
        products(w, (first + at) / TILE, x, from, end, gate + at, 2 * WINDOW);
        products(w, (first + at + n) / TILE, x, from, end, up + at, 2 * WINDOW);
    }
    for (int64_t row = from; row < end; row++) {
        float *const g = gate + (row - from) * 2 * WINDOW, *const u = up + (row - from) * 2 * WINDOW;
        if (w.bias)
            for (int64_t o = 0; o < count; o++) g[o] += w.bias[first + o], u[o] += w.bias[n + first + o];
        silu_mul_row(g, u, count, g);
        prepare(g, n, bits, gated, row, first, count);
    }
}

// One head of one token, which it spoils: norm where there is one, rotation; a query to q, a key or value into the pool.
RADIXRT_ONCE static void place_head(const Decoder &d, const LayerWeights &layer, const Step &step, const LineCode &code,
                                    int64_t token, int64_t i, float *head, const Heads &h) {
    const int64_t heads = d.kv_heads * d.group, width = d.width;
    const float *cos = step.cos + token * width, *sin = step.sin + token * width;
    const auto line = [&](const void *lines, int64_t of) {
        return (char *)lines + (of * step.pool + step.slots[token]) * code.bytes(width);
    };
    if (i >= heads + d.kv_heads) return code.put(head, width, line(h.values, i - heads - d.kv_heads));
    const float *norm = i < heads ? layer.q_norm : layer.k_norm;
    if (norm) add_norm_row(head, (const float *)nullptr, norm, d.eps, width, head);
    if (i < heads) return rotate(head, cos, sin, width, (float *)h.q + (token * heads + i) * width);
    float key[MOST_WIDTH];
    rotate(head, cos, sin, width, key);
    code.put(key, width, line(h.keys, i - heads));
}

// Head i of tokens first .. end: its product, placed. Where heads are no whole tiles, two compute the one that they share.
RADIXRT_ONCE static void head_product(const Decoder &d, const LayerWeights &layer, const Step &step, const LineCode &code,
                                      const Rows &x, int64_t i, int64_t first, int64_t end, const Heads &h) {
    const Linear &w = layer.qkv;
    const int64_t begin = i * d.width, from = begin / TILE, stop = (begin + d.width + TILE - 1) / TILE;
    const int64_t stride = (stop - from) * TILE;
    float *const part = room(end - first, stride);
    for (int64_t tile = from; tile < stop; tile++)
        products(w, tile, x, first, end, part + (tile - from) * TILE, stride);
    for (int64_t token = first; token < end; token++) {
        float *const head = part + (token - first) * stride + begin - from * TILE;
        if (w.bias)
            for (int64_t o = 0; o < d.width; o++) head[o] += w.bias[begin + o];
        place_head(d, layer, step, code, token, i, head, h);
    }
}

constexpr int64_t TOKENS_AT_ONCE = 8;  // that a thread takes to norm and round
constexpr int64_t SOME_TOKENS = 64;  // tokens of a tile, or of a head, that a thread takes at a time: there are few of those
static inline int64_t blocks_of(int64_t tokens) { return (tokens + SOME_TOKENS - 1) / SOME_TOKENS; }

// Moves the wanted tokens to the front: what attention has made of them (`bits` of the next product) and the residual.
static void keep_wanted(const Step &step, const Rows &x, int64_t inputs, int64_t bits, int64_t hidden) {
    const int64_t spans = (inputs + span(bits) - 1) / span(bits);
    for (int64_t k = 0; k < step.wanted_count; k++) {
        const int64_t from = step.wanted[k];
        if (from == k) continue;
        memcpy(step.residual + k * hidden, step.residual + from * hidden, hidden * sizeof(float));
        if (bits == 16) {
            memcpy(x.half + k * inputs, x.half + from * inputs, inputs * sizeof(row_half));
            continue;
        }
        const int64_t bytes = row_bytes(inputs, bits);
        memcpy(x.bytes + k * bytes, x.bytes + from * bytes, bytes);
        memcpy(x.scales + k * spans, x.scales + from * spans, spans * sizeof(float));
        memcpy(x.sums + k * spans, x.sums + from * spans, spans * sizeof(float));
        memcpy(x.pairs + k * spans, x.pairs + from * spans, spans * sizeof(uint32_t));
        memcpy(x.starts + k * spans, x.starts + from * spans, spans * sizeof(uint64_t));
    }
}

// What one thread does of the step; all threads of the team run it.
static void forward(const Decoder &d, const Step &step, const Cut &cut, const Buffers &b, const Team &team) {
    const LineCode &code = line_code(step.type);
    int64_t tokens = step.reads.tokens;  // in the last layer, behind attention, those that are wanted
    const int64_t heads = d.kv_heads * d.group, hidden = d.hidden;
    const int64_t attended = heads * d.width, half_layer = d.kv_heads * step.pool * code.bytes(d.width);
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
    Counter *counters = b.counters;  // of what is shared out next; all threads count alike
    auto share_out = [&](int64_t count, int64_t chunk, auto work) {
        share(team, counters, count, chunk, work);
        counters += team.threads;
    };
    auto each_token = [&](auto work) {
        share_out(tokens, TOKENS_AT_ONCE, work);
        meet(POINTWISE);
    };
    float *const normed = b.normed + team.thread * round_up(hidden, GROUP);
    // work(tile, first, end) for `count` tiles and all tokens; of many tokens a block at a time, so that nobody is waited
    // for long.
    auto share_tiles = [&](int64_t count, int64_t chunk, auto work) {
        const int64_t blocks = most(1, blocks_of(tokens));
        share_out(count * blocks, blocks > 1 ? 1 : chunk, [&](int64_t i) {
            const int64_t first = i % blocks * SOME_TOKENS;
            work(i / blocks, first, least(tokens, first + SOME_TOKENS));
        });
    };
    // y of a product; `then` is the next one, whose beginning is asked of memory before the others are waited for.
    auto linear = [&](const Linear &w, const Rows &x, float *y, const Linear *then) {
        share_tiles(tiles(w), chunk(w),
                    [&](int64_t tile, int64_t first, int64_t end) { linear_tile(w, tile, x, first, end, y); });
        if (then) ask_ahead(team, *then);
        meet(PRODUCTS);
    };

    for (int64_t l = 0; l < d.layers_count; l++) {
        const LayerWeights &layer = d.layers[l];
        const char *keys = (const char *)step.kv + 2 * l * half_layer, *values = keys + half_layer;
        const Heads h = {b.q, keys, values, nullptr, attended, step.pool, d.kv_heads, d.group, d.width, 0, step.type, d.scale};

        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, l ? b.added + t * hidden : nullptr, layer.input_norm, d.eps, hidden,
                         normed);
            prepare(normed, hidden, layer.qkv.bits, b.x, t);
        });

        share_tiles(heads + 2 * d.kv_heads, 1, [&](int64_t i, int64_t first, int64_t end) {
            head_product(d, layer, step, code, b.x, i, first, end, h);
        });
        meet(PRODUCTS);

        // A head's output goes straight into the rows of the next product, where it is whole groups or windows.
        const int64_t bits = layer.output.bits;
        const bool direct = bits == 16 || d.width % span(bits) == 0;
        auto finish = [&](int64_t token, int64_t head, const float *out) {
            if (direct)
                prepare(out, attended, bits, b.x, token, head * d.width, d.width);
            else
                memcpy(b.attended + token * attended + head * d.width, out, d.width * sizeof(float));
        };
        share_out(cut.tasks(d.kv_heads), 1,
                  [&](int64_t task) { code.task(code, step.reads, h, cut, task, b.partial, finish); });
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
        linear(layer.output, b.x, b.added, &layer.gate_up);
        each_token([&](int64_t t) {
            add_norm_row(step.residual + t * hidden, b.added + t * hidden, layer.mlp_norm, d.eps, hidden, normed);
            prepare(normed, hidden, layer.gate_up.bits, b.x, t);
        });
        share_tiles(windows(d.inner), 1, [&](int64_t window, int64_t first, int64_t end) {
            gated_window(layer.gate_up, window, b.x, first, end, layer.down.bits, b.gated);
        });
        ask_ahead(team, layer.down);
        meet(PRODUCTS);
        linear(layer.down, b.gated, b.added, l + 1 < d.layers_count ? &d.layers[l + 1].qkv : nullptr);
    }
    each_token([&](int64_t t) {
        float *const residual = step.residual + t * hidden, *const added = b.added + t * hidden;
        if (step.half)
            add_norm_row(residual, added, d.final_norm, d.eps, hidden, (bf16 *)step.out + t * hidden);
        else
            add_norm_row(residual, added, d.final_norm, d.eps, hidden, (float *)step.out + t * hidden);
    });
}
