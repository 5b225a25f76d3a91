"""Bodies of POST /v1/programs: the items of `radixrt.segments` as JSON, each with its `type`, and two more.

{"items": [{"type": "Text", "text": "The capital of France is"},
           {"type": "Gen", "index": 0, "sampling": {"max_tokens": 5}},
           {"type": "Fork", "name": "views", "branches": [
               [{"type": "Text", "text": " Some like it: "}, {"type": "Gen", "index": 1}],
               [{"type": "Text", "text": " Some do not: "}, {"type": "Gen", "index": 2}]]},
           {"type": "Template", "text": "\\nFirst:{{views[0]}}\\nThen:{{2}}\\nIts coast is "},
           {"type": "Select", "index": 3, "options": ["flat", "rocky"]}]}
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from radixrt.results import Generation, Selection
from radixrt.segments import BeginTurn, EndTurn, Gen, Item, Select, Start, Text
from radixrt.server.native_types import Body, Priority

MAX_BRANCHES = 64
"""Branches of one fork."""
MAX_FORK_DEPTH = 4
"""Forks inside each other's branches."""


class Fork(Item, frozen=True, kw_only=True):
    """Branches that all go on from here at once, and share what stands.

    With `join` "concatenate" what follows waits for them, and goes on behind their texts, one after another. Without,
    their texts stay theirs, to be referred to by a Template; what follows runs beside them until one does.
    """

    name: str
    """A letter or _, then letters, digits and _; unique in the program."""
    branches: list[list[HttpItem]]
    join: Literal["concatenate"] | None = None


class Template(Item, frozen=True, kw_only=True):
    """Text with what was written before in it: {{3}} is the text of the Gen or Select of index 3, {{views[1]}} all that
    branch 1 of the fork `views` says. Never parsed for special tokens, like a Text."""

    text: str


HttpItem: TypeAlias = Start | Text | BeginTurn | EndTurn | Gen | Select | Fork | Template


class ProgramRequest(Body, kw_only=True, frozen=True):
    """POST /v1/programs. Answered by a ProgramAnswer, or with `stream` by events that each hold a ProgramEvent, [DONE]
    last. Texts, gens and selects run one after another inside the engine, a fork's branches at once. `index` is unique
    in the whole program; Opened and Kept speak of the ids of the branch that the index is in."""

    items: list[HttpItem]
    model: str | None = None
    cache_salt: str | None = None
    priority: Priority = 0
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


class ForkResult(Body, kw_only=True, frozen=True):
    """What the branches of the fork of this name say, in their order: constant text and what was written."""

    name: str
    texts: list[str]


class ProgramAnswer(Body, kw_only=True, frozen=True):
    """All gens, selects and forks, each in the order of the items; those of branches where their fork stands."""

    gens: list[GenResult]
    selects: list[SelectResult]
    forks: list[ForkResult]
