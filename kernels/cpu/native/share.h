// How the threads of a team share work out: each has a stretch of its own, which it takes in order and a piece at a time, and
// then takes what the others have left of theirs. Weights are so read in long runs, and a thread that loses its core for a
// while is not waited for longer than for the piece it is at.
#pragma once
#include "openmp.h"

#include <atomic>

#include "linear.h"

struct Team {
    int thread, threads;
};

typedef std::atomic<int64_t> Counter;

constexpr int64_t CHUNK_BYTES = 16384;  // of weights that a thread takes at a time
constexpr int64_t AHEAD_BYTES = 4096;   // of weights that are asked of memory before a product begins

// Tiles that are taken at a time.
static inline int64_t chunk(const Linear &w) { return most(1, CHUNK_BYTES / tile_bytes(w)); }

// Runs work(i) for i < count, `chunk` at a time. counters: one a thread, 0 at first.
template <class Work>
static inline void share(const Team &team, Counter *counters, int64_t count, int64_t chunk, Work work) {
    for (int turn = 0; turn < team.threads; turn++) {
        const int owner = (team.thread + turn) % team.threads;
        const int64_t first = count * owner / team.threads, end = count * (owner + 1) / team.threads;
        for (int64_t at; (at = first + counters[owner].fetch_add(chunk, std::memory_order_relaxed)) < end;)
            for (int64_t i = at; i < least(end, at + chunk); i++) work(i);
    }
}

// Asks memory for the beginning of this thread's stretch of a product that comes next.
static inline void ask_ahead(const Team &team, const Linear &w) {
    const char *from = (const char *)w.weight + tiles(w) * team.thread / team.threads * tile_bytes(w);
    const int64_t bytes = least(AHEAD_BYTES, (const char *)w.weight + tiles(w) * tile_bytes(w) - from);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}
