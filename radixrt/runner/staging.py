"""A step's arrays as one block of bytes, so that one copy brings them all to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from radixrt.runner.device import Device, Event

_ALIGNED = 8
_TORCH = {"i4": torch.int32, "i8": torch.int64, "f4": torch.float32, "f8": torch.float64}


class Block:
    """Where named arrays lie in a block: `views` for its bytes on the device, `fill` for its bytes on the host."""

    def __init__(self, fields: Mapping[str, tuple[str, int]]) -> None:
        """`fields`: name -> (i4, i8, f4 or f8, how many)."""
        self._places: dict[str, tuple[str, int, int]] = {}
        at = 0
        for name, (kind, count) in fields.items():
            self._places[name] = (kind, at, count)
            at += -(-count * int(kind[1]) // _ALIGNED) * _ALIGNED
        self.size = at

    def views(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each array in the block's bytes uint8[size]."""
        return {
            name: data[at : at + count * int(kind[1])].view(_TORCH[kind])
            for name, (kind, at, count) in self._places.items()
        }

    def place(self, name: str, host: np.ndarray) -> np.ndarray:
        """The named array within the block's bytes on the host."""
        kind, at, count = self._places[name]
        return host[at : at + count * int(kind[1])].view(kind)

    def fill(self, host: np.ndarray, arrays: Mapping[str, np.ndarray], rest: Mapping[str, int] | None = None) -> None:
        """Write arrays, which may be shorter than their places: what is left of these holds `rest`'s number, or 0."""
        for name, array in arrays.items():
            place = self.place(name, host)
            place[: array.size] = array
            place[array.size :] = (rest or {}).get(name, 0)


def block_of(arrays: Mapping[str, np.ndarray]) -> Block:
    """A block that just fits arrays of int32, int64, float32 and float64."""
    return Block({name: (array.dtype.str[1:], array.size) for name, array in arrays.items()})


class Staging:
    """Host memory that uploads are made from, in turn: none is written again before its upload is done. A step takes
    four at most, so with two steps under way nobody waits here."""

    def __init__(self, device: Device, count: int = 12) -> None:
        self._device = device
        self._buffers = [device.host(1 << 16) for _ in range(count)]
        self._uploads: list[Event | None] = [None] * count
        self._turn = 0

    def take(self, size: int) -> torch.Tensor:
        """uint8[size]; it is the caller's until `sent`."""
        self._turn = (self._turn + 1) % len(self._buffers)
        upload = self._uploads[self._turn]
        if upload is not None:
            upload.wait()  # of some steps ago: done long since, unless nobody waits for results
            self._uploads[self._turn] = None
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = self._device.host(1 << (size - 1).bit_length())
        return self._buffers[self._turn][:size]

    def sent(self, upload: Event) -> None:
        """The upload from what was taken last is under way; `upload` is the point behind it."""
        self._uploads[self._turn] = upload
