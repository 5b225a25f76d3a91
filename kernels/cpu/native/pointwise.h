// Norms, rotation and gating of a row: float32 inside.
#pragma once
#include "vec.h"

// residual [n] += x (of type X, or null); out = residual / sqrt(mean(residual^2) + eps) * weight (arXiv 1910.07467).
// residual may be of type E: what is normed is then the sum as it was rounded.
template <class E, class X, class W, class O>
RADIXRT_ONCE static void add_norm_row(E *residual, const X *x, const W *weight, float eps, int64_t n, O *out) {
    vf squares = vf{};
    float rest = 0;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf v = widen(residual + i);
        if (x) {
            narrow(residual + i, v + widen(x + i));
            v = widen(residual + i);
        }
        squares += v * v;
    }
    for (; i < n; i++) {
        if (x) narrow1(residual + i, wide(residual[i]) + wide(x[i]));
        rest += wide(residual[i]) * wide(residual[i]);
    }
    const float scale = 1 / sqrtf((sum(squares) + rest) / n + eps);
    for (i = 0; i + VL <= n; i += VL) narrow(out + i, widen(residual + i) * scale * widen(weight + i));
    for (; i < n; i++) narrow1(out + i, wide(residual[i]) * scale * wide(weight[i]));
}

// Element i of a head turns with element i + width / 2; cos and sin as in ops.py (sin negated in its first half).
template <class E, class C, class O>
static void rotate(const E *x, const C *cos, const C *sin, int64_t width, O *out) {
    const int64_t half = width / 2;
    int64_t i = 0;
    for (; i + VL <= half; i += VL) {
        const vf a = widen(x + i), b = widen(x + i + half);
        narrow(out + i, a * widen(cos + i) + b * widen(sin + i));
        narrow(out + i + half, b * widen(cos + i + half) + a * widen(sin + i + half));
    }
    for (; i < half; i++) {
        const float a = wide(x[i]), b = wide(x[i + half]);
        narrow1(out + i, a * wide(cos[i]) + b * wide(sin[i]));
        narrow1(out + i + half, b * wide(cos[i + half]) + a * wide(sin[i + half]));
    }
}

static inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

template <class E> static void silu_mul_row(const E *gate, const E *up, int64_t n, E *out) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) narrow(out + i, silu(widen(gate + i)) * widen(up + i));
    for (; i < n; i++) narrow1(out + i, silu(all(wide(gate[i])))[0] * wide(up[i]));
}
