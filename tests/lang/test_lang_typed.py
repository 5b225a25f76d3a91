"""gen(type=...): the constraint that a type becomes, and the value that comes back."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Any, Literal

import pytest
from fake_backend import FakeBackend
from pydantic import BaseModel

from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramError, ProgramState, function, gen, select
from radixrt.lang.typed import FLOAT_PATTERN, INT_PATTERN, codec_for


class Bird(BaseModel):
    name: str
    legs: int = 2
    parent: Bird | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def run(backend: FakeBackend, text: str, **arguments: Any) -> ProgramState:
    backend.script = lambda _: text

    @function
    def program(s):
        s += "Q" + gen("x", **arguments) + "."

    return program.run(backend=backend)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (int, "-42", -42),
        (float, "2.5e3", 2500.0),
        (float, "7", 7.0),
        (str, "free", "free"),
        (list[int], "[1,2]", [1, 2]),
        (Point, '{"x":1,"y":2.5}', Point(1, 2.5)),
        (Bird, '{"name":"owl","parent":{"name":"big"}}', Bird(name="owl", parent=Bird(name="big"))),
        (dict[str, int], '{"a":1}', {"a": 1}),
        (int | None, "null", None),
    ],
)
def test_values_have_their_type(backend: FakeBackend, type_: Any, text: str, value: object) -> None:
    state = run(backend, text, type=type_)
    assert state["x"] == value and type(state["x"]) is type(value)
    assert state.get("x", type_) == value
    assert state.get("x", str) == text
    assert state.text() == f"Q{text}."


@pytest.mark.parametrize(
    ("type_", "choices", "first"),
    [
        (bool, ("True", "False"), True),
        (Literal["a", "b c"], ("a", "b c"), "a"),
        (Literal[3, "x", None], ("3", "x", "None"), 3),
        (Colour, ("red", "blue"), Colour.RED),
    ],
)
def test_finite_types_are_choices(backend: FakeBackend, type_: Any, choices: tuple[str, ...], first: object) -> None:
    state = run(backend, "", type=type_)
    constraint = backend.constraints[0]
    assert constraint is not None and constraint.kind == "choice" and constraint.choices == choices
    assert state["x"] == first and type(state["x"]) is type(first)


def test_numbers_are_bounded_regular_expressions() -> None:
    for good in ("0", "-7", "123456789012345678"):
        assert re.fullmatch(INT_PATTERN, good) and re.fullmatch(FLOAT_PATTERN, good)
    for bad in ("", "-", "007", "1" * 19, "1.", "+1", " 1"):
        assert not re.fullmatch(INT_PATTERN, bad)
    for good in ("0.5", "-1.25e-3", "1E5"):
        assert re.fullmatch(FLOAT_PATTERN, good)
    for bad in (".5", "1.", "1e", "nan", "00.1"):
        assert not re.fullmatch(FLOAT_PATTERN, bad)


def test_objects_of_a_type_are_closed(backend: FakeBackend) -> None:
    state = run(backend, '{"name":"owl"}', type=Bird)
    constraint = backend.constraints[0]
    assert constraint is not None and constraint.kind == "json_schema"
    schema = json.loads(constraint.value)
    definition = schema["$defs"]["Bird"]
    assert definition["additionalProperties"] is False and list(definition["properties"]) == ["name", "legs", "parent"]
    assert definition["properties"].get("additionalProperties") is None
    assert state["x"].legs == 2
    free = json.loads(codec_for(dict[str, int]).constraint.value)  # type: ignore[union-attr]
    assert free["additionalProperties"] == {"type": "integer"}


def test_a_property_called_properties_stays_one() -> None:
    class Odd(BaseModel):
        properties: int
        type: str

    schema = json.loads(codec_for(Odd).constraint.value)  # type: ignore[union-attr]
    assert set(schema["properties"]) == {"properties", "type"} and schema["additionalProperties"] is False


def test_cut_text_is_no_value_but_stays_readable(backend: FakeBackend) -> None:
    state = run(backend, '{"name":"a long name"}', type=Bird, max_tokens=9)
    with pytest.raises(ProgramError, match="truncated by max_tokens") as raised:
        state["x"]
    assert raised.value.code == "truncated" and raised.value.variable == "x"
    assert state.get("x", str) == '{"name":"'
    assert state.meta("x").finish_reason == "length"
    assert state.text() == 'Q{"name":".'
    assert state.error is None


def test_a_cut_number_is_no_value(backend: FakeBackend) -> None:
    with pytest.raises(ProgramError, match="truncated"):
        run(backend, "1234", type=int, max_tokens=2)["x"]


def test_samples_are_typed_one_by_one(backend: FakeBackend) -> None:
    backend.script = lambda _: "5"

    @function
    def program(s):
        s += "Q" + gen("x", type=str, n=2)

    assert program.run(backend=backend)["x"] == ["5", "5#1"]


def test_reading_text_as_a_type(backend: FakeBackend) -> None:
    backend.script = lambda _: "12"

    @function
    def program(s):
        s += "Q" + gen("x") + select("y", ["7"])
        s.set("z", 5)

    state = program.run(backend=backend)
    number: int = state.get("x", int)
    assert number == 12 and state.get("y", int) == 7 and state.get("z", int) == 5
    assert state.get("x", list[int] | int) == 12
    with pytest.raises(ProgramError, match=r"does not read as bool.*'12'") as raised:
        state.get("x", bool)
    assert raised.value.code == "not_a_value"
    with pytest.raises(ProgramError, match="cannot be read as"):
        state.get("z", str)


def test_the_other_constraints_give_text(backend: FakeBackend) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"grammar": 'start: "x"'}, "grammar", 'start: "x"'),
        ({"json_schema": schema}, "json_schema", json.dumps(schema)),
        ({"json_schema": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
    ]
    for arguments, kind, value in cases:
        backend.constraints.clear()
        assert run(backend, "text", **arguments)["x"] == "text"
        constraint = backend.constraints[0]
        assert constraint is not None and (constraint.kind, constraint.value) == (kind, value)
    assert run(backend, "", choices=["b", "a"])["x"] == "b"


def test_types_without_a_schema_are_refused() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidRequest, match="no JSON schema") as raised:
        gen("x", type=Opaque)
    assert raised.value.param == "type"
    with pytest.raises(InvalidRequest, match="two values are written '1'"):
        gen("x", type=Literal[1, "1"])
