"""Poisoned memory and relative norms: what all tests of Triton kernels use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""What the relative norm of an error may be."""
MARGIN = 64
"""Elements of poison before and after a guarded tensor."""


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|out - truth| / |truth|, in float64. NaN, or a wrong shape, gives infinity."""
    if out.shape != truth.shape:
        return float("inf")
    if not truth.numel():
        return 0.0
    wide, truth = out.double(), truth.double()
    value = float((wide - truth).norm() / truth.norm().clamp(min=1e-30))
    return value if value == value else float("inf")


def assert_near(out: torch.Tensor, truth: torch.Tensor, factor: float = 1.0) -> None:
    assert error(out, truth) < factor * LIMIT[out.dtype], error(out, truth)


class Guards:
    """Tensors with NaN (for integers: absurd numbers) on both sides, which nobody may read into a result or change."""

    def __init__(self) -> None:
        self._held: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def put(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of `x`, contiguous, inside a poisoned buffer."""
        buffer = torch.empty(x.numel() + 2 * MARGIN, dtype=x.dtype)
        _poison(buffer)
        inner = buffer[MARGIN : MARGIN + x.numel()]
        inner.copy_(x.reshape(-1))
        self._held.append((buffer, buffer.view(torch.uint8).clone(), x.numel()))
        return inner.view(x.shape)

    def check(self) -> None:
        """The poison is as it was."""
        for buffer, before, count in self._held:
            after, size = buffer.view(torch.uint8), buffer.element_size()
            assert torch.equal(after[: MARGIN * size], before[: MARGIN * size])
            assert torch.equal(after[(MARGIN + count) * size :], before[(MARGIN + count) * size :])


@contextmanager
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch, guards: Guards) -> Iterator[None]:
    """Within, torch.empty gives guarded tensors full of poison: what a kernel leaves unwritten shows, and what it
    writes beside its output."""
    plain = torch.empty

    def empty(*args: object, **kwargs: object) -> torch.Tensor:
        made = plain(*args, **kwargs)  # type: ignore[call-overload]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", plain)
            _poison(made)
            return guards.put(made)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        yield


def _poison(x: torch.Tensor) -> None:
    if x.dtype == torch.float8_e4m3fn:
        x.view(torch.uint8).fill_(0x7F)
    elif x.dtype.is_floating_point:
        x.fill_(float("nan"))
    elif x.dtype == torch.uint8:
        x.fill_(0x7F)
    elif x.dtype != torch.bool:
        x.fill_(torch.iinfo(x.dtype).max // 2)
