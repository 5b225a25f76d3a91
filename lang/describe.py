"""The words that a page and a terminal both use for a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

ORIGINS = {
    "constant": "written by the program or the chat template",
    "cached": "the same, found in the prefix cache by the gen after it",
    "sampled": "generated",
    "forced": "generated where the constraint left no other token",
    "selected": "chosen by select",
}


def parts(piece: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(origin, text) of a piece in parts: a generated one holds what was sampled and what was forced."""
    text, at = piece["text"], 0
    for start, end in piece.get("forced", []):
        if start > at:
            yield piece["origin"], text[at:start]
        yield "forced", text[start:end]
        at = end
    if at < len(text):
        yield piece["origin"], text[at:]


def details(piece: dict[str, Any]) -> str:
    """What is known of a piece, one fact a line."""
    lines = [piece["origin"] + (f": {piece['variable']}" if piece.get("variable") else "")]
    if "seconds" in piece:
        lines[0] += f" ({piece['line']})" if piece["line"] else ""
        lines.append(f"{piece['seconds']:.3f} s from {piece['started_s']:.3f} s")
        lines.append(
            f"{piece['prompt_tokens']} prompt tokens, {piece['cached_tokens']} of them cached; "
            f"{piece['completion_tokens']} generated"
        )
    lines += [
        f"{text!r}: p={math.exp(logprob):.3f}" for text, logprob in piece.get("tokens", []) if logprob is not None
    ]
    lines += [f"{choice!r}: {score:.3f}" for choice, score in piece.get("choices", [])]
    return "\n".join(lines)


def totals(trace: dict[str, Any]) -> str:
    usage = trace["usage"]
    return (
        f"{trace['seconds']:.2f} s, {len(trace['branches'])} branches, {usage['prompt_tokens']} prompt tokens "
        f"({usage['cached_tokens']} cached), {usage['completion_tokens']} generated"
    )
