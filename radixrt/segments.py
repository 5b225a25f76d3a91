"""What a program request is made of: items that a client appends, segments that are run, events that come back.

Items are at the level of text and turns; the tokenizer process makes segments over token ids of them, one a `Gen`, and
the scheduler runs those in one row after another's end without anybody asking for it (design section 3).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from radixrt.called import CallText
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.results import Delta, Selection

Array: TypeAlias = np.ndarray

MAX_ITEMS = 4096
"""Items of one program that may wait to be done."""
MAX_CHARS = 4 * 1024 * 1024
"""Characters of text in one message."""
MAX_CHILDREN = 1024
"""Branches of one fork."""


class Item(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of what a client appends to a program."""


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A turn of the conversation: finished, or (in `Start.turn`) under way."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] = []
    """Calls that its content does not spell, as OpenAI's API writes them."""
    opened: bool = False
    """Of a turn under way: its start marker and all of `content` but the pending text are in the ids."""


class Start(Item, frozen=True, kw_only=True):
    """The program goes on from this, whatever stood before (fields: see `radixrt.conversation.Conversation`)."""

    ids: Array  # int32[n]
    pending: str = ""
    turns: list[Said] = []
    rendered: int = 0
    unclosed: bool = False
    prompt_adds_text: bool | None = None
    prompted: bool = False
    turn: Said | None = None
    tools: list[dict[str, Any]] = []


class Text(Item, frozen=True, kw_only=True):
    """Constant text; never parsed for special tokens."""

    text: str


class BeginTurn(Item, frozen=True, kw_only=True):
    """A turn begins; its markers come from the model's chat template."""

    role: Literal["system", "user", "assistant", "tool"]
    name: str | None = None
    tool_call_id: str | None = None


class EndTurn(Item, frozen=True, kw_only=True):
    """The turn under way ends."""


class Gen(Item, frozen=True, kw_only=True):
    """Text that the model writes. `index` is the client's number for it, unique in the program."""

    index: int
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    heal: bool = True
    """Where free text stands before it, its last token may be written anew (`radixrt.tokenizer.healing`)."""
    tools: list[dict[str, Any]] = []
    """What the chat template shows as tools from here on, as OpenAI's API writes them; none: as before. What the answer
    is held to is `constraint` (`radixrt.calls`)."""
    calls: CallText | None = None
    """How calls stand in the text, where the turn is to hold them as calls."""


class Select(Item, frozen=True, kw_only=True):
    """The best of some texts, by one step of the engine (`radixrt.choosing`). `index`: as a Gen's, and of one count."""

    index: int
    options: list[str]
    method: ChoicesMethod = "token_length_normalized"
    return_cache_report: bool = False


class Branch(Item, frozen=True, kw_only=True):
    """The programs of these request ids, which wait for it (`OpenProgram.parent`), begin from what stands here."""

    children: list[int]


ProgramItem: TypeAlias = Start | Text | BeginTurn | EndTurn | Gen | Select | Branch


# --- events: tokenizer -> client ------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of what a client hears of its program; `index` is the Gen's or the Select's."""

    index: int


class Opened(Event, frozen=True, kw_only=True):
    """What stands before a Gen or a Select: the program's ids from `keep` on are `ids`.

    `told` is the constant text that was written for it, piece by piece. Where the conversation had to be rendered anew,
    `anew` is all text up to there, and told[0] what is new of it. Of a Select, `ids` end before
    the text that its options may merge with (see Chosen). The rest is the conversation's state (`Start`).
    """

    keep: int
    ids: Array  # int32[n]
    told: list[str] = []
    anew: str | None = None
    rendered: int = 0
    unclosed: bool = False
    prompt_adds_text: bool | None = None
    prompted: bool = False


class Part(Event, frozen=True, kw_only=True):
    """New text and tokens of a Gen's sample; the last one of all samples holds `usage`."""

    delta: Delta


class Kept(Event, frozen=True, kw_only=True):
    """The Gen's text is whole: the program's ids from `keep` on are `ids` (a stop string's are not among them)."""

    keep: int
    ids: Array  # int32[n]


class Chosen(Event, frozen=True, kw_only=True):
    """A Select is decided: the program's ids go on with `selection.written`, the text before the options included."""

    selection: Selection


class Branched(Event, frozen=True, kw_only=True):
    """A Branch was reached (index -1): its children, in this order, go on by themselves."""

    children: list[int]


ProgramEvent: TypeAlias = Opened | Part | Kept | Chosen | Branched


# --- segments: tokenizer -> scheduler -------------------------------------------------------------------------------


class Heal(msgspec.Struct, frozen=True, kw_only=True):
    """The last token of the text before a gen is sampled anew, from `allowed`, under its own request id.

    What comes takes the place of that token, and counts as the first of the gen's tokens, unless it is one of `refused`
    or the same token: then all stays as it was.
    """

    request_id: int
    allowed: Array  # int32[n]
    refused: Array  # int32[m]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Text that is appended, and what is then sampled. `request_id` is the tokenizer's number for the gen."""

    request_id: int
    ids: Array  # int32[n]
    sampling: SamplingParams
    constraint: Constraint | None = None
    heal: Heal | None = None
