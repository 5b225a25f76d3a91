// Tree attention in place: FlashAttention's online softmax (arXiv 2205.14135, algorithm 1), with the keys of a task
// split among threads where there are too few tasks, and partial results merged by their log-sum-exp, as
// Flash-Decoding does (arXiv 2402.19427 appendix; 2501.01005 section 2.2 for the merge).
//
// A task is a block of consecutive new tokens and one key-value head. It walks the segments that the block's tokens
// read, BLOCK keys at a time: the keys are fetched by slot and transposed, the values fetched, once for all the block's
// queries (all rows under a shared span, all heads of the group), and then everything is small products in the cache.
#pragma once
#include <type_traits>

#include "lines.h"
#include "scratch.h"

constexpr int64_t BLOCK_QUERIES = 96;  // queries (tokens times heads of the group) of a task

// New tokens first..end read slots[at .. at + length]; token first + i sees `before + i + 1` of them at most.
struct Segment {
    int64_t at, length, first, end, before, position;  // position: that of the first slot's token (for a window)
};

struct Reads {
    int64_t tokens, segments_count, window;  // window 0: none
    const Segment *segments;
    const int32_t *slots;
    const int64_t *positions;
};

// One layer's tensors: q [tokens, kv_heads * group, width] with q_stride elements between tokens, bfloat16 where `half`,
// else float32; keys and values [kv_heads, pool] lines of the pool's type; out [tokens, kv_heads * group, width],
// contiguous, of q's type, where the caller wants it there.
struct Heads {
    const void *q, *keys, *values;
    void *out;
    int64_t q_stride, pool, kv_heads, group, width, half, type;  // type: a PoolType
    float scale;
};

// How the tasks of a call are cut.
struct Cut {
    static constexpr int64_t MOST_SPLITS = 16;
    int64_t block_tokens, blocks, splits;
    Cut(const Reads &reads, int64_t kv_heads, int64_t group, int threads) {
        const int64_t most_tokens = most(1, BLOCK_QUERIES / group);
        // Rows that read nothing together are cut apart: as many key blocks are fetched, and no results are merged.
        int64_t key_blocks = fetched(reads, most_tokens);
        for (block_tokens = 1; block_tokens < most_tokens; block_tokens *= 2)
            if (fetched(reads, block_tokens) * 16 <= key_blocks * 17) break;
        block_tokens = least(block_tokens, most_tokens);
        blocks = (reads.tokens + block_tokens - 1) / block_tokens;
        key_blocks = 0;
        for (int64_t s = 0; s < reads.segments_count; s++) key_blocks += key_blocks_of(reads.segments[s]);
        // A task has a few key blocks at least, and there are some four tasks a thread, so that none waits long.
        const int64_t wanted = (4 * threads + blocks * kv_heads - 1) / (blocks * kv_heads);
        splits = threads == 1 ? 1 : most(1, least(least(wanted, MOST_SPLITS), key_blocks / (4 * blocks)));
    }
    static int64_t key_blocks_of(const Segment &s) { return (s.length + BLOCK - 1) / BLOCK; }
    // Key blocks that all tasks fetch for one head, if each has `tokens` tokens.
    static int64_t fetched(const Reads &reads, int64_t tokens) {
        int64_t count = 0;
        for (int64_t s = 0; s < reads.segments_count; s++) {
            const Segment &segment = reads.segments[s];
            count += ((segment.end - 1) / tokens - segment.first / tokens + 1) * key_blocks_of(segment);
        }
        return count;
    }
    int64_t tasks(int64_t kv_heads) const { return blocks * kv_heads * splits; }
    // float32s that partial results need: outputs, then largest scores and sums.
    int64_t partial_floats(int64_t tokens, const Heads &h) const {
        return splits == 1 ? 0 : splits * tokens * h.kv_heads * h.group * (h.width + 2);
    }
};

static thread_local Scratch attention_scratch;

// Who takes what attention has made of a token's head, [width]; a function with what it needs, so that the tasks are
// compiled once whoever that is.
struct Finish {
    void (*take)(const void *with, int64_t token, int64_t head, const float *out);
    const void *with;
    template <class F>
    Finish(const F &f)
        : take([](const void *of, int64_t token, int64_t head, const float *out) { (*(const F *)of)(token, head, out); }),
          with(&f) {}
    void operator()(int64_t token, int64_t head, const float *out) const { take(with, token, head, out); }
};

// What a task needs to know of the pool's type beyond the arithmetic, which is the template's argument.
struct LineCode {
    int64_t (*bytes)(int64_t width);
    void (*put)(const float *x, int64_t width, char *line);
    void (*fetch_keys)(const char *keys, int64_t width, const int32_t *slots, int64_t count, uint32_t *to,
                       const Ahead &ahead);
    void (*fetch_values)(const char *values, int64_t width, int64_t wide, const int32_t *slots, int64_t count,
                         uint32_t *to, const Ahead &ahead);
    void (*task)(const LineCode &code, const Reads &reads, const Heads &h, const Cut &cut, int64_t task, float *partial,
                 Finish finish);
};

// Bytes' scores become float32 here, times their keys' scales.
template <class Mac> static inline vf score_of(const float *row, const float *) { return load<vf>(row); }
template <> inline vf score_of<Ints>(const float *row, const float *scales) {
    return __builtin_convertvector(load<vi>(row), vf) * load<vf>(scales);
}

// finish(token, head, float *output) gets each query's result, unless keys are split: then it comes to `partial`.
template <class Mac>
RADIXRT_CLOSELY RADIXRT_ONCE static void attention_task(const LineCode &code, const Reads &reads, const Heads &h,
                                                        const Cut &cut, int64_t task, float *partial, Finish finish) {
    constexpr int STEP = Mac::STEP;
    constexpr bool BYTES = std::is_same<Mac, Ints>::value;
    const int64_t split = task % cut.splits, head = task / cut.splits % h.kv_heads;
    const int64_t block = task / cut.splits / h.kv_heads;
    const int64_t group = h.group, width = h.width, wide = round_up(width, VL), words = width / STEP;
    const int64_t t0 = block * cut.block_tokens, t1 = least(reads.tokens, t0 + cut.block_tokens);
    const int64_t queries = (t1 - t0) * group, bytes = code.bytes(width);
    const char *keys = (const char *)h.keys + head * h.pool * bytes;
    const char *values = (const char *)h.values + head * h.pool * bytes;

    Pieces pieces = {(char *)attention_scratch.need(
        4 * (queries * (words + (BYTES ? 2 : 1) * wide + BLOCK + BLOCK / 2 + 3) + BLOCK * (words + wide)) +
        8 * MOST_WIDTH + 11 * 64)};
    uint32_t *q = pieces.take<uint32_t>(queries * words), *columns = pieces.take<uint32_t>(BLOCK * words);
    uint32_t *lines = pieces.take<uint32_t>(BLOCK * wide), *weights = pieces.take<uint32_t>(queries * BLOCK / 2);
    float *scores = pieces.take<float>(queries * BLOCK), *out = pieces.take<float>(queries * wide);
    float *top = pieces.take<float>(queries), *total = pieces.take<float>(queries);
    float *scale = pieces.take<float>(queries), *wide_query = pieces.take<float>(MOST_WIDTH);
    float *sums = pieces.take<float>(BYTES ? queries * wide : 0);  // of a block's values, as integers
    float *key_scales = pieces.take<float>(BLOCK), *value_scales = pieces.take<float>(BLOCK);

    for (int64_t i = 0; i < queries; i++) {
        const int64_t at = (t0 + i / group) * h.q_stride + (head * group + i % group) * width;
        const float *from = (const float *)h.q + at;
        if (h.half) {
            for (int64_t e = 0; e < width; e++) wide_query[e] = ::wide(((const bf16 *)h.q)[at + e]);
            from = wide_query;
        }
        scale[i] = h.scale * Query::words(Mac(), from, width, q + i * words);
        top[i] = NEGATIVE_INFINITY;
        total[i] = 0;
    }
    memset(out, 0, queries * wide * sizeof(float));

    auto cost = [&](const Segment &s) { return least(s.end, t1) - most(s.first, t0) + 2; };
    int64_t all_work = 0, work = 0;
    if (cut.splits > 1)
        for (int64_t s = 0; s < reads.segments_count; s++) {
            const Segment &segment = reads.segments[s];
            if (segment.first < t1 && segment.end > t0)
                all_work += cost(segment) * ((segment.length + BLOCK - 1) / BLOCK);
        }

    for (int64_t s = 0; s < reads.segments_count; s++) {
        const Segment &segment = reads.segments[s];
        if (segment.first >= t1 || segment.end <= t0) continue;
        const int64_t first = most(segment.first, t0), end = least(segment.end, t1);
        const int64_t from = (first - t0) * group, count = (end - first) * group;
        // What token t sees of the segment: slots sees_from(t) .. sees_to(t).
        auto sees_to = [&](int64_t t) { return least(segment.length, segment.before + t - segment.first + 1); };
        auto sees_from = [&](int64_t t) {
            return reads.window ? most(0, reads.positions[t] - reads.window + 1 - segment.position) : 0;
        };
        int64_t seen_from = sees_from(first);  // rows of a shared span may stand at any position
        for (int64_t t = first + 1; reads.window && t < end; t++) seen_from = least(seen_from, sees_from(t));
        for (int64_t k = 0; k < segment.length; k += BLOCK, work += cost(segment)) {
            if (cut.splits > 1 && work * cut.splits / most(1, all_work) != split) continue;
            if (k >= sees_to(end - 1) || k + BLOCK <= seen_from) continue;
            const int64_t length = least(BLOCK, segment.length - k), padded = round_up(length, VL);
            const int32_t *slots = reads.slots + segment.at + k;
            Ahead ahead = {slots + BLOCK, least(BLOCK, segment.length - k - BLOCK)};
            if (ahead.count <= 0 && s + 1 < reads.segments_count && reads.segments[s + 1].first < t1)
                ahead = {reads.slots + reads.segments[s + 1].at, least(BLOCK, reads.segments[s + 1].length)};
            code.fetch_keys(keys, width, slots, length, columns, ahead);
            code.fetch_values(values, width, wide, slots, length, lines, ahead);
            for (int64_t j = 0; BYTES && j < padded; j++) {
                key_scales[j] = j < length ? ByteLines::scale(keys + slots[j] * bytes, width) : 0;
                value_scales[j] = j < length ? ByteLines::scale(values + slots[j] * bytes, width) : 0;
            }
            product<Mac>(q + from * words, words, count, columns, BLOCK, padded, words, scores + from * BLOCK, BLOCK,
                         false);
            for (int64_t i = from; i < from + count; i++) {
                const int64_t token = t0 + i / group;
                const int64_t a = most(0, sees_from(token) - k), b = least(length, sees_to(token) - k);
                float *row = scores + i * BLOCK;
                vf best = all(NEGATIVE_INFINITY);
                for (int64_t j = 0; j < padded; j += VL) {
                    vf score = score_of<Mac>(row + j, key_scales + j);
                    if (BYTES) store(row + j, score);
                    if (j < a || j + VL > b) {
                        const vi key = lanes() + (int32_t)j;
                        score = (key >= (int32_t)a) & (key < (int32_t)b) ? score : all(NEGATIVE_INFINITY);
                        store(row + j, score);
                    }
                    best = larger(score, best);
                }
                const float before = top[i], now = largest(best) * scale[i];
                const float highest = now > before ? now : before;
                const float base = highest == NEGATIVE_INFINITY ? 0 : highest;  // nothing seen: weights are e^-inf = 0
                vf added = vf{};
                for (int64_t j = 0; j < padded; j += VL) {
                    vf p = exponential(load<vf>(row + j) * scale[i] - base);
                    added += p;
                    if (BYTES) p = p > 0 ? p * load<vf>(value_scales + j) : vf{};  // a value's scale goes into its weight
                    if (STEP == 2 && !BYTES)
                        narrow((bf16 *)(weights + i * (BLOCK / 2)) + j, p);
                    else
                        store(row + j, p);
                }
                if (BYTES) {
                    int16_t *const rounded = (int16_t *)(weights + i * (BLOCK / 2));
                    row[0] = round_to_16(row, padded, largest_magnitude(row, padded), rounded);  // the sums' unit
                }
                if (highest > before && before > NEGATIVE_INFINITY) {  // before the first keys all is zero
                    const float shrink = exponential1(before - base);
                    total[i] *= shrink;
                    for (int64_t d = 0; d < wide; d += VL)
                        store(out + i * wide + d, load<vf>(out + i * wide + d) * shrink);
                }
                total[i] += sum(added);
                top[i] = highest;
            }
            if (STEP == 2)
                product<Mac>(weights + from * (BLOCK / 2), BLOCK / 2, count, lines, wide, wide, (length + 1) / 2,
                             (BYTES ? sums : out) + from * wide, wide, !BYTES);
            else
                product<Mac>((const uint32_t *)(scores + from * BLOCK), BLOCK, count, lines, wide, wide, length,
                             out + from * wide, wide, true);
            for (int64_t i = from; BYTES && i < from + count; i++)
                for (int64_t d = 0; d < wide; d += VL) {
                    const vf of_block = __builtin_convertvector(load<vi>(sums + i * wide + d), vf) * scores[i * BLOCK];
                    store(out + i * wide + d, load<vf>(out + i * wide + d) + of_block);
                }
        }
    }

    const int64_t heads = h.kv_heads * group;
    for (int64_t i = 0; i < queries; i++) {
        const int64_t token = t0 + i / group, query = head * group + i % group, line = token * heads + query;
        if (cut.splits > 1) {
            const int64_t part = split * reads.tokens * heads + line;
            memcpy(partial + part * width, out + i * wide, width * sizeof(float));
            float *ends = partial + cut.splits * reads.tokens * heads * width + 2 * part;
            ends[0] = top[i];
            ends[1] = total[i];
            continue;
        }
        const float share = 1 / total[i];
        for (int64_t d = 0; d < wide; d += VL) store(out + i * wide + d, load<vf>(out + i * wide + d) * share);
        finish(token, query, out + i * wide);
    }
}

template <class Lines> static inline const LineCode *code_of() {
    static const LineCode code = {Lines::bytes, Lines::put, fetch_keys<Lines>, fetch_values<Lines>,
                                  attention_task<typename Lines::Mac>};
    return &code;
}
static inline const LineCode &line_code(int64_t type) {
    switch (type) {
        case FLOAT32: return *code_of<WideLines<float>>();
        case BFLOAT16: return *code_of<HalfLines>();
        case FLOAT16: return *code_of<WideLines<f16>>();
        default: return *code_of<ByteLines>();
    }
}

// Partial results of one query (`line`: token times heads plus head) become its output, which `finish` gets.
RADIXRT_ONCE static void attention_merge(const Reads &reads, const Heads &h, const Cut &cut, int64_t line,
                                         const float *partial, Finish finish) {
    const int64_t heads = h.kv_heads * h.group, lines = reads.tokens * heads, width = h.width;
    const float *sums = partial + cut.splits * lines * width;
    float highest = NEGATIVE_INFINITY, total = 0, weight[Cut::MOST_SPLITS], out[MOST_WIDTH];
    for (int64_t s = 0; s < cut.splits; s++) highest = fmaxf(highest, sums[2 * (s * lines + line)]);
    for (int64_t s = 0; s < cut.splits; s++) {
        weight[s] = exponential1(sums[2 * (s * lines + line)] - highest);
        total += weight[s] * sums[2 * (s * lines + line) + 1];
    }
    for (int64_t d = 0; d < width; d++) {
        float x = 0;
        for (int64_t s = 0; s < cut.splits; s++) x += weight[s] * partial[(s * lines + line) * width + d];
        out[d] = x / total;
    }
    finish(line / heads, line % heads, out);
}
