"""A sample's text, ids, logprobs and finish together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.checkpoint import Vocabulary
from radixrt.collect import Collector
from radixrt.messages import TokenDelta
from radixrt.params import SamplingParams
from radixrt.tokenizer.sample import Sample, Step


def feed(sample: Sample, groups: list[list[int]], finish: str = "length", logprobs: bool = False) -> list[Step]:
    """One step a group of ids; the finish comes in a step of its own, after a stop match at once."""
    steps = []
    for ids in groups:
        values = [-0.5] * len(ids) if logprobs else []
        steps.append(sample.step(TokenDelta(request_id=1, index=0, ids=ids, logprobs=values)))
        if steps[-1].stop_keep is not None:
            break
    steps.append(sample.step(TokenDelta(request_id=1, index=0, finish_reason=finish)))  # type: ignore[arg-type]
    return steps


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def ids_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.ids]


@settings(deadline=None)
@given(
    text=st.text("ab ;é🇨", max_size=20),
    stops=st.lists(st.text("ab ;é🇨", min_size=1, max_size=3), max_size=3),
    size=st.integers(1, 3),
    include=st.booleans(),
)
def test_text_ids_and_logprobs_agree(
    vocabulary: Vocabulary, text: str, stops: list[str], size: int, include: bool
) -> None:
    ids = vocabulary.encode(text)
    sampling = SamplingParams(stop=tuple(stops), logprobs=0, include_stop_str_in_output=include)
    sample = Sample(0, vocabulary, sampling, strip_space=False)
    steps = feed(sample, [ids[i : i + size] for i in range(0, len(ids), size)], logprobs=True)
    found = min(((text.index(s), len(s), s) for s in stops if s in text), default=None)
    entries = [entry for step in steps for entry in step.logprobs]
    assert sample.finished
    assert [entry.token_id for entry in entries] == ids[: len(entries)]
    assert all(entry.bytes == vocabulary.token_bytes(entry.token_id) for entry in entries)
    if found is None:
        assert (text_of(steps), ids_of(steps), len(entries)) == (text, ids, len(ids))
        assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("length", None)
        return
    start, length, stop = found
    shown = text[: start + length] if include else text[:start]
    assert text_of(steps) == shown
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", stop)
    end = len(text[: start + length].encode())
    keep = next(n for n in range(1, len(ids) + 1) if sum(len(vocabulary.token_bytes(i)) for i in ids[:n]) >= end)
    assert ids_of(steps) == ids[:keep]
    # The entries hold the visible text, and the last of them is needed for it.
    joined = b"".join(entry.bytes for entry in entries)
    assert joined.startswith(shown.encode())
    assert not entries or len(joined) - len(entries[-1].bytes) < len(shown.encode())


def test_the_stop_string_wins_over_an_end_that_comes_with_it(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("hello")
    for reason, stop_token in (("stop", None), ("stop", 7), ("length", None)):
        sample = Sample(0, vocabulary, SamplingParams(stop=("lo",)), strip_space=False)
        step = sample.step(
            TokenDelta(request_id=1, index=0, ids=ids, finish_reason=reason, stop_token=stop_token)
        )  # fmt: skip
        assert (step.text, step.finish_reason, step.stop_reason, step.stop_keep) == ("hel", "stop", "lo", None)


def test_without_a_match_the_schedulers_finish_stands(vocabulary: Vocabulary) -> None:
    sample = Sample(0, vocabulary, SamplingParams(stop=("xyz",)), strip_space=False)
    assert sample.step(TokenDelta(request_id=1, index=0, ids=vocabulary.encode("hix"))).text == "hi"
    step = sample.step(TokenDelta(request_id=1, index=0, finish_reason="stop", stop_token=9))
    assert (step.text, step.finish_reason, step.stop_reason) == ("x", "stop", 9)


def test_after_a_match_nothing_more_is_shown_and_it_is_told_once(vocabulary: Vocabulary) -> None:
    sample = Sample(0, vocabulary, SamplingParams(stop=("lo",), logprobs=0), strip_space=False)
    first = sample.step(TokenDelta(request_id=1, index=0, ids=vocabulary.encode("hello"), logprobs=[-1.0]))
    later = sample.step(TokenDelta(request_id=1, index=0, ids=vocabulary.encode("ab"), logprobs=[-1.0]))
    last = sample.step(TokenDelta(request_id=1, index=0, finish_reason="abort"))
    assert (first.text, first.stop_keep) == ("hel", 1)
    assert not later and later.stop_keep is None
    assert (last.text, last.ids, last.finish_reason, last.stop_reason) == ("", [], "stop", "lo")


def test_min_tokens(vocabulary: Vocabulary) -> None:
    sample = Sample(0, vocabulary, SamplingParams(stop=("a",), min_tokens=3), strip_space=False)
    steps = feed(sample, [[i] for i in vocabulary.encode("axaxax")])
    assert text_of(steps) == "ax" and len(ids_of(steps)) == 3


@pytest.mark.parametrize(("skip", "text", "tokens"), [(True, "hi", 2), (False, "hi<|im_start|>", 3)])
def test_logprobs_are_those_of_tokens_that_carry_text(
    vocabulary: Vocabulary, skip: bool, text: str, tokens: int
) -> None:
    sample = Sample(0, vocabulary, SamplingParams(logprobs=0, skip_special_tokens=skip), strip_space=False)
    ids = [*vocabulary.encode("hi"), 2]
    steps = feed(sample, [[i] for i in ids], logprobs=True)
    assert text_of(steps) == text and ids_of(steps) == ids
    assert len([entry for step in steps for entry in step.logprobs]) == tokens


def test_forced_characters_are_those_of_the_forced_tokens(vocabulary: Vocabulary) -> None:
    ids = [vocabulary.encode(text)[0] for text in ("{", "a", "b", "}", ";")]
    flags = [True, False, True, True, True]
    for stop, stream in (((), True), ((";",), True), ((), False)):
        sample = Sample(0, vocabulary, SamplingParams(stop=stop), strip_space=False)
        collector = Collector(1)
        deltas = [TokenDelta(request_id=1, index=0, ids=[i], forced=flag) for i, flag in zip(ids, flags, strict=True)]
        for delta in [*deltas, TokenDelta(request_id=1, index=0, finish_reason="stop")]:
            step: Step | None = sample.step(delta)
            if not stream and step is not None:
                step = sample.collect(step)
            if step is not None:
                collector.add(sample.delta(step))
        (choice,) = collector.generation().choices
        assert choice.text == ("{ab}" if stop else "{ab};")
        assert choice.forced == ((0, 1), (2, len(choice.text)))
