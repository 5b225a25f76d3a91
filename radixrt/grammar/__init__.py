"""Constraints -> compiled grammars -> token masks. Torch-free and socket-free; see README.md."""

from radixrt.grammar.backends import Backends, compile_constraint
from radixrt.grammar.errors import GrammarDeadEnd, GrammarError, MatcherFailed, TokenRefused
from radixrt.grammar.filling import MaskFiller
from radixrt.grammar.interface import Bitmask, Grammar, Matcher
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_backend import VocabularySource
from radixrt.grammar.service import CompileService, ServiceLimits

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
