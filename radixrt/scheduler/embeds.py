"""Embeddings of a decoder: each text is a row that samples nothing, and whose hidden states are pooled.

`last`: the tree's prefixes count, and the last token alone must be computed: what a causal model knows of a text at its
end depends on nothing else. `mean`: every token's hidden state is needed, so nothing comes from the tree; the sum grows
chunk by chunk. What was computed stays in the tree for others either way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from radixrt.errors import ContextLengthExceeded, InvalidRequest, RadixrtError
from radixrt.messages import Enqueue, EnqueueEmbed, Pooled, Rejected
from radixrt.params import SamplingParams
from radixrt.results import Usage
from radixrt.scheduler.admission import to_request
from radixrt.scheduler.requests import Request

if TYPE_CHECKING:
    from radixrt.scheduler.batch import PlannedRow
    from radixrt.scheduler.core import Scheduler

LAST, SUM = 1, 2
"""What `StepPlan.pool` says."""
_NOTHING = SamplingParams(max_tokens=0)


def check_texts(message: EnqueueEmbed, vocab_size: int, room: int, what: str) -> list[NDArray[np.int32]]:
    """The ids of each text. A RadixrtError says why one can never run; `room`: tokens that `what` holds."""
    lengths = message.lengths
    if not lengths.size or lengths.min() < 1 or int(lengths.sum()) != message.ids.size:
        raise InvalidRequest("input must hold at least one text, each of at least one token", param="input")
    if message.ids.min() < 0 or message.ids.max() >= vocab_size:
        raise InvalidRequest(f"token ids must be between 0 and {vocab_size - 1}", param="input")
    for index in np.flatnonzero(lengths > room)[:1].tolist():
        raise ContextLengthExceeded(
            f"input {message.first + index} has {lengths[index]} tokens, but {what} holds {room}: shorten it",
            param="input",
        )
    return np.split(message.ids.astype(np.int32), lengths.cumsum()[:-1])


@dataclass(eq=False)
class Texts:
    """One EnqueueEmbed: its texts' requests, and what is known of their vectors."""

    id: int
    arrived: float
    requests: list[Request] = field(default_factory=list)
    sums: list[NDArray[np.float32] | None] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    """Of each text: how many of its tokens' hidden states its sum holds."""
    left: int = 0
    usage: Usage = field(default_factory=Usage)
    queue_s: float | None = None


@dataclass(eq=False)
class Embeds:
    """The embeddings of one scheduler."""

    core: Scheduler
    pooling: Literal["mean", "last"] = "last"
    fault: str | None = None
    """Why the model makes no embeddings."""
    texts: int = 0
    """Embedded since start."""
    _open: dict[int, Texts] = field(default_factory=dict)
    _owner: dict[int, tuple[Texts, int]] = field(default_factory=dict)
    """By a text's request id, which is below 0: its group, and which text of it."""
    _number: int = 0

    @property
    def surplus(self) -> int:
        """By how much texts outnumber the requests that they belong to."""
        return len(self._owner) - len(self._open)

    def add(self, message: EnqueueEmbed) -> None:
        """Queue all texts of a request. A RadixrtError says why it can never run."""
        core = self.core
        if self.fault is not None:
            raise InvalidRequest(f"the model makes no embeddings: {self.fault}", code="embeddings_unavailable")
        limits, capacity = core.limits, core.cache.capacity
        what = "the model's context" if limits.context_length <= capacity else "the KV pool (--kv-tokens)"
        ids = check_texts(message, limits.vocab_size, min(limits.context_length, capacity), what)
        now = core.clock()
        group = Texts(message.request_id, now, left=len(ids), sums=[None] * len(ids), counted=[0] * len(ids))
        self._open[group.id] = group
        for index, tokens in enumerate(ids):
            self._number -= 1
            enqueue = Enqueue(
                request_id=self._number,
                ids=tokens,
                sampling=_NOTHING,
                namespace=message.namespace,
                priority=message.priority,
            )
            request = to_request(enqueue, limits, capacity, now, prefix_cache=core.prefix_cache)
            request.pool = LAST if self.pooling == "last" else SUM
            group.requests.append(request)
            self._owner[request.id] = group, index
            core.requests[request.id] = request
            core.rows.waiting.extend(request.rows)
            core.tiering.arrived(request.rows, now)

    def take(self, request: Request, item: PlannedRow, pooled: NDArray[np.float32]) -> None:
        """What a step pooled for a text's row."""
        if request.id not in self._owner:
            return  # cancelled meanwhile
        group, index = self._owner[request.id]
        if request.pool == SUM:
            known = group.sums[index]
            if item.start == 0 or known is None:  # also after a retraction: from the beginning once more
                group.sums[index], group.counted[index] = pooled.astype(np.float32), item.slots.size
            elif item.start == group.counted[index]:
                group.sums[index] = known + pooled
                group.counted[index] += item.slots.size
            if group.counted[index] < len(request.prompt):
                return
            vector = group.sums[index]
            group.sums[index] = None if vector is None else vector / np.float32(len(request.prompt))
        else:
            group.sums[index] = pooled
        self._done(group, request)

    def _done(self, group: Texts, request: Request) -> None:
        usage = self.core.ends.end(request.rows[0], "embed")
        del self._owner[request.id]
        if usage is not None:
            group.queue_s = usage.queue_s if group.queue_s is None else min(group.queue_s, usage.queue_s)
            group.usage += msgspec.structs.replace(usage, queue_s=0.0, ttft_s=0.0, total_s=0.0)
        group.left -= 1
        if group.left:
            return
        del self._open[group.id]
        took = self.core.clock() - group.arrived
        usage = msgspec.structs.replace(group.usage, queue_s=group.queue_s or 0.0, ttft_s=took, total_s=took)
        self.texts += len(group.requests)
        self.core.stats.finished_request(usage, "embed")
        vectors = np.stack([vector for vector in group.sums if vector is not None])
        self.core.outbox.append(Pooled(request_id=group.id, vectors=vectors, usage=usage))

    def fail(self, request: Request, error: RadixrtError) -> None:
        """One of the texts cannot be embedded: the request it belongs to ends in an error."""
        if request.id in self._owner:
            group = self._owner[request.id][0]
            self._drop(group, "error")
            self.core.outbox.append(Rejected(request_id=group.id, error=error.info()))

    def cancel(self, request_id: int) -> None:
        """Drop a request; an unknown id is ignored."""
        group = self._open.get(request_id)
        if group is not None:
            self._drop(group, "abort")

    def _drop(self, group: Texts, outcome: str) -> None:
        del self._open[group.id]
        for request in group.requests:
            if self._owner.pop(request.id, None) is not None:
                self.core.ends.end(request.rows[0], outcome)
        self.core.stats.finished_request(group.usage, outcome)
