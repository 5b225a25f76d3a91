// The C functions that Python calls. Every pointer is the caller's; nothing is kept. One translation unit, so that one
// call of the compiler makes the library.
#include <new>

#include "attention.h"
#include "choose.h"
#include "forward.h"
#include "linear.h"
#include "openmp.h"
#include "pointwise.h"
#include "scratch.h"

EXPORT int64_t radixrt_features(void) {
    int64_t features = 0;
#if defined(__AVX2__)
    features |= 1;
#endif
#if defined(RADIXRT_AVX512)
    features |= 2;
#endif
#if defined(RADIXRT_BF16)
    features |= 4;
#endif
#if defined(RADIXRT_AVX512) && defined(__AVX512VNNI__)
    features |= 8;
#endif
#if defined(__AVXVNNI__)
    features |= 16;
#endif
#if defined(__ARM_NEON)
    features |= 32;
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    features |= 64;
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    features |= 128;
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    features |= 256;
#endif
    return features;
}

EXPORT void radixrt_attention(const Reads *step_reads, const Heads *heads) {
    const Reads &reads = *step_reads;
    const Heads &h = *heads;
    const LineCode &code = line_code(h.type);
    static thread_local Scratch scratch;
    const Cut cut(reads, h.kv_heads, h.group, omp_get_max_threads());
    float *partial = (float *)scratch.need(4 * cut.partial_floats(reads.tokens, h) + 64);
    const int64_t lines = reads.tokens * h.kv_heads * h.group;
    const bool alone = cut.tasks(h.kv_heads) == 1;
    const auto finish = [&](int64_t token, int64_t head, const float *result) {
        const int64_t at = (token * h.kv_heads * h.group + head) * h.width;
        for (int64_t d = 0; h.half && d < h.width; d++) narrow1((bf16 *)h.out + at + d, result[d]);
        if (!h.half) memcpy((float *)h.out + at, result, h.width * sizeof(float));
    };
#pragma omp parallel if (!alone)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < cut.tasks(h.kv_heads); i++) code.task(code, reads, h, cut, i, partial, finish);
        if (cut.splits > 1) {
#pragma omp for
            for (int64_t i = 0; i < lines; i++) attention_merge(reads, h, cut, i, partial, finish);
        }
    }
}

// x [rows, inputs] (float32, or bfloat16 where `half`) made ready for products, and counters to share them out: memory of
// the calling thread until its next call. All threads of a team fill it.
struct Ready {
    Rows rows;
    float *widened;
    Counter *counters;
    Ready(const Linear &w, int64_t count) {
        static thread_local Scratch scratch;
        const int64_t threads = omp_get_max_threads();
        const auto lay_out = [&](char *memory) {
            Pieces pieces = {memory};
            rows.lay_out(count, w.inputs, pieces);
            widened = pieces.take<float>(count * w.inputs);
            counters = pieces.take<Counter>(threads);
            return pieces.at;
        };
        lay_out((char *)scratch.need(lay_out(nullptr) - (char *)nullptr));
        for (int i = 0; i < threads; i++) new (counters + i) Counter(0);
    }
    // Row r is made ready as number r, or row order[r] is.
    void fill(const Linear &w, const void *x, int64_t half, int64_t count, const int64_t *order = nullptr) const {
#pragma omp for
        for (int64_t r = 0; r < count; r++) {
            const int64_t from = (order ? order[r] : r) * w.inputs;
            const float *row = (const float *)x + from;
            if (half) {
                float *to = widened + r * w.inputs;
                for (int64_t i = 0; i < w.inputs; i++) to[i] = wide(((const bf16 *)x)[from + i]);
                row = to;
            }
            prepare(row, w.inputs, w.bits, rows, r);
        }
    }
};

// y float32[rows, outputs] = x times the weight, plus its bias.
EXPORT void radixrt_linear(const Linear *w, const void *x, int64_t half, int64_t rows, float *y) {
    const Ready ready(*w, rows);
#pragma omp parallel
    {
        ready.fill(*w, x, half, rows);
        const Team team = {omp_get_thread_num(), omp_get_num_threads()};
        share(team, ready.counters, tiles(*w), chunk(*w), [&](int64_t i) { linear_tile(*w, i, ready.rows, 0, rows, y); });
    }
}

EXPORT void radixrt_choose(const Choice *c, const void *x, int64_t half) {
    static thread_local Scratch scratch;
    const Linear &w = *c->head;
    const Ready ready(w, c->rows);
    Best *best = (Best *)scratch.need((sizeof(Best) * omp_get_max_threads() + 2 * sizeof(int64_t)) * c->rows);
    int64_t *order = (int64_t *)(best + c->rows * omp_get_max_threads());
    order_rows(*c, order, order + c->rows);
#pragma omp parallel
    {
        const Team team = {omp_get_thread_num(), omp_get_num_threads()};
        Best *own = best + team.thread * c->rows;
        for (int64_t r = 0; r < c->rows; r++) own[r] = {tile_floats{} + NEGATIVE_INFINITY, tile_ints{}, false};
        ready.fill(w, x, half, c->rows, order);
        share(team, ready.counters, tiles(w), chunk(w), [&](int64_t i) { choose_tile(*c, i, order, ready.rows, own); });
#pragma omp barrier
#pragma omp for
        for (int64_t r = 0; r < c->rows; r++) c->chosen[order[r]] = settle(*c, r, best, team.threads);
    }
}

// Packs q uint8[outputs, inputs] with float16 scales and shifts [outputs, inputs / GROUP] into `to` (see linear.h, windows.h).
EXPORT int64_t radixrt_packed_bytes(int64_t bits, int64_t outputs, int64_t inputs) {
    const Linear w = {bits, outputs, inputs, nullptr, nullptr};
    return tiles(w) * tile_bytes(w);
}
EXPORT void radixrt_pack(int64_t bits, int64_t outputs, int64_t inputs, const uint8_t *q, const uint16_t *scales,
                         const uint16_t *shifts, uint8_t *to) {
    const Linear w = {bits, outputs, inputs, nullptr, nullptr};
    const int64_t groups = inputs / GROUP;
#pragma omp parallel for
    for (int64_t tile = 0; tile < tiles(w); tile++) {
        uint8_t *const packed = to + tile * tile_bytes(w);
        memset(packed, 0, tile_bytes(w));
        for (int64_t o = 0; o < least(TILE, outputs - tile * TILE); o++) {
            const int64_t output = tile * TILE + o;
            const auto pack = bits == 8 ? pack_eight : pack_windows;
            pack(q + output * inputs, scales + output * groups, shifts + output * groups, inputs, o, packed);
        }
    }
}

// Bytes of scratch that a step needs.
EXPORT int64_t radixrt_forward_bytes(const Decoder *d, const Step *step) {
    const Cut cut(step->reads, d->kv_heads, d->group, omp_get_max_threads());
    return Buffers(*d, step->reads.tokens, cut, omp_get_max_threads(), nullptr).end - (char *)nullptr;
}
EXPORT void radixrt_forward(const Decoder *d, const Step *step) {
    const Cut cut(step->reads, d->kv_heads, d->group, omp_get_max_threads());
    const Buffers buffers(*d, step->reads.tokens, cut, omp_get_max_threads(), (char *)step->scratch);
    for (int64_t i = 0; i < buffers.counters_count; i++) new (buffers.counters + i) Counter(0);
#pragma omp parallel
    {
        const Team team = {omp_get_thread_num(), omp_get_num_threads()};
        forward(*d, *step, cut, buffers, team);
    }
}

// Below so many elements a parallel region costs more than it saves.
constexpr int64_t SERIAL = 8192;

template <class E>
static void add_norm(E *residual, const E *x, const E *weight, float eps, int64_t rows, int64_t n, E *out) {
#pragma omp parallel for if (rows * n > SERIAL)
    for (int64_t r = 0; r < rows; r++) add_norm_row(residual + r * n, x ? x + r * n : nullptr, weight, eps, n, out + r * n);
}
EXPORT void radixrt_add_norm(void *residual, const void *x, const void *weight, float eps, int64_t rows, int64_t n,
                             void *out, int64_t half) {
    if (half)
        add_norm((bf16 *)residual, (const bf16 *)x, (const bf16 *)weight, eps, rows, n, (bf16 *)out);
    else
        add_norm((float *)residual, (const float *)x, (const float *)weight, eps, rows, n, (float *)out);
}

template <class E> static void silu_mul(const E *gate_up, int64_t rows, int64_t n, E *out) {
#pragma omp parallel for if (rows * n > SERIAL)
    for (int64_t r = 0; r < rows; r++) silu_mul_row(gate_up + 2 * r * n, gate_up + (2 * r + 1) * n, n, out + r * n);
}
EXPORT void radixrt_silu_mul(const void *gate_up, int64_t rows, int64_t n, void *out, int64_t half) {
    if (half)
        silu_mul((const bf16 *)gate_up, rows, n, (bf16 *)out);
    else
        silu_mul((const float *)gate_up, rows, n, (float *)out);
}

template <class E>
static void rope(const E *x, int64_t stride, const E *cos, const E *sin, int64_t tokens, int64_t heads, int64_t width, E *out) {
#pragma omp parallel for if (tokens * heads * width > SERIAL)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++)
            rotate(x + t * stride + h * width, cos + t * width, sin + t * width, width, out + (t * heads + h) * width);
}
EXPORT void radixrt_rope(const void *x, int64_t stride, const void *cos, const void *sin, int64_t tokens, int64_t heads,
                         int64_t width, void *out, int64_t half) {
    if (half)
        rope((const bf16 *)x, stride, (const bf16 *)cos, (const bf16 *)sin, tokens, heads, width, (bf16 *)out);
    else
        rope((const float *)x, stride, (const float *)cos, (const float *)sin, tokens, heads, width, (float *)out);
}

// k, v [tokens, kv_heads, width] (elements between tokens: k_stride, v_stride; bfloat16 where `half`, else float32) into
// lines of the pool, whose type is a PoolType.
EXPORT void radixrt_write_kv(const char *k, int64_t k_stride, const char *v, int64_t v_stride, char *keys, char *values,
                             const int64_t *slots, int64_t tokens, int64_t kv_heads, int64_t pool, int64_t width,
                             int64_t half, int64_t type) {
    const LineCode &code = line_code(type);
    const int64_t line = code.bytes(width), bytes = half ? sizeof(bf16) : sizeof(float);
    const auto put = [&](const char *x, char *to) {
        if (type == (half ? BFLOAT16 : FLOAT32)) {
            memcpy(to, x, line);
            return;
        }
        float widened[MOST_WIDTH];
        if (half)
            for (int64_t d = 0; d < width; d++) widened[d] = wide(((const bf16 *)x)[d]);
        else
            memcpy(widened, x, width * sizeof(float));
        code.put(widened, width, to);
    };
#pragma omp parallel for if (tokens * kv_heads * width > SERIAL)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < kv_heads; h++) {
            put(k + (t * k_stride + h * width) * bytes, keys + (h * pool + slots[t]) * line);
            put(v + (t * v_stride + h * width) * bytes, values + (h * pool + slots[t]) * line);
        }
}
