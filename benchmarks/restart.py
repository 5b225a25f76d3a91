"""What a cache directory is worth after a restart: the same prompt to a fresh engine, with the directory and without.

    python benchmarks/restart.py [MODEL] [--tokens 1400] [--rounds 3] [--dtype auto]

An engine fills a directory and is closed. Then, in turns, an engine is started over that directory (warm) and one
without any (cold); each is asked once for 16 tokens behind a prompt of `--tokens` tokens after a short request that
wakes everything else up. Shown: seconds to the first token (the prefetch included), prompt tokens that were cached, and
seconds that the start took. The answers must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import numpy as np

from radixrt import Engine, SamplingParams


def prompt(tokens: int) -> list[int]:
    return np.random.default_rng(0).integers(1000, 40_000, tokens).tolist()


def once(model: str, ids: list[int], dtype: str, cache_dir: str | None) -> tuple[float, float, int, tuple[int, ...]]:
    """(seconds of the start, seconds to the first token, cached tokens, the answer)."""
    began = time.perf_counter()
    with Engine(model, dtype=dtype, cache_dir=cache_dir, cache_dir_bytes=2 << 30) as engine:
        started = time.perf_counter() - began
        engine.generate([1, 2, 3], SamplingParams(max_tokens=2, temperature=0))
        answer = engine.generate(ids, SamplingParams(max_tokens=16, temperature=0, ignore_eos=True))
    return started, answer.usage.ttft_s, answer.usage.cached_tokens, answer.token_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=1400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    ids = prompt(options.tokens)
    with tempfile.TemporaryDirectory() as directory:
        *_, first = once(options.model, ids, options.dtype, directory)
        found: dict[str, list[tuple[float, float, int]]] = {"cold": [], "warm": []}
        for _ in range(options.rounds):
            for name, cache_dir in (("cold", None), ("warm", directory)):
                *figures, answer = once(options.model, ids, options.dtype, cache_dir)
                found[name].append((figures[0], figures[1], figures[2]))
                same = "the same answer" if answer == first else "ANOTHER ANSWER"
                print(f"{name}: start {figures[0]:.2f} s, first token {figures[1]:.3f} s, {figures[2]} cached, {same}")
    print("\n| restart | start, s | first token, s | cached tokens |\n|---|---|---|---|")
    for name, rows in found.items():
        start, ttft, cached = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {start:.2f} | {ttft:.3f} | {cached:.0f} of {options.tokens} |")
    ratio = statistics.median(row[1] for row in found["cold"]) / statistics.median(row[1] for row in found["warm"])
    print(f"first token, cold over warm: {ratio:.1f}")


if __name__ == "__main__":
    main()
