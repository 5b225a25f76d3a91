"""How families of models write tool calls and thoughts: detection, constraint formats, parsers. Text only."""

from radixrt.dialects.calls import CallParser
from radixrt.dialects.dialect import Dialect
from radixrt.dialects.events import Arguments, CallStart, Event, Text, Thought
from radixrt.dialects.functions import Function
from radixrt.dialects.registry import DIALECTS, detect
from radixrt.dialects.thoughts import Marks, ThoughtParser, thinking_marks

__all__ = [
    "DIALECTS",
    "Arguments",
    "CallParser",
    "CallStart",
    "Dialect",
    "Event",
    "Function",
    "Marks",
    "Text",
    "Thought",
    "ThoughtParser",
    "detect",
    "thinking_marks",
]
