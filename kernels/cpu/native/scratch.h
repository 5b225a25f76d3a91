// Memory that grows to what is asked of it and is kept: one a thread and use.
#pragma once
#include <cstdlib>

#include "vec.h"

struct Scratch {
    char *data = nullptr;
    size_t size = 0;
    void *need(size_t bytes) {
        if (bytes > size) {
            free(data);
            size = bytes + bytes / 4;
            data = (char *)aligned_alloc(64, round_up(size, 64));
        }
        return data;
    }
    ~Scratch() { free(data); }
};

// Memory given out piece by piece, each at a cache line. From null: what it all comes to is (char *)at - (char *)nullptr.
struct Pieces {
    char *at;
    template <class T> T *take(int64_t count) {
        T *piece = (T *)at;
        at += round_up(count * (int64_t)sizeof(T), 64);
        return piece;
    }
};
