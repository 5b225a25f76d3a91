"""Chunks of KV between a GPU's pool and the host: gathered and scattered in step with the plans, copied beside them.

A chunk is laid out as `tier.copy_out` has it, so that what a CPU saved a GPU can load.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixrt.runner.device import Device

Gather = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class DeviceMover:
    """A `tier.Mover` over `kernels.triton.gather_kv` and `scatter_kv`, or functions that do the same."""

    def __init__(self, device: Device, kv: torch.Tensor, gather: Gather, scatter: Scatter) -> None:
        """kv: [layers, 2, kv_heads, slots, head_dim] on the device."""
        self._device = device
        self._kv = kv
        self._gather = gather
        self._scatter = scatter

    def out(self, slots: np.ndarray) -> tuple[np.ndarray, Callable[[], None]]:
        """Chunks at slots int32[n, C] as they are now: uint8[n, bytes of a chunk], to be read once the second, which
        any thread may call, has returned."""
        layers, two, heads, _, width = self._kv.shape
        count, length = slots.shape
        index = self._index(slots)

        def gathered() -> torch.Tensor:
            found = self._gather(self._kv, index).view(layers, two, heads, count, length, width)
            return found.permute(3, 0, 1, 2, 4, 5).contiguous()

        size = layers * two * heads * count * length * width * self._kv.itemsize
        host, event = self._device.download(gathered, size)
        return host.numpy().reshape(count, -1), event.wait

    def bring(self, chunks: list[bytearray]) -> torch.Tensor:
        """uint8[bytes of all chunks] on the device, copied beside the steps."""
        staged = self._device.host(sum(map(len, chunks)))
        staged.numpy()[:] = np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in chunks])
        return self._device.bring(staged)

    def into(self, slots: np.ndarray, brought: torch.Tensor) -> None:
        """Put chunks into slots int32[n, C], before all steps that come later."""
        layers, two, heads, _, width = self._kv.shape
        count, length = slots.shape
        index = self._index(slots)

        def scattered() -> None:
            parts = brought.view(self._kv.dtype).view(count, layers, two, heads, length, width)
            flat = parts.permute(1, 2, 3, 0, 4, 5).reshape(layers, two, heads, count * length, width)
            self._scatter(flat, index, self._kv)

        self._device.run(scattered)

    def _index(self, slots: np.ndarray) -> torch.Tensor:
        flat = np.ascontiguousarray(slots, np.int32).reshape(-1)
        staged = self._device.host(flat.nbytes)
        staged.numpy()[:] = flat.view(np.uint8)
        return self._device.upload(staged).view(torch.int32)
