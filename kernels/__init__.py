"""One door to the operations of a model: `select(device)` gives the implementation that is right for the device.

torch is imported when the door is first used, so that `build` can be had without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device as torch_device

    from radixrt.kernels.layout import AttentionLayout
    from radixrt.kernels.ops import Kernels

__all__ = ["AttentionLayout", "Kernels", "select"]


def select(device: torch_device | str, *, reference: bool = False, native: bool = True) -> Kernels:
    """The operations for `device`: tuned ones for a CPU; elsewhere, or with `reference`, the plain ones.

    On a CPU those compiled for it, which the first call may compile; torch's operators put together where they cannot
    be had, and with `native` false.
    """
    # Not `import torch`: in this namespace the name belongs to the plain implementation, radixrt.kernels.torch.
    from torch import device as torch_device

    if torch_device(device).type == "cpu" and not reference:
        from radixrt.kernels import cpu
        from radixrt.kernels.cpu import native as compiled

        return compiled if native and compiled.available() else cpu
    from radixrt.kernels import torch as plain

    return plain


def __getattr__(name: str) -> Any:
    if name == "AttentionLayout":
        from radixrt.kernels.layout import AttentionLayout

        return AttentionLayout
    if name == "Kernels":
        from radixrt.kernels.ops import Kernels

        return Kernels
    raise AttributeError(f"module 'radixrt.kernels' has no attribute {name!r}")
