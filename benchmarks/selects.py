"""What a select costs: eight options beside one, over the same prompt, and beside a request for each option.

    python benchmarks/selects.py [MODEL] [--prompt-tokens 1000] [--options 8] [--rounds 9] [--dtype auto]

The kinds take turns in changing order; a table shows the median seconds of each, and the median over the rounds of
its ratio to one option in the same round. `cold`: the prefix tree is empty. `warm`: the prompt is in it, and the
options are new ones each time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from radixrt import Engine, SamplingParams


class Bench:
    """Prompts and options are random token ids, so that nothing is in the tree by chance."""

    def __init__(self, engine: Engine, prompt_tokens: int, options: int, option_tokens: int) -> None:
        self._engine = engine
        self._random = random.Random(0)
        self._prompt = self._ids(prompt_tokens)
        self._options = options
        self._option_tokens = option_tokens

    def kinds(self) -> dict[str, Callable[[], object]]:
        made: dict[str, Callable[[], object]] = {"one option": lambda: self._select(1)}
        made[f"{self._options} options"] = lambda: self._select(self._options)
        made[f"{self._options} options, without the prompt too"] = lambda: self._select(
            self._options, "unconditional_likelihood_normalized"
        )
        made[f"{self._options} requests"] = self._requests
        return made

    def shuffled(self) -> list[tuple[str, Callable[[], object]]]:
        kinds = list(self.kinds().items())
        self._random.shuffle(kinds)
        return kinds

    def prepare(self, *, warm: bool) -> None:
        self._engine.flush()
        if warm:
            self._engine.generate(self._prompt, SamplingParams(max_tokens=1))

    def _select(self, count: int, method: str = "token_length_normalized") -> object:
        options = [self._ids(self._option_tokens) for _ in range(count)]
        return self._engine.select(self._prompt, options, method=method)  # type: ignore[arg-type]

    def _requests(self) -> object:
        """What it took before there was a select: prompt and option, scored, a request for each."""
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(self._prompt))
        prompts = [[*self._prompt, *self._ids(self._option_tokens)] for _ in range(self._options)]
        return [list(stream) for stream in [self._engine.stream(prompt, params) for prompt in prompts]]

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(100, self._engine.info.vocab_size - 100) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--options", type=int, default=8)
    parser.add_argument("--option-tokens", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    with Engine(arguments.model, dtype=arguments.dtype) as engine:
        bench = Bench(engine, arguments.prompt_tokens, arguments.options, arguments.option_tokens)
        for warm in (False, True):
            times: dict[str, list[float]] = {name: [] for name in bench.kinds()}
            for _ in range(arguments.rounds + 1):
                for name, run in bench.shuffled():
                    bench.prepare(warm=warm)
                    begun = time.perf_counter()
                    run()
                    times[name].append(time.perf_counter() - begun)
            kept = {name: values[1:] for name, values in times.items()}  # the first round warms up
            one = kept["one option"]
            print(f"\n{'warm' if warm else 'cold'}, {arguments.prompt_tokens} prompt tokens, "
                  f"{arguments.option_tokens} tokens an option, {arguments.rounds} rounds")  # fmt: skip
            for name, seconds in kept.items():
                ratio = statistics.median(a / b for a, b in zip(seconds, one, strict=True))
                print(f"  {name:40} {statistics.median(seconds) * 1000:9.1f} ms   x {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
