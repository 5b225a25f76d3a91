"""What a model called: read from the text of an answer, by programs and by the tokenizer that runs them."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from radixrt.errors import InvalidRequest


class CallText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How calls stand in the text of one answer."""

    dialect: str
    names: list[str]
    """The functions there are; what calls another one is text."""
    place: str = ""
    """Makes the ids of the calls: the same in every run of a program, and no other answer's."""
    structured: bool = False
    """The turn holds the calls as calls, for templates that write them with control tokens: as text they would come
    back as plain text."""

    def __post_init__(self) -> None:
        from radixrt.dialects import DIALECTS  # processes that only pass messages on need no dialect

        if self.dialect not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise InvalidRequest(f"calls.dialect must be one of {known}, but is {self.dialect[:40]!r}", param="calls")


class Called(msgspec.Struct, frozen=True):
    """One call; `arguments` is JSON text as the model wrote it, cut where the answer was."""

    id: str
    name: str
    arguments: str

    def as_message(self) -> dict[str, Any]:
        """As OpenAI's API has it in an assistant's message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def read_calls(how: CallText, text: str) -> tuple[str, list[Called]]:
    """The text of an answer but for its calls, and the calls in the order in which they came."""
    from radixrt.dialects import DIALECTS, Arguments, CallParser, CallStart, Text

    parser = CallParser(DIALECTS[how.dialect], how.names)
    said, found = "", list[Called]()
    for event in [*parser.push(text), *parser.finish(cut=False)]:
        if isinstance(event, Text):
            said += event.text
        elif isinstance(event, CallStart):
            # Nine letters and digits: what the strictest template takes.
            seed = f"{how.place} {event.index}".encode()
            found.append(Called(hashlib.sha256(seed).hexdigest()[:9], event.name, ""))
        elif isinstance(event, Arguments):
            last = found[-1]
            found[-1] = Called(last.id, last.name, last.arguments + event.text)
    return said, found
