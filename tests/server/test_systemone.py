"""/v1/systemone: questions to selects, log-probabilities to answers, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from radixrt.messages import ChatPrompt
from radixrt.server.systemone import MAX_OPTIONS, labels_of

from .conftest import Served
from .events import error_of
from .fake_backend import logprob

STATE = {"order": 7, "note": "Where is it?"}
CHOICE = {
    "type": "choice",
    "instructions": "What is it?",
    "criteria": {"question": "asks", "complaint": None, "x": None},
}
SCORE = {"type": "score", "instructions": ["How", "urgent"], "criteria": ["can wait", "today", "now"]}
NOUL = {"type": "noul", "instructions": "It is rude."}


def ask(served: Served, questions: dict[str, Any], **more: Any) -> Any:
    response = served.post("/v1/systemone", {"state": STATE, "questions": questions, **more})
    assert response.status_code == 200, response.text
    return response.json()


def softmax(labels: str) -> list[float]:
    weights = [math.exp(logprob(ord(label))) for label in labels]
    return [weight / sum(weights) for weight in weights]


def test_answers_are_the_softmax_over_the_labels(served: Served) -> None:
    answer = ask(served, {"kind": CHOICE, "how": SCORE, "rude": NOUL}, cache_salt="s", priority=2)
    assert answer["model"] == "fake" and answer["answers"].keys() == {"kind", "how", "rude"}
    three, two = softmax("ABC"), softmax("AB")
    kind = answer["answers"]["kind"]
    assert kind["type"] == "choice" and kind["choice"] == ["question", "complaint", "x"][three.index(max(three))]
    assert list(kind["probabilities"].values()) == pytest.approx(three)
    assert kind["confidence"] == pytest.approx((max(three) - 1 / 3) / (2 / 3))
    how = answer["answers"]["how"]
    assert how["score"] == pytest.approx(three[1] + 2 * three[2]) and how["legend"]["2"] == "now"
    assert answer["answers"]["rude"] == {"type": "noul", "noul": pytest.approx(two[0])}
    assert answer["usage"]["output_tokens"] == 0 and answer["usage"]["input_tokens"] > 0
    prompt, _, _, salt, priority, _ = served.backend.selected  # type: ignore[misc]
    assert isinstance(prompt, ChatPrompt) and (salt, priority) == ("s", 2)
    assert prompt.messages[0].content.startswith('{"order":7,"note":"Where is it?"}\n\n'), "the state comes first"


@pytest.mark.parametrize("count", [2, 26, 27, MAX_OPTIONS])
def test_no_label_begins_another(count: int) -> None:
    labels = labels_of(count)
    assert len(set(labels)) == count
    assert not any(a != b and b.startswith(a) for a in labels for b in labels)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"state": "x", "questions": {}}, "questions"),
        ({"state": "x", "questions": {"q": {**CHOICE, "criteria": {"a": None}}}}, "questions.q.criteria"),
        ({"state": "x", "questions": {"q": {**SCORE, "criteria": ["a"] * 256}}}, "questions.q.criteria"),
        ({"state": "x", "questions": {"q": {**SCORE, "criteria": ["a", "b", "a"]}}}, "questions.q.criteria[2]"),
        ({"state": "x", "questions": {"q": {"type": "rank", "instructions": "x"}}}, "questions.q.type"),
        ({"state": "x", "questions": {"a": NOUL, "q": {**SCORE, "criteria": 5}, "z": NOUL}}, "questions.q.criteria"),
        ({"questions": {"q": NOUL}}, "state"),
        ({"state": "x", "questions": {"q": NOUL}, "temperature": 1}, "temperature"),
    ],
)
def test_what_is_refused(served: Served, body: dict[str, Any], param: str) -> None:
    assert error_of(served.post("/v1/systemone", body), 400)["param"] == param


def test_an_error_of_one_question_is_the_requests(served: Served) -> None:
    served.backend.alive = False
    assert error_of(served.post("/v1/systemone", {"state": "x", "questions": {"q": NOUL}}), 503)
