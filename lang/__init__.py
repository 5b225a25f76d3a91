"""The language: programs that grow a text with `gen`, `select` and `fork` over any radixrt backend."""

from radixrt.lang.body import set_default_backend
from radixrt.lang.compiled import OneRequestEach
from radixrt.lang.constructors import assistant, gen, image, select, system, tool, user
from radixrt.lang.errors import ProgramError, UnknownVariable
from radixrt.lang.expressions import Expr
from radixrt.lang.forks import Forks
from radixrt.lang.program import Function, function
from radixrt.lang.services import OpenAI
from radixrt.lang.state import ProgramState
from radixrt.lang.tools import Reply, ToolCall
from radixrt.lang.variables import GenMeta, SelectMeta

__all__ = [
    "Expr",
    "Forks",
    "Function",
    "GenMeta",
    "OneRequestEach",
    "OpenAI",
    "ProgramError",
    "ProgramState",
    "Reply",
    "SelectMeta",
    "ToolCall",
    "UnknownVariable",
    "assistant",
    "function",
    "gen",
    "image",
    "select",
    "set_default_backend",
    "system",
    "tool",
    "user",
]
