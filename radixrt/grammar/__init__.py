"""Constraints -> compiled grammars -> token masks. Torch-free and socket-free; see README.md."""

from typing import TYPE_CHECKING, Any

from radixrt.grammar.errors import GrammarDeadEnd, GrammarError, MatcherFailed, TokenRefused
from radixrt.grammar.filling import MaskFiller
from radixrt.grammar.interface import Bitmask, Grammar, Matcher
from radixrt.grammar.limits import Limits
from radixrt.grammar.service import CompileService, ServiceLimits

if TYPE_CHECKING:
    from radixrt.grammar.backends import Backends, compile_constraint
    from radixrt.grammar.llguidance_backend import VocabularySource

__all__ = [
    "Backends",
    "Bitmask",
    "CompileService",
    "Grammar",
    "GrammarDeadEnd",
    "GrammarError",
    "Limits",
    "MaskFiller",
    "Matcher",
    "MatcherFailed",
    "ServiceLimits",
    "TokenRefused",
    "VocabularySource",
    "compile_constraint",
]

_LATER = {
    "Backends": "backends",
    "VocabularySource": "llguidance_backend",
    "compile_constraint": "backends",
}
"""Names whose modules bring all back ends: imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"radixrt.grammar.{_LATER[name]}"), name)
    raise AttributeError(f"module 'radixrt.grammar' has no attribute {name!r}")
