"""`return_timings`: where a request's time went, on demand alone, the same whole and streamed."""

from __future__ import annotations

import json

import pytest

from radixrt.results import ConstraintReport

from .conftest import Served
from .events import error_of

TIMINGS = {
    "queue_ms": 2.0, "grammar_ms": 1.0, "prefill_ms": 10.0, "time_to_first_token_ms": 12.0, "generation_ms": 38.0,
    "total_ms": 50.0,
}  # fmt: skip
"""Of what the fake backend says of its times."""


def answers(served: Served, route: str, stream: bool, **body: object) -> list[dict]:
    given = {"prompt": "Hi"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    answer = served.post(route, {**given, **body, "stream": stream})
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()]
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_timings_are_there_exactly_where_they_are_asked_for(served: Served, route: str, stream: bool) -> None:
    assert all("radixrt" not in one for one in answers(served, route, stream))
    assert all("radixrt" not in one for one in answers(served, route, stream, return_timings=False))
    told = [one["radixrt"] for one in answers(served, route, stream, return_timings=True, n=2) if "radixrt" in one]
    assert told == [{"timings": TIMINGS}]
    served.backend.report = ConstraintReport(backend="xgrammar")
    constrained = answers(served, route, stream, return_timings=True, regex="abc")
    (both,) = [one["radixrt"] for one in constrained if "radixrt" in one]
    assert both["constraint"]["backend"] == "xgrammar" and both["timings"] == TIMINGS


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_have_one_answer_of_times(served: Served, stream: bool) -> None:
    told = answers(served, "/v1/completions", stream, prompt=["a", "bc", "def"], return_timings=True)
    assert [one["radixrt"] for one in told if "radixrt" in one] == [{"timings": TIMINGS}]


def test_it_is_a_flag(served: Served) -> None:
    assert error_of(served.complete("a", return_timings=1), 400)["param"] == "return_timings"
