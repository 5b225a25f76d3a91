"""What a model's text turns out to be, piece by piece."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Text(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """Text between the marks of thinking."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins; `index` counts the calls of one answer."""

    index: int
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text of a call's arguments, as the model wrote it."""

    index: int
    text: str


Event: TypeAlias = Text | Thought | CallStart | Arguments
