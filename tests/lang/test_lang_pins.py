"""`s.pin` and `s.unpin`: what is pinned, for how long, under which salt; what a plan says of them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_backend import FakeBackend

from radixrt.errors import InvalidRequest, NotFound
from radixrt.lang import function, gen
from radixrt.results import Pin


class PinningBackend(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[tuple[list[int], float, dict[str, Any]]] = []
        self.unpinned: list[tuple[str, str | None]] = []
        self.over: set[str] = set()

    async def apin(self, prompt: Any, ttl: float, **options: Any) -> Pin:
        ids = prompt.ids.tolist()
        self.pinned.append((ids, ttl, options))
        return Pin(id=f"pin of {len(ids)}", tokens=len(ids), expires_in_s=ttl)

    async def aunpin(self, pin: Pin, *, cache_salt: str | None = None) -> Pin:
        if pin.id in self.over:
            raise NotFound("gone", code="pin_not_found")
        self.unpinned.append((pin.id, cache_salt))
        return pin


@function
def program(s):
    s += "see ab"
    s.pin(ttl=60)
    s.pin(ttl=90)
    s += "c" + gen("x", heal=False)
    s.pin(5)


def test_what_cannot_change_any_more_is_pinned_and_the_same_text_is_one_pin() -> None:
    backend = PinningBackend()
    state = program.run(backend=backend, cache_salt="mine", priority=2)
    first, second, last = backend.pinned
    assert first[0] == second[0] == backend.prompts[0][: len(first[0])] and len(first[0]) == len(backend.prompts[0]) - 1
    assert [entry[1] for entry in backend.pinned] == [60, 90, 5]
    assert all(entry[2] == {"cache_salt": "mine", "priority": 2} for entry in backend.pinned)
    assert len(last[0]) > len(first[0])
    assert [pin.expires_in_s for pin in state.pins] == [90, 5]
    backend.over.add(state.pins[0].id)
    state.unpin()
    assert state.pins == () and state.error is None, "what is over already is no fault"
    assert backend.unpinned == [(f"pin of {len(last[0])}", "mine")]


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), True, "60"])
def test_a_ttl_is_checked_where_it_is_written(ttl: Any) -> None:
    @function
    def wrong(s):
        s += "see"
        s.pin(ttl)

    with pytest.raises(InvalidRequest, match="ttl"):
        wrong.run(backend=PinningBackend())


def test_a_plan_says_what_is_pinned() -> None:
    @function
    def planned(s):
        s += "see"
        s.pin(60)
        s += gen("x")
        s.unpin()

    text = str(planned.explain())
    first = planned.__wrapped__.__code__.co_firstlineno
    assert f"  pin (test_lang_pins.py:{first + 3}): the text so far is kept for 60 s" in text
    assert f"  unpin (test_lang_pins.py:{first + 5}): what this branch has pinned is let go" in text
