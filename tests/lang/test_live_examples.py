"""Every example runs on the real model, and keeps to its form."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from radixrt.lang import set_default_backend
from radixrt.lang.examples import citations, judge, react, tree_of_thought
from radixrt.lang.examples.extraction import Visit

if TYPE_CHECKING:
    from radixrt import Engine

FOLDER = Path(__file__).parents[2] / "lang" / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.fixture(autouse=True)
def default(engine: Engine) -> Iterator[None]:
    set_default_backend(engine)
    yield
    set_default_backend(None)


def check_agents(state: Any) -> None:
    assert len(state["advice"]) == 3 and all(state["advice"])
    assert state.usage.cached_tokens > 0


def check_tree_of_thought(state: Any) -> None:
    assert len(state["path"]) == 2
    assert set(state["grade"]) <= set(tree_of_thought.GRADES)


def check_self_consistency(state: Any) -> None:
    assert len(state["answers"]) == 5 and state["answers"].count(state["answer"]) >= 1


def check_skeleton_of_thought(state: Any) -> None:
    assert len(state["points"]) == len(state["sentence"]) == 3
    assert state.messages()[2]["content"].startswith(f"1. {state['points'][0]}\n2. ")


def check_extraction(state: Any) -> None:
    text = state.get("visit", str)
    assert text.startswith('{"city":')
    if state.meta("visit").finish_reason == "stop":
        assert Visit.model_validate_json(text) == state["visit"]


def check_judge(state: Any) -> None:
    assert len(state["grade"]) == 3 and set(state["grade"]) <= set(judge.GRADES)
    assert state["verdict"] == ("send it" if sum(map(int, state["grade"])) >= 9 else "write it again")


def check_few_shot(states: Any) -> None:
    assert [state["label"] in (" bug", " wish") for state in states] == [True] * 3
    assert sum(state.usage.cached_tokens for state in states) > 0  # the examples before the texts


def check_react(state: Any) -> None:
    ((name, arguments),) = state["calls"][:1]
    assert name == "price" and f"{react.PRICES[arguments['item']]} crowns" in state.text()
    assert state.messages()[3]["role"] == "tool"


def check_chat(state: Any) -> None:
    assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]
    assert state["answer0"] and state["answer1"]


def check_citations(state: Any) -> None:
    assert state["source"] in citations.PASSAGES
    assert state.messages()[-1]["content"] == f"{state['answer']} {state['source']}"


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = importlib.import_module(f"radixrt.lang.examples.{name}").main()
    assert capsys.readouterr().out.strip()
    globals()[f"check_{name}"](result)
