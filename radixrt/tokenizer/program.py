"""One open program, as the tokenizer process keeps it: its conversation, what waits, what runs, what was sent ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from radixrt.backend import Tokens
from radixrt.checkpoint import Vocabulary
from radixrt.conversation import Conversation, Turn
from radixrt.errors import InvalidRequest
from radixrt.messages import Namespace, Prompt
from radixrt.results import Usage
from radixrt.segments import (
    MAX_CHARS,
    MAX_ITEMS,
    Gen,
    Opened,
    ProgramEvent,
    ProgramItem,
    Said,
    Segment,
    Select,
    Start,
    Text,
)
from radixrt.tokenizer.encode import PromptEncoder
from radixrt.tokenizer.options import SelectRequest
from radixrt.tokenizer.sample import Sample


@dataclass
class Story(Conversation):
    """A conversation that writes down what is new for the client."""

    told: list[str] = field(default_factory=list)
    anew: str | None = None

    def wrote_text(self, text: str) -> None:
        self.told.append(text)

    def wrote_anew(self, text: str, new: str) -> None:
        self.told, self.anew = [new], text


class LocalTokens:
    """The tokenizer as a conversation asks it; every answer is there at once."""

    def __init__(self, encoder: PromptEncoder, vocabulary: Vocabulary) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary

    async def atokenize(self, prompt: Prompt) -> Tokens:
        answer = self._encoder.tokenized(0, prompt)
        return Tokens(ids=tuple(answer.ids.tolist()), text=answer.text, pieces=tuple(answer.pieces))

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._vocabulary.decode(ids, skip_special_tokens=skip_special_tokens)


@dataclass
class Running:
    """A gen that the scheduler has: its samples' text as it comes, and whether the program went on already."""

    gen: Gen
    segment: Segment
    samples: list[Sample]
    base: int
    """How many of the program's ids stand before its own."""
    piece: bytes = b""
    """The text's last token, where the join is healed."""
    ids: list[int] = field(default_factory=list)
    """Of the first sample, and its text, so far."""
    text: str = ""
    rest: str = ""
    """What a healed join gave to the gen."""
    healed: Usage | None = None
    matched: bool = False
    """A stop string ended the first sample."""
    over: bool = False
    """The program went on from it."""


@dataclass(frozen=True)
class Choosing:
    """A select that the scheduler has."""

    item: Select
    request: SelectRequest


@dataclass
class Program:
    """One open program of a client."""

    id: int
    peer: bytes
    client_id: int
    namespace: Namespace
    priority: int
    stream: bool
    closed: bool = False
    waits: bool = False
    """For its parent to reach the Branch that names it."""
    parent: int | None = None
    """Our id of the program that it began from."""
    story: Story = field(default_factory=Story)
    items: deque[ProgramItem] = field(default_factory=deque)
    sent: list[int] = field(default_factory=list)
    """The ids that the scheduler's program has."""
    known: bool = False
    """The scheduler has heard of it."""
    running: Running | None = None
    choosing: Choosing | None = None
    closing: dict[int, Running] = field(default_factory=dict)
    """Gens that are over for the program, whose last counts have not come yet; by request id."""
    ahead: deque[tuple[Gen, Segment]] = field(default_factory=deque)
    """Sent before their turn, in order."""
    numbers: set[int] = field(default_factory=set)
    """Request ids of its gens and selects that the scheduler has."""
    children: set[int] = field(default_factory=set)
    """Client's ids of programs that wait for this one."""
    events: list[ProgramEvent] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.closed and not (self.items or self.held or self.closing)

    @property
    def held(self) -> bool:
        """What comes next waits for something."""
        return self.waits or self.running is not None or self.choosing is not None


def opened(story: Story, index: int, before: Sequence[int]) -> Opened:
    """What there is to say of a conversation whose ids were `before`, where something begins."""
    keep = len(before) if story.anew is None else common(before, story.ids)
    return Opened(
        index=index,
        keep=keep,
        ids=np.asarray(story.ids[keep:], dtype=np.int32),
        told=story.told,
        anew=story.anew,
        rendered=story.rendered,
        unclosed=story.unclosed,
        prompt_adds_text=story.prompt_adds_text,
        prompted=story.prompted,
    )


def turn_of(said: Said) -> Turn:
    """A turn that a program begins with."""
    return Turn(
        said.role, said.name, said.tool_call_id, said.content, said.opened, tuple(map(dict, said.tool_calls))
    )  # fmt: skip


def check_items(items: Sequence[ProgramItem], waiting: int) -> None:
    """InvalidRequest for more than a program may hold."""
    if len(items) + waiting > MAX_ITEMS:
        raise InvalidRequest(
            f"a program may have {MAX_ITEMS} items that wait, not {len(items) + waiting}", param="items"
        )
    chars = sum(_chars(item) for item in items)
    if chars > MAX_CHARS:
        raise InvalidRequest(f"a message of a program may hold {MAX_CHARS} characters, not {chars}", param="items")


def _chars(item: ProgramItem) -> int:
    if isinstance(item, Select):
        return sum(map(len, item.options))
    if isinstance(item, Gen | Start) and item.tools:
        return len(msgspec.json.encode(item.tools))
    return len(item.text) if isinstance(item, Text) else 0


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two lists begin with alike."""
    length = min(len(a), len(b))
    if list(a[:length]) == list(b[:length]):
        return length
    return next(i for i in range(length) if a[i] != b[i])
