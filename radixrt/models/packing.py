"""Which matrices of a decoder are packed, and their packed form: from the disk, or made and put there.

What is packed is never held as a dense matrix: it is read, packed and written a few million numbers at a time, by as
many threads as compute, and then mapped from the file. Without a file (a cache directory that cannot be written to, or
has no room) it is packed into memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixrt.config import Weights
from radixrt.kernels.cpu.native.packed import GROUP, TILE, Groups, Packed, pack, packed_bytes, quantize
from radixrt.models.packed_file import Blob, PackedFile
from radixrt.models.weights import WeightSource

if TYPE_CHECKING:
    from radixrt.models.blocks import Decoder

BITS = {"int8": 8, "int4": 4}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PIECE = 1 << 21
"""Numbers that are packed at once."""

_log = logging.getLogger(__name__)

Stored = dict[str, tuple[Blob, torch.Tensor]]
Report = Callable[[int], None]
"""Called with how many more numbers are done."""


@dataclass(frozen=True)
class Part:
    """A matrix that is to be packed: tensors of the files, one below the other."""

    name: str
    tensors: list[str]
    bits: int
    exact: bool
    """As the files hold it; else the nearest to what they hold."""
    outputs: int
    inputs: int


def parts(model: Decoder, source: WeightSource, weights: Weights) -> dict[str, Part]:
    """What of the model is packed, by name: layers' products as `layer_name` says, and "head".

    auto: integers where the file holds integers, exactly its own where its blocks allow (`dequantize.GROUP_BITS`), 8
    bits for its other block formats; else bfloat16. Matrices whose inputs do not divide into groups stay as they are.
    """
    if weights == "bf16":
        return {}
    found = {}
    for index, layer in enumerate(model.layers):
        for key, (linear, names) in layer.linears().items():
            tensors = [f"model.layers.{index}.{part}.weight" for part in names]
            found[layer_name(index, key)] = (tensors, linear.weight)
    found["head"] = ([HEAD if HEAD in source.shapes else EMBEDDING], model.head)
    packed = {}
    for name, (tensors, weight) in found.items():
        if weight.shape[1] % GROUP:
            continue
        if weights in BITS:
            bits, exact = BITS[weights], False
        elif all(source.is_quantized(tensor) for tensor in tensors):
            stored = [source.group_bits(tensor) for tensor in tensors]
            known = [bits for bits in stored if bits is not None]
            exact = len(known) == len(stored)
            bits = max(known) if exact else 8
        else:
            continue
        packed[name] = Part(name, tensors, bits, exact, *weight.shape)
    return packed


def layer_name(index: int, key: str) -> str:
    return f"{index}.{key}"


def load_packed(
    model: Decoder, source: WeightSource, wanted: dict[str, Part], file: PackedFile | None, report: Report
) -> dict[str, Packed]:
    """The packed form of `wanted`; the model's embedding is filled, or mapped from the file."""
    stored = file.read() if file is not None else None
    if stored is not None and file is not None and not _fits(stored, wanted, model):
        _log.warning("the packed weights in %s are of another model: they are made again", file.path)
        stored = None
    if stored is None and file is not None:
        try:
            _write(model, source, wanted, file, report)
            stored = file.read(written=True)
        except OSError as error:
            _log.warning("packed weights cannot be kept in %s (%s): the next start makes them again", file.path, error)
    if stored is None:
        source.read(EMBEDDING, model.embedding)
        return {name: _in_memory(part, source, report) for name, part in wanted.items()}
    tied = model.tied
    model.embedding = stored[EMBEDDING][1].view(torch.bfloat16).view(stored[EMBEDDING][0].shape)
    if tied:
        model.head = model.embedding
    report(model.embedding.numel())
    return {name: Packed(part.bits, part.outputs, part.inputs, stored[name][1]) for name, part in wanted.items()}


def _fits(stored: Stored, wanted: dict[str, Part], model: Decoder) -> bool:
    shapes = {name: (part.bits, (part.outputs, part.inputs)) for name, part in wanted.items()}
    rows, width = model.embedding.shape
    shapes[EMBEDDING] = (16, (rows, width))
    return {name: (blob.bits, blob.shape) for name, (blob, _) in stored.items()} == shapes and all(
        blob.nbytes == (2 * blob.shape[0] * blob.shape[1] if blob.bits == 16 else packed_bytes(blob.bits, *blob.shape))
        for blob, _ in stored.values()
    )


def _write(model: Decoder, source: WeightSource, wanted: dict[str, Part], file: PackedFile, report: Report) -> None:
    rows, width = model.embedding.shape
    total = 2 * rows * width + sum(packed_bytes(part.bits, part.outputs, part.inputs) for part in wanted.values())
    with file.write(total) as writer, _packer(source) as packed:
        for part in wanted.values():
            writer.begin(part.name, part.bits, (part.outputs, part.inputs))
            for first, end, data in packed(part):
                writer.add(data)
                report((end - first) * part.inputs)
        writer.begin(EMBEDDING, 16, (rows, width))
        for first, end in _steps(rows, width):
            some = torch.empty(end - first, width, dtype=torch.bfloat16)
            source.read(EMBEDDING, some, first)
            writer.add(some)
        writer.finish()
    _log.info("the packed weights are kept in %s", file.path)


def _in_memory(part: Part, source: WeightSource, report: Report) -> Packed:
    data = torch.empty(packed_bytes(part.bits, part.outputs, part.inputs), dtype=torch.uint8)
    at = 0
    with _packer(source) as packed:
        for first, end, piece in packed(part):
            data[at : at + piece.numel()] = piece
            at += piece.numel()
            report((end - first) * part.inputs)
    return Packed(part.bits, part.outputs, part.inputs, data)


Pieces = Iterator[tuple[int, int, torch.Tensor]]
"""First row, end, and what is packed of these rows."""


@contextmanager
def _packer(source: WeightSource) -> Iterator[Callable[[Part], Pieces]]:
    """Packs parts in threads, each of which computes alone, a few pieces ahead of what is taken."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:

        def packed(part: Part) -> Pieces:
            waiting: deque[tuple[int, int, Future[torch.Tensor]]] = deque()
            for first, end in _steps(part.outputs, part.inputs):
                waiting.append((first, end, pool.submit(_piece, part, source, first, end)))
                if len(waiting) > 2 * threads:
                    yield _done(waiting)
            while waiting:
                yield _done(waiting)

        try:
            yield packed
        finally:
            torch.set_num_threads(threads)  # a number for all threads that have not asked before


def _done(waiting: deque[tuple[int, int, Future[torch.Tensor]]]) -> tuple[int, int, torch.Tensor]:
    first, end, future = waiting.popleft()
    return first, end, future.result()


def _piece(part: Part, source: WeightSource, first: int, end: int) -> torch.Tensor:
    """Rows first..end of the part, packed: uint8."""
    return pack(_groups(part, source, first, end)).data


def pieces(part: Part, source: WeightSource) -> Iterator[Groups]:
    """The part's rows in order, a few tiles at a time."""
    for first, end in _steps(part.outputs, part.inputs):
        yield _groups(part, source, first, end)


def _groups(part: Part, source: WeightSource, first: int, end: int) -> Groups:
    """Rows first..end of the part."""
    found = []
    for name, begin, stop in _inside(part, source, first, end):
        if part.exact:
            found.append(source.groups(name, begin, stop))
        else:
            dense = torch.empty(stop - begin, part.inputs, dtype=torch.float32)
            source.read(name, dense, begin)
            found.append(quantize(dense, part.bits))
    if len(found) == 1 and found[0].bits == part.bits:
        return found[0]
    return Groups(
        part.bits,
        torch.cat([groups.q for groups in found]),
        torch.cat([groups.scale for groups in found]),
        torch.cat([groups.shift for groups in found]),
    )


def _inside(part: Part, source: WeightSource, first: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Tensors that rows first..end of the part lie in, and which of their rows these are."""
    at = 0
    for name in part.tensors:
        rows = source.shapes[name][0]
        begin, stop = max(first - at, 0), min(end - at, rows)
        if begin < stop:
            yield name, begin, stop
        at += rows


def _steps(rows: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(1, _PIECE // width // TILE) * TILE
    for first in range(0, rows, step):
        yield first, min(rows, first + step)
