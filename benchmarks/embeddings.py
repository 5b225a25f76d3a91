"""How many texts a second an engine embeds: short ones and long ones, one at a time and in lists; median of rounds.

python benchmarks/embeddings.py --model all-minilm-l6-v2
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from radixrt import Engine

WORDS = (
    "river", "town", "paper", "stone", "light", "garden", "seven", "market", "winter", "letter", "cloud", "bread",
    "north", "silver", "window", "road",
)  # fmt: skip
SHAPES = ((1, 12), (64, 12), (256, 12), (1, 150), (64, 150))
"""(texts of a call, words of a text)"""


def texts(count: int, words: int, chooser: random.Random) -> list[str]:
    return [" ".join(chooser.choices(WORDS, k=words)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chooser = random.Random(asked.seed)
    with Engine(asked.model, dtype=asked.dtype) as engine:
        print(f"{asked.model}, {engine.info.dtype}, {engine.info.threads} threads")
        print("texts a call | words a text | ms a call | texts/s | tokens/s")
        for count, words in SHAPES:
            engine.embed(texts(count, words, chooser))
            spent, tokens = [], 0
            for _ in range(asked.rounds):
                given = texts(count, words, chooser)
                begun = time.perf_counter()
                tokens = engine.embed(given).usage.prompt_tokens
                spent.append(time.perf_counter() - begun)
            seconds = statistics.median(spent)
            print(f"{count} | {words} | {1000 * seconds:.1f} | {count / seconds:.0f} | {tokens / seconds:.0f}")


if __name__ == "__main__":
    main()
