"""What happened in a run: every branch's text in pieces by origin, and what each gen and select cost; as plain JSON.

A trace is {program, seconds, error, usage, branches: [{label, parent, error, messages, pieces: [...]}]}; `parent` is an
index into branches, None for the trunk; a branch holds the text since its fork, and what was still pending at the fork,
which each branch tokenizes for itself. A piece is {origin, text} with
origin
    constant  written by the program or the chat template
    cached    the same, and found in the prefix cache (or computed by another request at the same time) by the gen or
              the select after it
    sampled   generated
    selected  chosen by select
and for the last two: variable, line, started_s and seconds (since the run began), prompt_tokens, cached_tokens,
completion_tokens, tokens [[text, logprob], ...] where gen asked for logprobs, forced [[start, end], ...] for the
characters of its text that its constraint left no choice for, or choices [[text, score], ...].
Where a conversation had to be rendered anew, all its text up to there counts as constant. Over a service without token
ids nothing is known to be cached, and a conversation has messages and no pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from radixrt.backend import Backend
from radixrt.lang.context import Context
from radixrt.lang.operations import Look
from radixrt.lang.pieces import Event, Piece

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch
    from radixrt.lang.run import Run

_recorders: list[list[Run]] = []


@contextmanager
def record_runs() -> Iterator[list[Run]]:
    """The list that all runs of this process are put into, as they begin, while the block lasts."""
    runs: list[Run] = []
    _recorders.append(runs)
    try:
        yield runs
    finally:
        _recorders.remove(runs)


def note_run(run: Run) -> None:
    for runs in _recorders:
        runs.append(run)


def trace_of(run: Run) -> dict[str, Any]:
    """To be called when the run's work is done."""
    trunk, *_ = run.branches
    error = trunk.error or run.body_error
    backend = None if run.service is not None else run.backend
    return {
        "program": run.program,
        "seconds": round(run.seconds(), 6),
        "error": error.message if error else None,
        "usage": msgspec.to_builtins(trunk.usage),
        "branches": [_branch(branch, run, backend) for branch in run.branches],
    }


def _branch(branch: Branch, run: Run, backend: Backend | None) -> dict[str, Any]:
    context = _rendered(branch)
    return {
        "label": branch.label,
        "parent": run.branches.index(branch.parent) if branch.parent is not None else None,
        "error": branch.error.message if branch.error else None,
        "messages": [msgspec.to_builtins(message) for message in context.messages()],
        "pieces": [_plain(piece, cached) for piece, cached in _with_cached(context, branch.inherited, backend)],
    }


def _rendered(branch: Branch) -> Context:
    """With the text that nothing was asked after yet; where that cannot be had, what there is."""
    seen: Future[Context] = Future()
    branch.submit(Look(seen))
    return branch.context if seen.exception() is not None else seen.result()


def _with_cached(context: Context, inherited: int, backend: Backend | None) -> Iterator[tuple[Piece, bool]]:
    """The branch's own pieces, constant ones split where the cached part of the request after them ends."""
    pieces = context.pieces
    ends = _cached_ends(context, inherited, backend)
    position = 0
    for i, piece in enumerate(pieces):
        start, position = position, position + len(piece.text)
        if i < inherited:
            continue
        event = next((later.event for later in pieces[i:] if later.event is not None), None)
        cut = min(max(ends.get(id(event), 0) - start, 0), len(piece.text)) if piece.event is None else 0
        if cut:
            yield Piece(piece.text[:cut]), True
        if cut < len(piece.text):
            yield Piece(piece.text[cut:], piece.event), False


def _cached_ends(context: Context, inherited: int, backend: Backend | None) -> dict[int, int]:
    """For each event: how many characters of the visible text its request found in the cache."""
    events = {id(piece.event): piece.event for piece in context.pieces[inherited:] if piece.event is not None}
    if backend is None or not events:
        return {}
    ids = context.ids
    whole = backend.detokenize(ids)
    if not context.text or not whole.endswith(context.text):
        return {}
    hidden = len(whole) - len(context.text)  # a BOS token is in the ids, not in the text
    return {
        key: max(0, len(backend.detokenize(ids[: event.cached_tokens])) - hidden)
        for key, event in events.items()
        if event.cached_tokens
    }


def _plain(piece: Piece, cached: bool) -> dict[str, Any]:
    if piece.event is None:
        return {"origin": "cached" if cached else "constant", "text": piece.text}
    return {"text": piece.text, **_event(piece.event)}


def _event(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "origin": event.origin,
        "variable": event.variable,
        "line": str(event.span) if event.span else None,
        "started_s": round(event.started_s, 6),
        "seconds": round(event.seconds, 6),
        "prompt_tokens": event.prompt_tokens,
        "cached_tokens": event.cached_tokens,
        "completion_tokens": event.completion_tokens,
    }
    if event.tokens:
        fields["tokens"] = [list(token) for token in event.tokens]
    if event.forced:
        fields["forced"] = [list(span) for span in event.forced]
    if event.choices:
        fields["choices"] = [list(choice) for choice in event.choices]
    return fields
