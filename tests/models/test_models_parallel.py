"""A model split over ranks gives the logits of the whole one; the ranks are threads that talk through gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from models_steps import Pool, Row
from models_tiny import VOCAB, random_tokens, save, tiny, truth

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from radixrt.models import load_model
from radixrt.models.parallel import split


class GlooThread:
    """One thread's end of a gloo group."""

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._group = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=60))

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self._group.allreduce([x]).wait()
        return x

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        self._group.broadcast(x, 0).wait()
        return x

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, max(widths) - x.shape[1]))
        parts = [torch.empty_like(padded) for _ in widths]
        self._group.allgather([parts], [padded]).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)


def together(ranks: int, work: Callable[[GlooThread], torch.Tensor]) -> list[torch.Tensor]:
    """`work` on every rank at once."""
    store = dist.HashStore()

    def one(rank: int) -> torch.Tensor:
        return work(GlooThread(store, rank, ranks))

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


@pytest.mark.parametrize(
    ("name", "ranks", "changes"),
    [
        ("llama, tied", 2, {}),
        ("qwen3", 2, {}),
        ("qwen3_moe", 2, {}),
        ("qwen2", 2, {"num_attention_heads": 6, "num_key_value_heads": 3}),  # 2 + 1 heads, and biases
        ("llama, biases", 3, {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ("llama, untied, llama3 rope", 6, {}),  # three ranks to each key-value head
        ("mistral", 2, {"intermediate_size": 81}),
    ],
)
def test_ranks_give_the_logits_of_one(name: str, ranks: int, changes: dict[str, int], tmp_path: Path) -> None:
    reference = tiny(name, num_hidden_layers=2, **changes)
    checkpoint = open_checkpoint(save(reference, tmp_path))
    tokens = random_tokens(9)
    widths = [len(part.vocabulary) for part in split(checkpoint.config, ranks)]
    assert sum(widths) == VOCAB

    def work(group: GlooThread) -> torch.Tensor:
        model = load_model(checkpoint, dtype=torch.float32, group=group)
        assert len(model.embedding) == widths[group.rank]
        pool, row = Pool(model, 32), Row()
        own = [pool.step([(row, tokens[:5])])[0], pool.step([(row, tokens[5:])])[0]]
        return group.gather(torch.cat(own), widths)

    expected = truth(reference, tokens)
    for found in together(ranks, work):
        assert float((found - expected).norm() / expected.norm()) < 1e-5
        assert found.argmax(-1).tolist() == expected.argmax(-1).tolist()


def test_smollm2_on_two_ranks(smollm2_path: Path) -> None:
    """9 heads over 3 key-value heads: 6 + 3."""
    parts = split(open_checkpoint(smollm2_path).config, 2)
    assert [(len(part.heads), len(part.kv_heads)) for part in parts] == [(6, 2), (3, 1)]


def test_what_cannot_be_split(smollm2_path: Path) -> None:
    with pytest.raises(ModelError, match="--tp can be 1, 2, 3, 9"):
        split(open_checkpoint(smollm2_path).config, 4)
