"""The parts of a step add up to its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixrt.runner import parts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []

    def ticks() -> Iterator[float]:
        while True:
            yield times.pop(0)

    source = ticks()
    monkeypatch.setattr(parts, "perf_counter", lambda: next(source))
    return times


def test_parts_add_up(clock: list[float]) -> None:
    clock += [0.0, 1.0, 1.5, 4.5, 5.0, 5.25]
    watch = parts.Parts()
    watch.begin()
    watch.lap("plan")
    watch.lap("embed", {"products": 2.0, "attention": 0.5})
    watch.lap("sample")
    assert watch.end() == {
        "wait": 1.0, "send": 0.0, "plan": 0.5, "embed": 0.5, "products": 2.0, "attention": 0.5, "sample": 0.5,
    }  # fmt: skip
    clock += [5.5, 7.5, 8.0, 8.0]
    watch.sent()
    watch.begin()
    watch.lap("plan")
    second = watch.end()
    assert second == {"wait": 2.0, "send": 0.25, "plan": 0.5}
    assert set(second) | {"embed", "products", "attention", "sample"} <= set(parts.NAMES)
