"""The requests that are open, under the client's name for them and under ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from radixrt.errors import InvalidRequest
from radixrt.messages import Array
from radixrt.params import SamplingParams
from radixrt.results import TokenLogprob
from radixrt.tokenizer.sample import Sample


@dataclass(kw_only=True)
class Open:
    """One open request: `id` is ours, `client_id` the client's own, which only `peer` may use."""

    id: int
    peer: bytes
    client_id: int


@dataclass(kw_only=True)
class Request(Open):
    """A generation."""

    sampling: SamplingParams
    stream: bool
    samples: list[Sample] = field(default_factory=list)
    prompt_ids: Array | None = None
    """int32[n], where the prompt's logprobs are asked for."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """Scores that have come and not gone out yet."""

    @property
    def finished(self) -> bool:
        return all(sample.finished for sample in self.samples)


class RequestTable:
    """Open requests. Invariant: each is known by both names, or by none."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._by_id: dict[int, Open] = {}
        self._by_client: dict[bytes, dict[int, Open]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def next_id(self) -> int:
        """A number that no request of this engine has had."""
        return next(self._numbers)

    def check_new(self, peer: bytes, client_id: int) -> None:
        """InvalidRequest when the client already has an open request of that number."""
        if client_id in self._by_client.get(peer, {}):
            raise InvalidRequest(f"request_id {client_id} is already open", param="request_id")

    def add(self, request: Open) -> None:
        self.check_new(request.peer, request.client_id)
        self._by_id[request.id] = request
        self._by_client.setdefault(request.peer, {})[request.client_id] = request

    def get(self, number: int) -> Open | None:
        """By our number; None when it is not open (any more)."""
        return self._by_id.get(number)

    def of_client(self, peer: bytes, client_id: int) -> Open | None:
        return self._by_client.get(peer, {}).get(client_id)

    def of_peer(self, peer: bytes) -> list[Open]:
        return list(self._by_client.get(peer, {}).values())

    def remove(self, request: Open) -> None:
        """Forget it; once more is harmless."""
        if self._by_id.pop(request.id, None) is None:
            return
        own = self._by_client[request.peer]
        del own[request.client_id]
        if not own:
            del self._by_client[request.peer]
