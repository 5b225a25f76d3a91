"""continuous_usage_stats: counts in every piece of a stream, the true ones at its end (R50)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from .conftest import Served
from .events import events

COUNTS = {"prompt_tokens", "completion_tokens", "total_tokens"}


def counted(chunks: list[dict[str, Any]]) -> list[int]:
    """The counts of generated tokens, piece by piece, after the rules that hold for all are checked."""
    usages = [chunk["usage"] for chunk in chunks]
    assert all(usage.keys() == COUNTS for usage in usages)
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    generated = [usage["completion_tokens"] for usage in usages]
    assert all(before <= after for before, after in pairwise(generated))
    return generated


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stop": "Äpf"}, {"max_tokens": 7}, {"return_token_ids": True}])
def test_a_chat_counts_up_to_its_usage(served: Served, more: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = events(served.chat(stream=True, stream_options=options, **more))
    generated = counted(chunks)
    assert generated[0] == 0 and generated[-1] == last["usage"]["completion_tokens"] > 5
    assert chunks[0]["usage"]["prompt_tokens"] == last["usage"]["prompt_tokens"] == len("<user>Hi\n<assistant>")
    assert last["choices"] == [] and last["usage"].keys() > COUNTS
    assert len(set(generated)) > 3


def test_completions_count_all_their_prompts(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body: dict[str, Any] = {"n": 2, "stream": True, "max_tokens": 9, "stream_options": options}
    *chunks, last = events(served.complete(["ab", "c"], **body))
    generated = counted(chunks)
    assert generated[-1] == last["usage"]["completion_tokens"] == 36
    assert chunks[0]["usage"]["prompt_tokens"] == last["usage"]["prompt_tokens"] == 3


def test_without_include_usage_there_is_no_last_piece_of_its_own(served: Served) -> None:
    for chunks in (
        events(served.chat(stream=True, max_tokens=4, stream_options={"continuous_usage_stats": True})),
        events(served.complete("a", stream=True, max_tokens=4, stream_options={"continuous_usage_stats": True})),
    ):
        assert counted(chunks)[-1] == 4 and all(chunk["choices"] for chunk in chunks)
    for off in ({"continuous_usage_stats": False}, {"continuous_usage_stats": None}):
        assert not any("usage" in chunk for chunk in events(served.chat(stream=True, stream_options=off)))
