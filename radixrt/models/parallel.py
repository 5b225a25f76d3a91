"""One model over several ranks: who holds which part of which matrix, and what they say to each other.

The split is Megatron's (arXiv 1909.08053, section 3): projections into heads and into the MLP by columns, those back by
rows, so that attention and MLP each end in one sum over all ranks; embedding and head by vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec
import torch

from radixrt.checkpoint import ModelConfig
from radixrt.errors import ModelError
from radixrt.kernels.cpu.native.packed import Groups
from radixrt.models.weights import WeightSource


class Group(Protocol):
    """The ranks of one model. Every rank makes the same calls in the same order."""

    rank: int
    ranks: int

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, on every rank; x itself may be overwritten with it."""
        ...

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's x on every rank; the others' x gives shape and type, and is overwritten."""
        ...

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """x [K, widths[rank]] of all ranks side by side, [K, sum(widths)], on rank 0; anything elsewhere."""
        ...


@dataclass(frozen=True)
class Part:
    """What one rank holds: ranges of query heads, key-value heads, MLP columns and token ids."""

    rank: int
    ranks: int
    heads: range
    kv_heads: range
    inner: range
    vocabulary: range

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model as this rank sees it."""
        return msgspec.structs.replace(
            whole,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
            vocab_size=len(self.vocabulary),
        )


def split(config: ModelConfig, ranks: int) -> list[Part]:
    """The parts of `ranks` ranks; key-value heads need not divide: of 3, one of 2 ranks has 2.

    With more ranks than key-value heads each head is held by several ranks, which share its query heads. ModelError
    where heads or columns are too few or do not come out even.
    """
    kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    if ranks <= kv:
        kv_ranges = _ranges(kv, ranks)
        heads = [range(part.start * group, part.stop * group) for part in kv_ranges]
    else:
        copies = ranks // kv
        if ranks % kv or group % copies:
            fits = [n for n in range(1, config.num_heads + 1) if n <= kv or (n % kv == 0 and group % (n // kv) == 0)]
            raise ModelError(
                f"{config.num_heads} heads over {kv} key-value heads cannot be split among {ranks} ranks: --tp can be "
                f"{', '.join(map(str, fits))}"
            )
        kv_ranges = [range(rank // copies, rank // copies + 1) for rank in range(ranks)]
        each = group // copies
        heads = [range(rank * each, (rank + 1) * each) for rank in range(ranks)]
    if min(config.intermediate_size, config.vocab_size) < ranks:
        raise ModelError(f"the model is too narrow to be split among {ranks} ranks")
    inner = _ranges(config.intermediate_size, ranks, 64)
    vocabulary = _ranges(config.vocab_size, ranks, 64)
    return [Part(rank, ranks, heads[rank], kv_ranges[rank], inner[rank], vocabulary[rank]) for rank in range(ranks)]


def _ranges(count: int, ranks: int, grain: int = 1) -> list[range]:
    """0 .. count in `ranks` ranges that differ by one grain at most, the longer ones first."""
    while count % grain or count // grain < ranks:
        grain //= 2
    units, rest = divmod(count // grain, ranks)
    edges = [0]
    for rank in range(ranks):
        edges.append(edges[-1] + grain * (units + (rank < rest)))
    return [range(a, b) for a, b in pairwise(edges)]


class PartOfWeights:
    """A rank's part of a checkpoint's tensors, as a `WeightSource` of its own."""

    def __init__(self, source: WeightSource, config: ModelConfig, part: Part) -> None:
        """`config`: of the whole model."""
        self._source = source
        self._part = part
        width = config.head_dim
        heads = range(part.heads.start * width, part.heads.stop * width)
        kv_heads = range(part.kv_heads.start * width, part.kv_heads.stop * width)
        by_rows = {
            "q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads, "gate_proj": part.inner, "up_proj": part.inner,
            "embed_tokens": part.vocabulary, "lm_head": part.vocabulary,
        }  # fmt: skip
        by_columns = {"o_proj": heads, "down_proj": part.inner}
        counts = {
            "q_proj": config.num_heads * width, "o_proj": config.num_heads * width,
            "k_proj": config.num_kv_heads * width, "v_proj": config.num_kv_heads * width,
            "embed_tokens": config.vocab_size, "lm_head": config.vocab_size,
        }  # fmt: skip
        self._cuts: dict[str, tuple[int, range]] = {}
        """Tensor name -> the dimension that is cut, and what of it is ours."""
        self._only_first: set[str] = set()
        self.shapes = dict(source.shapes)
        for name, shape in source.shapes.items():
            kind, _, what = name.rpartition(".")
            kind = kind.rsplit(".", 1)[-1]
            if kind in by_columns and what == "bias":
                self._only_first.add(name)
                continue
            if kind in by_rows:
                dimension, ours = 0, by_rows[kind]
            elif kind in by_columns and what == "weight":
                dimension, ours = 1, by_columns[kind]
            else:
                continue
            wanted = counts.get(kind, config.intermediate_size)
            if len(shape) <= dimension or shape[dimension] != wanted:
                raise ModelError(f"tensor {name} has shape {list(shape)}, where the config asks for {wanted}")
            self._cuts[name] = (dimension, ours)
            self.shapes[name] = (*shape[:dimension], len(ours), *shape[dimension + 1 :])

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        if name in self._only_first and self._part.rank:
            out.zero_()  # the sum over the ranks must add it once
        elif name not in self._cuts:
            self._source.read(name, out, first)
        else:
            dimension, ours = self._cuts[name]
            whole = torch.empty(self._source.shapes[name], dtype=out.dtype)
            self._source.read(name, whole)
            out.copy_(whole.narrow(dimension, ours.start, len(ours))[first : first + len(out)])

    def is_quantized(self, name: str) -> bool:
        return self._source.is_quantized(name)

    def group_bits(self, name: str) -> int | None:
        return self._source.group_bits(name)

    def groups(self, name: str, first: int, end: int) -> Groups:
        raise ModelError(f"tensor {name}: the compiled path, which asks for integers, is for a whole model")

    def close(self) -> None:
        self._source.close()


def embed_part(tokens: torch.Tensor, embedding: torch.Tensor, part: Part, group: Group) -> torch.Tensor:
    """[T, hidden]: the embeddings of tokens int64[T], each looked up by the rank that holds it."""
    place = tokens - part.vocabulary.start
    elsewhere = (place < 0) | (place >= len(part.vocabulary))
    own = torch.nn.functional.embedding(place.masked_fill(elsewhere, 0), embedding)
    return group.sum(own.masked_fill_(elsewhere[:, None], 0))
