"""What clients ask of the scheduler: its counters, its tree, to flush, to save, to unpin."""

from __future__ import annotations

from radixrt.checkpoint import Vocabulary
from radixrt.errors import RadixrtError
from radixrt.messages import (
    FlushAnswer,
    Namespace,
    Query,
    SaveAnswer,
    SchedulerAnswer,
    SchedulerQuery,
    StatsAnswer,
    TreeAnswer,
    UnpinAnswer,
)
from radixrt.tokenizer.cache_text import cache_view

NOBODY = (b"", 0)


class QueryTable:
    """Who waits for an answer of the scheduler."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._asked: dict[int, tuple[bytes, int]] = {}

    def ask(self, number: int, peer: bytes, query: Query) -> SchedulerQuery:
        self._asked[number] = (peer, query.request_id)
        namespace = Namespace(model=self._model_name, tenant=query.tenant, salt=query.cache_salt)
        return SchedulerQuery(query_id=number, what=query.what, namespace=namespace, pin_id=query.pin_id)

    def pop(self, number: int) -> tuple[bytes, int]:
        """Who asked, and the id of the client's request; NOBODY when the client has gone."""
        return self._asked.pop(number, NOBODY)

    def drop(self, peer: bytes) -> None:
        for number in [number for number, (owner, _) in self._asked.items() if owner == peer]:
            del self._asked[number]


def answer_of(
    client_id: int, answer: SchedulerAnswer, vocabulary: Vocabulary
) -> StatsAnswer | TreeAnswer | UnpinAnswer | FlushAnswer | SaveAnswer:
    """The scheduler's answer as the client gets it, with texts for token ids; raises the error that it holds."""
    if answer.error is not None:
        raise RadixrtError.from_info(answer.error)
    if answer.stats is not None:
        return StatsAnswer(request_id=client_id, stats=answer.stats)
    if answer.tree is not None:
        return TreeAnswer(request_id=client_id, view=cache_view(answer.tree, vocabulary))
    if answer.pin is not None:
        return UnpinAnswer(request_id=client_id, pin=answer.pin)
    if answer.tier_tokens is not None:
        return SaveAnswer(request_id=client_id, tier_tokens=answer.tier_tokens)
    return FlushAnswer(request_id=client_id, freed_tokens=answer.freed_tokens or 0)
