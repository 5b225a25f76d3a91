"""Stop strings against brute force over the whole text, whatever the tokens are."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt.tokenizer.stops import StopScanner


def brute_force(pieces: list[str], stops: list[str], min_tokens: int) -> tuple[int, str, int] | None:
    """(start, stop, tokens) of the earliest, then shortest, match that token `min_tokens` or a later one completes."""
    text = "".join(pieces)
    floor = len("".join(pieces[: max(0, min_tokens - 1)]))
    found = [
        (start, len(stop), stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and (start + len(stop) > floor or min_tokens <= 1)
    ]
    if not found:
        return None
    start, length, stop = min(found)
    tokens = next(n for n in range(1, len(pieces) + 1) if len("".join(pieces[:n])) >= start + length)
    return start, stop, tokens


def run(scanner: StopScanner, pieces: list[str]) -> str:
    text = ""
    for piece in pieces:
        text += scanner.push(piece)
        if scanner.match is not None:
            return text
    return text + scanner.finish()


letters = st.text("ab\n", max_size=4)


@given(
    pieces=st.lists(letters, max_size=14),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
    min_tokens=st.integers(0, 6),
    include=st.booleans(),
)
def test_equals_brute_force(pieces: list[str], stops: list[str], min_tokens: int, include: bool) -> None:
    scanner = StopScanner(tuple(stops), include=include, min_tokens=min_tokens)
    text = run(scanner, pieces)
    expected = brute_force(pieces, stops, min_tokens)
    whole = "".join(pieces)
    if expected is None:
        assert scanner.match is None
        assert text == whole
        return
    start, stop, tokens = expected
    assert scanner.match is not None
    assert (scanner.match.start, scanner.match.stop, scanner.match.keep) == (start, stop, tokens)
    assert text == (whole[: start + len(stop)] if include else whole[:start])
    if min_tokens == 0:
        assert text.startswith(whole[: min(whole.index(s) for s in stops if s in whole)])


@given(
    pieces=st.lists(letters, max_size=14),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_shown_text_is_never_taken_back_and_holds_no_more_than_it_must(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(tuple(stops))
    shown = seen = ""
    for piece in pieces:
        shown += scanner.push(piece)
        seen += piece
        if scanner.match is not None:
            break
        assert seen.startswith(shown)
        held = seen[len(shown) :]
        # What is held begins a stop string that may still be completed.
        assert not held or any(s.startswith(held) or s in held or held.startswith(s) for s in stops)
        assert len(held) < max(map(len, stops)) * 2


@pytest.mark.parametrize("stops", list(permutations(["\nStep", ";", ")"])))
def test_the_order_of_the_list_does_not_matter(stops: tuple[str, ...]) -> None:
    scanner = StopScanner(stops)
    assert run(scanner, ["a", ") b", "; c\nSt", "ep"]) == "a"
    assert scanner.match is not None and scanner.match.stop == ")"


def test_a_match_waits_for_an_earlier_one_that_may_still_come() -> None:
    scanner = StopScanner(("abc", "b"))
    assert scanner.push("xab") == "x"
    assert scanner.match is None and scanner.candidate is not None and scanner.candidate.keep == 1
    assert scanner.push("c") == ""
    assert scanner.match is not None and (scanner.match.stop, scanner.match.start, scanner.match.keep) == ("abc", 1, 2)
    scanner = StopScanner(("abc", "b"))
    assert scanner.push("xab") + scanner.push("d") == "xa"
    assert scanner.match is not None and (scanner.match.stop, scanner.match.keep) == ("b", 1)


def test_flushed_text_counts_as_the_last_tokens() -> None:
    scanner = StopScanner(("\ufffd",))
    assert scanner.push("a") == "a"
    assert scanner.push("") == ""
    assert scanner.finish("\ufffd") == ""
    assert scanner.match is not None and scanner.match.keep == 2
