"""`call()` of a tool gives the function what its annotations say."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from radixrt.errors import InvalidRequest
from radixrt.lang.tools import ToolCall, toolbox


class Kind(enum.Enum):
    HOME = "home"
    WORK = "work"


class Addr(BaseModel):
    street: str
    number: int = 1


@dataclasses.dataclass
class Parcel:
    grams: float
    to: Addr


def called(function: Any, **arguments: Any) -> Any:
    return toolbox([function], "auto", None).called(function.__name__, json.dumps(arguments), "id")()


def echo(
    addr: Addr,
    parcels: list[Parcel],
    when: datetime.date,
    size: tuple[int, int],
    kind: Kind = Kind.WORK,
    tag: Literal["a", "b"] | None = None,
    raw: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return dict(locals())


def test_arguments_have_the_types_that_are_annotated() -> None:
    addr = {"street": "High", "number": 5}
    given = called(
        echo, addr=addr, parcels=[{"grams": 3, "to": {"street": "Low"}}], when="2024-02-29", size=[1, 2],
        kind="home", raw={"x": [1]},
    )  # fmt: skip
    assert given == {
        "addr": Addr(street="High", number=5), "parcels": [Parcel(3.0, Addr(street="Low"))],
        "when": datetime.date(2024, 2, 29), "size": (1, 2), "kind": Kind.HOME, "tag": None, "raw": {"x": [1]},
    }  # fmt: skip
    assert type(given["addr"]) is Addr and type(given["parcels"][0].to) is Addr


def test_what_is_left_out_is_the_default_as_it_stands() -> None:
    default = ("not", "a list")

    def plain(x, y: Any = default):  # type: ignore[no-untyped-def]
        return x, y

    assert called(plain, x={"a": None}) == ({"a": None}, default)


def test_constraints_aliases_and_coroutines() -> None:
    def price(dish: Annotated[str, Field(alias="Dish")], n: Annotated[int, Field(ge=1)] = 1) -> str:
        return f"{n} {dish}"

    async def later(addr: Addr) -> Addr:
        return addr

    assert called(price, Dish="soup", n=2) == "2 soup"
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        called(price, Dish="soup", n=0)
    assert asyncio.run(called(later, addr={"street": "x"})) == Addr(street="x")


@pytest.mark.parametrize("arguments", [{}, {"addr": {}}, {"addr": {"street": "x"}, "more": 1}])
def test_arguments_that_do_not_fit_are_a_value_error(arguments: dict[str, Any]) -> None:
    def send(addr: Addr) -> Addr:
        raise AssertionError("called")

    with pytest.raises(ValueError, match="validation error"):
        called(send, **arguments)


def test_what_the_function_raises_comes_out_as_it_is() -> None:
    def broken(x: int) -> None:
        raise KeyError(x)

    with pytest.raises(KeyError, match="7"):
        called(broken, x=7)
    with pytest.raises(InvalidRequest, match="no Python function"):
        ToolCall("id", "f", {})()
