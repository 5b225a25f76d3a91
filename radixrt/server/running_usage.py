"""Usage in every piece of a stream (vLLM's continuous_usage_stats): the tokens of the request so far."""

from __future__ import annotations

from collections import defaultdict

from radixrt.results import Delta
from radixrt.server.openai_shapes import ChunkUsage


class RunningUsage:
    """Counts what has been generated of all prompts and samples of a request.

    `prompt_tokens` are those of all prompts. The last count of a prompt is that of its own usage: tokens that a stop
    string took back are among them.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._generated: dict[int, int] = defaultdict(int)

    def add(self, delta: Delta, position: int = 0) -> None:
        """Count a piece of the answer to the prompt at `position`."""
        self._generated[position] += len(delta.token_ids)
        if delta.usage is not None:
            self._generated[position] = delta.usage.completion_tokens

    def body(self) -> ChunkUsage:
        generated = sum(self._generated.values())
        return ChunkUsage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=generated,
            total_tokens=self._prompt_tokens + generated,
        )
