"""How requests end, and what the tokenizer process hears of them, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from radixrt.cache import PrefixCache
from radixrt.errors import RadixrtError
from radixrt.messages import FromScheduler, Rejected, TokenBatch, TokenDelta
from radixrt.results import FinishReason, Usage
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.memory import cache_report, keep_prompt
from radixrt.scheduler.requests import Request, Row, State
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.segments import Programs
from radixrt.scheduler.stats import Stats


@dataclass(eq=False)
class Ends:
    """Takes rows out of the tables that the scheduler shares with it, and tells of it in the outbox."""

    rows: RowTable
    requests: dict[int, Request]
    compiling: dict[int, Request]
    outbox: list[FromScheduler]
    programs: Programs
    drafter: Drafter
    stats: Stats
    clock: Callable[[], float]
    fail_text: Callable[[Request, RadixrtError], None] = lambda request, error: None
    """Called for a text to be embedded, which is a part of a request (`embeds.py`)."""
    deltas: list[TokenDelta] = field(default_factory=list)
    """What the event under way has brought so far."""

    @property
    def cache(self) -> PrefixCache:
        return self.rows.cache

    def finish(self, row: Row, reason: FinishReason, *, stop_token: int | None = None) -> None:
        """The sample ends well, and the client hears of it."""
        if row.state is State.FINISHED:
            return
        refused = keep_prompt(self.cache, row)
        if refused is not None:
            self.fail(row.request, refused)
            return
        usage = self.end(row, reason)
        delta = TokenDelta(request_id=row.request.id, index=row.index)
        if self.deltas and (self.deltas[-1].request_id, self.deltas[-1].index) == (row.request.id, row.index):
            delta = self.deltas.pop()  # the token that ended it travels with its end
        self.deltas.append(msgspec.structs.replace(delta, finish_reason=reason, stop_token=stop_token, usage=usage))
        self.programs.row_ended(row)

    def end(self, row: Row, outcome: str) -> Usage | None:
        """Take the row out; the request's usage when it was its last one."""
        if row.state is State.FINISHED:
            return None
        self.programs.row_ends(row)
        self.rows.end(row)
        self.drafter.ended(row)
        request = row.request
        if not request.finished:
            return None
        usage = msgspec.structs.replace(request.usage(self.clock()), cache=cache_report(request))
        del self.requests[request.id]
        if request.pool:
            return usage  # a part of a request, which counts when all of it has ended
        self.stats.finished_request(usage, outcome)
        return usage

    def fail(self, request: Request, error: RadixrtError) -> None:
        """This request ends in an error; others go on."""
        if request.id not in self.requests:
            return
        if request.pool:
            self.fail_text(request, error)
            return
        self.flush()
        for row in request.rows:
            self.end(row, "error")
        self.compiling.pop(request.id, None)
        self.outbox.append(Rejected(request_id=request.id, error=error.info()))

    def flush(self) -> None:
        """Move what this event brought into the outbox."""
        if self.deltas:
            self.outbox.append(TokenBatch(items=self.deltas))
            self.deltas = []
