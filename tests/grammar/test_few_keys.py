"""How many keys patterns leave: against all short texts, and the masks against a search that trusts no count."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest
from test_keys import ONE, made
from test_matcher import walk

from radixrt.grammar import fresh
from radixrt.grammar.backends import Backends
from radixrt.grammar.few_keys import few_keys
from radixrt.grammar.outline import outline_of


def test_keys_that_cannot_run_out_cost_no_search_and_the_mask_is_the_same(
    compiler: Backends, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 255 possible keys at least, few paths are looked at; whoever looks at all of them finds the same tokens."""
    schema = {"type": "object", "patternProperties": {"^[ab]{1,255}$": ONE}, "additionalProperties": False}
    searches = []
    search = fresh.is_key_left
    monkeypatch.setattr(fresh, "is_key_left", lambda *args: searches.append(args[-1]) or search(*args))
    masks = []
    for least in (255, 1):
        monkeypatch.setattr("radixrt.grammar.llguidance_backend.few_keys", lambda document, n=least: n)
        grammar = compiler.compile(made(schema))
        masks.append(
            [allowed for seed in range(6) for *_, allowed in walk(grammar, vocab_size, random.Random(seed), 20)]
        )
    assert masks[0] == masks[1] and max(map(len, masks[0])) > 4
    assert 0 < 2 * searches.count(255) < searches.count(1)


@pytest.mark.parametrize(
    ("patterns", "more", "few"),
    [
        ({"^(/[^/]+)+$": ONE}, {}, None),
        ({"^[0-9a-zA-Z_-]{1,255}$": ONE}, {}, 255),
        ({"^[0-9a-zA-Z_-]{1,255}$": ONE}, {"properties": {"a": ONE, "b": ONE}, "required": ["b", "c"]}, 252),
        ({"^[ab]$": ONE}, {}, 1),
        ({"^[ab]$": ONE, "^c+$": ONE}, {}, 1),
        ({"^[ab]+$": ONE, "^c+$": ONE}, {}, None),
        ({".+": False}, {"additionalProperties": True}, 1),
        ({".+": ONE}, {"additionalProperties": True}, None),
        ({"^.+$": ONE}, {"allOf": [{"patternProperties": {".+": ONE}}]}, None),
        ({"^.+$": ONE}, {"allOf": [{"patternProperties": {"^a": ONE}}]}, 1),
        ({"^a{1,9}$": ONE}, {"allOf": [{"patternProperties": {"^a{1,9}$": ONE}}]}, 1),
    ],
)
def test_how_few_keys_patterns_leave(patterns: dict[str, Any], more: dict[str, Any], few: int | None) -> None:
    assert few_keys({"patternProperties": patterns, "additionalProperties": False, **more}) == few


PATTERNS = ["a", "^a", "^a$", "^a*$", "^a+$", "^(ab)+$", "^(ab)*a$", "^(a|b+)$", "^(a+|b+)$", "^(a+|b*)c?$", "^a{2,4}$",
            "^(a|b){1,3}$", "^(a?){3}$", "^(a{2}){1,2}b?$", "^a|b$", "^(?:a*b*)*$", "^[ab]{2,}$", "^(a(b|c){0,2})$",
            "^(a+)?$", "^(a+){0}b$", r"^\w{1,2}$", "^(b|)$", "^(b|)+$", "^$", "", "^a(b$)"]  # fmt: skip

MODEST = ("^(ab)*a$", "^(a+|b*)c?$", "^(a|b+)$", "^(b|)+$")
"""Patterns of infinitely many texts, of which too little is seen to say so."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_outline_promises_no_more_than_all_texts_of_six_letters_show(pattern: str) -> None:
    texts = ["".join(some) for size in range(7) for some in itertools.product("abc", repeat=size)]
    found = [text for text in texts if re.search(pattern.replace("$", r"\Z"), text)]
    outline = outline_of(pattern)
    assert (outline is None) is (pattern in ("^a|b$", "^a(b$)"))
    if outline is None:
        return
    assert len(found) >= min(outline.least, 3)
    if outline.endless:
        short = {text[:size] for text in found if len(text) < 4 for size in range(len(text) + 1)}
        assert short and all(any(len(text) > 4 and text.startswith(one) for text in found) for one in short)
    longest = max(map(len, found))
    assert outline.endless or longest < 6 or pattern in MODEST


@pytest.mark.parametrize(
    ("pattern", "endless"),
    [
        *(
            (p, True)
            for p in ("^x-", "a", "", "^[a-z]+$", "^[a-zA-Z_][\\w.-]*$", "^.*$", "^a{2,}$", "^(?:a*)$", "^\\d+\\.x*$")
        ),
        *((p, False) for p in ("^a$", "^[ab]$", "^a+b$", "^a{1,3}$", "a$|^b+", "^(a|b+)$", "^a+(b)$", "^a?$")),
    ],
)
def test_patterns_that_never_run_out(pattern: str, endless: bool) -> None:
    """Only those whose words can all go on: the others are followed key by key."""
    outline = outline_of(pattern)
    assert (outline is not None and outline.endless) is endless
    assert (few_keys({"patternProperties": {pattern: {}}, "additionalProperties": False}) is None) is endless
    assert few_keys({"patternProperties": {pattern: {}}}) is None
