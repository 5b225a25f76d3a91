"""Bodies of POST /v1/programs: the items of `radixrt.segments` as JSON, each with its `type`.

{"items": [{"type": "Text", "text": "The capital of France is"},
           {"type": "Gen", "index": 0, "sampling": {"max_tokens": 5}},
           {"type": "Text", "text": ". It lies on the"},
           {"type": "Gen", "index": 1, "sampling": {"max_tokens": 5}},
           {"type": "Text", "text": "\\nIts coast is "},
           {"type": "Select", "index": 2, "options": ["flat", "rocky"]}]}
"""

from __future__ import annotations

from typing import TypeAlias

from radixrt.results import Generation, Selection
from radixrt.segments import BeginTurn, EndTurn, Gen, Select, Start, Text
from radixrt.server.native_types import Body

HttpItem: TypeAlias = Start | Text | BeginTurn | EndTurn | Gen | Select


class ProgramRequest(Body, kw_only=True, frozen=True):
    """POST /v1/programs. Answered by a ProgramAnswer, or with `stream` by events that each hold a ProgramEvent, [DONE]
    last. Texts, gens and selects run one after another inside the engine."""

    items: list[HttpItem]
    model: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    stream: bool = False
    timeout_s: float | None = None
    """As in a GenerateRequest; for the whole program."""


class GenResult(Body, kw_only=True, frozen=True):
    """What became of the Gen of this index."""

    index: int
    generation: Generation


class SelectResult(Body, kw_only=True, frozen=True):
    """What the Select of this index chose."""

    index: int
    selection: Selection


class ProgramAnswer(Body, kw_only=True, frozen=True):
    """All gens and all selects, each in the order of the items."""

    gens: list[GenResult]
    selects: list[SelectResult]
