"""Stop strings against brute force over the whole text, whatever the tokens are."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt.errors import InvalidRequest
from radixrt.tokenizer.stops import LOOK_BACK, StopScanner, compiled


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


# --- patterns --------------------------------------------------------------------------------------------------------

PATTERNS = [r"ab+a", r"\n\n", r"b[ab]b", r"(?<=a)\n", r"\ba\b", r"^b", r"a{3}"]


@given(
    text=st.text("ab\n ", max_size=20), patterns=st.lists(st.sampled_from(PATTERNS), max_size=2), include=st.booleans()
)
def test_patterns_equal_a_search_after_each_token(text: str, patterns: list[str], include: bool) -> None:
    scanner = StopScanner((), patterns, include=include)
    shown = run(scanner, list(text))
    for count in range(1, len(text) + 1):
        found = [m for pattern in patterns if (m := re.search(pattern, text[:count]))]
        # A match that more text may take back (a word's end) counts as soon as it is there.
        if found:
            first = min(found, key=lambda m: (m.start(), m.end()))
            if scanner.match is not None and scanner.match.keep > count:
                continue  # an earlier match was about to be completed, and was
            assert scanner.match is not None
            assert (scanner.match.start, scanner.match.keep) == (first.start(), count)
            assert shown == text[: first.end() if include else first.start()]
            return
    if scanner.match is None:
        assert shown == text


def test_text_that_a_pattern_may_take_back_is_held() -> None:
    scanner = StopScanner((), [r"\n[0-9]+\."])
    assert scanner.push("One\n") == "One"
    assert scanner.push("12") == ""
    assert scanner.push("x\n") == "\n12x"
    assert scanner.push("3") == ""
    assert scanner.push(". two") == ""
    assert scanner.match is not None and (scanner.match.start, scanner.match.stop) == (7, r"\n[0-9]+\.")


def test_a_pattern_and_a_string_together() -> None:
    scanner = StopScanner(("END",), [r"[0-9]{2}"], min_tokens=2)
    assert run(scanner, ["12", " 3", "E", "ND4"]) == "12 3"
    assert scanner.match is not None and scanner.match.stop == "END" and scanner.match.keep == 4


def test_a_pattern_sees_a_little_of_what_was_released() -> None:
    scanner = StopScanner((), [r"(?<=x)y"])
    assert scanner.push("x" * (2 * LOOK_BACK)) == "x" * (2 * LOOK_BACK)
    assert scanner.push("y") == "" and scanner.match is not None


@pytest.mark.parametrize("pattern", ["(", "a*", "", "[z-a]", "(?P<x>"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(pattern)
    assert caught.value.param == "stop_regex"


def test_a_pattern_that_takes_for_ever_fails_its_request() -> None:
    scanner = StopScanner((), [r"(?:a|a|aa)+(?:b|c)d{2}$"])
    with pytest.raises(InvalidRequest, match="takes too long") as caught:
        run(scanner, ["aaaa"] * 200)
    assert (caught.value.param, caught.value.code) == ("stop_regex", "stop_regex_too_complex")
