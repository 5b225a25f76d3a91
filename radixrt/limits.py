"""How much a constraint may cost. One frozen struct; every limit has its own error text where `grammar` enforces it."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one constraint. Defaults admit every schema of the acceptance cases with room to spare."""

    max_source_bytes: int = 64 * 1024
    """UTF-8 bytes of a schema, regex or grammar, or of all choices together."""
    max_rewritten_bytes: int = 512 * 1024
    """Characters of a schema after keywords were said in other words (a `not` may be written out as many cases)."""
    max_depth: int = 60
    """Nesting of JSON values, of groups in a regex, of parentheses in a grammar."""
    max_choices: int = 5_000
    """Strings of a choice; values of one `enum`."""
    max_properties: int = 500
    """Properties of one object, declared or required."""
    max_repetition: int = 10_000
    """Bounds of a repetition in a regex or grammar ({n,m})."""
    max_minimum_count: int = 100_000
    """minLength, minItems and minProperties: what a generation is forced to write."""
    max_multiple_of: int = 10_000
    """Digits of `multipleOf` read as an integer (0.25 counts as 25): the automaton has that many states."""
    compile_timeout_s: float = 5.0
    """Seconds that compile and first mask may take, in the worker; four times as many where the machine is too busy to
    let it work."""
    compile_memory_bytes: int = 512 * 1024 * 1024
    """How far a compile may make the worker grow."""
    max_step_s: float = 0.2
    """CPU seconds that one fill or accept of a row may take; a row that passes it fails. (p99 of real schemas: 0.1 ms;
    an ambiguous grammar grows with the square of the text.)"""
    max_row_s: float = 5.0
    """CPU seconds that all fills and accepts of a row may take together, forks counting what came before them."""
    max_lexer_states: int = 100_000
    """States that one matcher's lexer may build while it runs (1-2 kB each)."""
    mask_deadline_s: float = 0.5
    """Wall seconds that a step waits for masks: a row whose mask is not there by then fails, alone. Twenty times as
    many where the machine is too busy to let it be filled."""
