"""A model that can be predicted without a transformer, plans made by hand, and a link that is two lists."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import RowOpen, StepPlan

HIDDEN = 8


class FakeModel:
    """Its hidden state says exactly which tokens a new token could see: a hash of (position, token) pairs.

    The pairs are read back from the slots of the KV tensor, so a wrong slot, span or order of writing changes it.
    """

    def __init__(self, vocab_size: int = 64, seed: int = 0) -> None:
        self.device = torch.device("cpu")
        self.vocab_size = vocab_size
        rng = np.random.default_rng(seed)
        self.pair = torch.from_numpy(rng.normal(size=(512, vocab_size, HIDDEN)).astype(np.float32))
        self.head = torch.from_numpy(rng.normal(size=(HIDDEN, vocab_size)).astype(np.float32))
        self.fail = False
        self.forwards = 0

    def forward(self, tokens, positions, slots, kv, layout: AttentionLayout) -> torch.Tensor:
        self.forwards += 1
        if self.fail:
            raise RuntimeError("broken at /secret/path 0xdeadbeef")
        kv[0, 0, 0, slots, 0] = tokens.float()
        kv[0, 0, 0, slots, 1] = positions.float()
        out = []
        for row in range(layout.num_rows):
            before = torch.from_numpy(layout.context(row))
            new = torch.from_numpy(layout.new_slots(row))
            for i in range(len(new)):
                seen = torch.cat([before, new[: i + 1]])
                out.append(self.state(kv[0, 0, 0, seen, 0].long(), kv[0, 0, 0, seen, 1].long()))
        return torch.stack(out)

    def state(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.pair[positions, tokens].double().sum(0).float() / len(tokens) ** 0.5

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.head

    def logits_after(self, tokens: list[int]) -> np.ndarray:
        """float32[V]: what the model says after `tokens`, computed from them alone."""
        ids = torch.tensor(tokens)
        return self.logits(self.state(ids, torch.arange(len(tokens)))[None])[0].numpy()

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """The next `count` greedy tokens."""
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits_after(tokens).argmax()))
        return tokens[-count:]


def plan(
    step: int,
    entries: list[dict],
    *,
    opens: list[RowOpen] = (),
    closes: list[int] = (),
    spans: list[tuple[list[int], int, int]] = (),
    masked: list[int] = (),
    scores: list = (),
    branches: list[list[int]] = (),
    propose: list[int] | None = None,
) -> StepPlan:
    """entries: {row, tokens, at (first position), slots, private, sample, drafts}; spans: (slots, first, end row)."""
    ints = lambda values: np.array(list(values), np.int32)  # noqa: E731
    offset, rows_of_spans = 0, []
    for slots, first, end in spans:
        rows_of_spans.append((offset, len(slots), first, end))
        offset += len(slots)
    fields: dict = {
        "step": step,
        "opens": list(opens),
        "closes": list(closes),
        "rows": ints(e["row"] for e in entries),
        "new_lens": ints(len(e["tokens"]) for e in entries),
        "tokens": ints(t for e in entries for t in e["tokens"]),
        "positions": ints(e["at"] + i for e in entries for i in range(len(e["tokens"]))),
        "slots": ints(s for e in entries for s in e["slots"]),
        "private_lens": ints(len(e.get("private", ())) for e in entries),
        "private_slots": ints(s for e in entries for s in e.get("private", ())),
        "spans": np.array(rows_of_spans, np.int32).reshape(-1, 4),
        "span_slots": ints(s for slots, _, _ in spans for s in slots),
        "sample": np.array([e.get("sample", True) for e in entries], np.uint8),
        "drafts": ints(e.get("drafts", 0) for e in entries),
        "masked": ints(masked),
        "scores": list(scores),
        "branches": np.array(branches, np.int32).reshape(-1, 3),
        "propose": None if propose is None else ints(propose),
    }
    return StepPlan(**fields)


class FakeLink:
    """What `transport.Link` offers, without a socket. An entry of `incoming` that is a list arrives together."""

    def __init__(self) -> None:
        self.incoming: deque = deque()
        self.sent: list = []

    def receive(self):
        if self.incoming and self.incoming[0] == "pause":
            return
        while self.incoming and self.incoming[0] != "pause":
            yield b"peer", self.incoming.popleft()

    def wait(self, timeout_s):
        if not self.incoming:
            return False
        if self.incoming[0] == "pause":
            self.incoming.popleft()
        return True

    def send(self, message, peer=None):
        self.sent.append(message)
        return True
