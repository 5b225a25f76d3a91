// Tree attention in place: FlashAttention's online softmax (arXiv 2205.14135, algorithm 1), with the keys of a task
// split among threads where there are too few tasks, and partial results merged by their log-sum-exp, as
// Flash-Decoding does (arXiv 2402.19427 appendix; 2501.01005 section 2.2 for the merge).
//
// A task is a block of consecutive new tokens and one key-value head. It walks the segments that the block's tokens
// read, BLOCK keys at a time: the keys are fetched by slot and transposed, the values fetched, once for all the block's
// queries (all rows under a shared span, all heads of the group), and then everything is small products in the cache.
#pragma once
#include "product.h"
#include "scratch.h"

constexpr int64_t BLOCK = 64;          // keys at a time
constexpr int64_t BLOCK_QUERIES = 96;  // queries (tokens times heads of the group) of a task
constexpr int64_t MOST_WIDTH = 256;    // of a head

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

// One layer's tensors: q [tokens, kv_heads * group, width] with q_stride elements between tokens; keys and values
// [kv_heads, pool, width]; out [tokens, kv_heads * group, width], contiguous, of q's type, where the caller wants it there.
struct Heads {
    const void *q, *keys, *values;
    void *out;
    int64_t q_stride, pool, kv_heads, group, width;
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

// How a pool's elements become 32-bit elements of a product. STEP: keys (of a value) or dimensions (of a key) in one.
struct FloatPool {
    typedef float E;
    typedef Floats Mac;
    static constexpr int STEP = 1;
    static inline uint32_t word(const E *x, int64_t i) { return load<uint32_t>(x + i); }
};
struct WidenedPool {
    typedef bf16 E;
    typedef Floats Mac;
    static constexpr int STEP = 1;
    static inline uint32_t word(const E *x, int64_t i) { return (uint32_t)x[i] << 16; }
};
#if defined(RADIXRT_BF16)
struct PairPool {
    typedef bf16 E;
    typedef Pairs Mac;
    static constexpr int STEP = 2;
    static inline uint32_t word(const E *x, int64_t i) { return load<uint32_t>(x + 2 * i); }
};
typedef PairPool HalfPool;
#else
typedef WidenedPool HalfPool;
#endif

#if defined(RADIXRT_AVX512)
// 16 lines of 16 words -> their columns.
RADIXRT_INSIDE void transpose16(const uint32_t *const *lines, uint32_t *to, int64_t stride) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(lines[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88));
        _mm512_storeu_si512(to + (4 + i) * stride, _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0x88));
        _mm512_storeu_si512(to + (8 + i) * stride, _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd));
        _mm512_storeu_si512(to + (12 + i) * stride, _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0xdd));
    }
}
#endif

// Lines that will be fetched next: asked of memory while the ones at hand are worked on.
struct Ahead {
    const int32_t *slots;
    int64_t count;
    template <class E> inline void lines(const E *from, int64_t width, int64_t first, int64_t end) const {
        for (int64_t i = first; i < least(end, count); i++) {
            const char *line = (const char *)(from + slots[i] * width);
            for (int64_t b = 0; b < width * (int64_t)sizeof(E); b += 64) __builtin_prefetch(line + b, 0, 2);
        }
    }
};

// Keys of `count` slots as columns: to [words, BLOCK]; columns up to the next multiple of VL are zero.
template <class Pool>
RADIXRT_CLOSELY RADIXRT_ONCE static void fetch_keys(const typename Pool::E *keys, int64_t width, const int32_t *slots,
                                                    int64_t count, uint32_t *to, const Ahead &ahead) {
    const int64_t words = width / Pool::STEP, columns = round_up(count, VL);
    int64_t done = 0;
#if defined(RADIXRT_AVX512)
    if (sizeof(typename Pool::E) * Pool::STEP == 4 && words % 16 == 0) {
        for (; done < count; done += 16) {
            ahead.lines(keys, width, done, done + 16);
            static const uint32_t zeros[256] = {};
            const uint32_t *lines[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                lines[i] = done + i < count ? (const uint32_t *)(keys + slots[done + i] * width) : nullptr;
            for (int64_t w = 0; w < words; w += 16) {
                const uint32_t *part[16];
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) part[i] = lines[i] ? lines[i] + w : zeros;
                transpose16(part, to + w * BLOCK + done, BLOCK);
            }
        }
        ahead.lines(keys, width, done, BLOCK);
        return;
    }
#endif
    ahead.lines(keys, width, 0, BLOCK);
    for (; done < count; done++) {
        const typename Pool::E *key = keys + slots[done] * width;
        for (int64_t w = 0; w < words; w++) to[w * BLOCK + done] = Pool::word(key, w);
    }
    for (; done < columns; done++)
        for (int64_t w = 0; w < words; w++) to[w * BLOCK + done] = 0;
}

#if defined(RADIXRT_BF16)
// Which of two lines of 32 elements (those of the second counted from 32) come to lie where when they take turns.
struct Turns {
    uint16_t low[32], high[32];
    constexpr Turns() : low(), high() {
        for (int i = 0; i < 32; i++) low[i] = i / 2 + i % 2 * 32, high[i] = 16 + i / 2 + i % 2 * 32;
    }
};
#endif

// Values of `count` slots: to [ceil(count / STEP), wide]; a missing second of a pair and what lies beyond width are 0.
template <class Pool>
RADIXRT_CLOSELY RADIXRT_ONCE static void fetch_values(const typename Pool::E *values, int64_t width, int64_t wide,
                                                      const int32_t *slots, int64_t count, uint32_t *to,
                                                      const Ahead &ahead) {
    typedef typename Pool::E E;
    static const E nothing[MOST_WIDTH] = {};
    for (int64_t k = 0; k < count; k += Pool::STEP, to += wide) {
        ahead.lines(values, width, k, k + Pool::STEP);
        const E *value = values + slots[k] * width;
        const E *second = Pool::STEP == 2 && k + 1 < count ? values + slots[k + 1] * width : nothing;
        int64_t d = 0;
#if defined(RADIXRT_BF16)
        if (Pool::STEP == 2) {  // elements of the two in turn, 32 of each at once
            alignas(64) static constexpr Turns turns;
            const __m512i low = _mm512_load_si512(turns.low), high = _mm512_load_si512(turns.high);
            for (; d + 2 * VL <= width; d += 2 * VL) {
                const __m512i a = _mm512_loadu_si512(value + d), b = _mm512_loadu_si512(second + d);
                _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, low, b));
                _mm512_storeu_si512(to + d + VL, _mm512_permutex2var_epi16(a, high, b));
            }
        }
#endif
        for (; d + VL <= width; d += VL) {
            if (Pool::STEP == 2)
                store(to + d, __builtin_convertvector(load<vh>(value + d), vu) |
                                  (__builtin_convertvector(load<vh>(second + d), vu) << 16));
            else
                store(to + d, widen(value + d));
        }
        for (; d < width; d++) {
            if (Pool::STEP == 2) {
                to[d] = (uint32_t)value[d] | (uint32_t)second[d] << 16;
            } else {
                float x = ::wide(value[d]);
                memcpy(to + d, &x, 4);
            }
        }
        for (; d < wide; d++) to[d] = 0;
    }
    ahead.lines(values, width, round_up(count, Pool::STEP), BLOCK);
}

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

// finish(token, head, float *output) gets each query's result, unless keys are split: then it comes to `partial`.
template <class Pool>
RADIXRT_CLOSELY RADIXRT_ONCE static void attention_task(const Reads &reads, const Heads &h, const Cut &cut, int64_t task,
                                                        float *partial, Finish finish) {
    typedef typename Pool::E E;
    const int64_t split = task % cut.splits, head = task / cut.splits % h.kv_heads;
    const int64_t block = task / cut.splits / h.kv_heads;
    const int64_t group = h.group, width = h.width, wide = round_up(width, VL), words = width / Pool::STEP;
    const int64_t t0 = block * cut.block_tokens, t1 = least(reads.tokens, t0 + cut.block_tokens);
    const int64_t queries = (t1 - t0) * group;
    const E *keys = (const E *)h.keys + head * h.pool * width, *values = (const E *)h.values + head * h.pool * width;

    Pieces pieces = {(char *)attention_scratch.need(
        4 * (queries * (words + wide + BLOCK + BLOCK / 2 + 2) + BLOCK * (words + wide)) + 7 * 64)};
    uint32_t *q = pieces.take<uint32_t>(queries * words), *columns = pieces.take<uint32_t>(BLOCK * words);
    uint32_t *lines = pieces.take<uint32_t>(BLOCK * wide), *weights = pieces.take<uint32_t>(queries * BLOCK / 2);
    float *scores = pieces.take<float>(queries * BLOCK), *out = pieces.take<float>(queries * wide);
    float *top = pieces.take<float>(2 * queries), *total = top + queries;

    for (int64_t i = 0; i < queries; i++) {
        const E *from = (const E *)h.q + (t0 + i / group) * h.q_stride + (head * group + i % group) * width;
        for (int64_t w = 0; w < words; w++) q[i * words + w] = Pool::word(from, w);
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
            fetch_keys<Pool>(keys, width, slots, length, columns, ahead);
            fetch_values<Pool>(values, width, wide, slots, length, lines, ahead);
            product<typename Pool::Mac>(q + from * words, words, count, columns, BLOCK, padded, words,
                                        scores + from * BLOCK, BLOCK, false);
            for (int64_t i = from; i < from + count; i++) {
                const int64_t token = t0 + i / group;
                const int64_t a = most(0, sees_from(token) - k), b = least(length, sees_to(token) - k);
                float *row = scores + i * BLOCK;
                vf best = all(NEGATIVE_INFINITY);
                for (int64_t j = 0; j < padded; j += VL) {
                    vf score = load<vf>(row + j);
                    if (j < a || j + VL > b) {
                        const vi key = lanes() + (int32_t)j;
                        score = (key >= (int32_t)a) & (key < (int32_t)b) ? score : all(NEGATIVE_INFINITY);
                        store(row + j, score);
                    }
                    best = larger(score, best);
                }
                const float before = top[i], now = largest(best) * h.scale;
                const float highest = now > before ? now : before;
                const float base = highest == NEGATIVE_INFINITY ? 0 : highest;  // nothing seen: weights are e^-inf = 0
                vf added = vf{};
                for (int64_t j = 0; j < padded; j += VL) {
                    vf p = exponential(load<vf>(row + j) * h.scale - base);
                    added += p;
                    if (Pool::STEP == 2)
                        narrow((bf16 *)(weights + i * (BLOCK / 2)) + j, p);
                    else
                        store(row + j, p);
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
            if (Pool::STEP == 2)
                product<typename Pool::Mac>(weights + from * (BLOCK / 2), BLOCK / 2, count, lines, wide, wide,
                                            (length + 1) / 2, out + from * wide, wide, true);
            else
                product<typename Pool::Mac>((const uint32_t *)(scores + from * BLOCK), BLOCK, count, lines, wide, wide,
                                            length, out + from * wide, wide, true);
        }
    }

    const int64_t heads = h.kv_heads * group;
    for (int64_t i = 0; i < queries; i++) {
        const int64_t token = t0 + i / group, query = head * group + i % group, line = token * heads + query;
        if (cut.splits > 1) {
            const int64_t part = split * reads.tokens * heads + line;
            memcpy(partial + part * width, out + i * wide, width * sizeof(float));
            float *sums = partial + cut.splits * reads.tokens * heads * width + 2 * part;
            sums[0] = top[i];
            sums[1] = total[i];
            continue;
        }
        const float share = 1 / total[i];
        for (int64_t d = 0; d < wide; d += VL) store(out + i * wide + d, load<vf>(out + i * wide + d) * share);
        finish(token, query, out + i * wide);
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
