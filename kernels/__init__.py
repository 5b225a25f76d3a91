"""One door to the operations of a model: `select(device)` gives the implementation that is right for the device.

torch is imported when the door is first used, so that `build` can be had without it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device as torch_device

    from radixrt.kernels.layout import AttentionLayout
    from radixrt.kernels.ops import Kernels

__all__ = ["AttentionLayout", "Kernels", "select"]


def select(device: torch_device | str, *, reference: bool = False, native: bool = True) -> Kernels:
    """The operations for `device`: tuned ones for a CPU, Triton's for a GPU; else, or with `reference`, the plain ones.

    On a CPU those compiled for it, which the first call may compile; torch's operators put together where they cannot
    be had, and with `native` false. On a GPU a StartupError where triton is not installed.
    """
    # Not `import torch`: in this namespace the name belongs to the plain implementation, radixrt.kernels.torch.
    from torch import device as torch_device

    if torch_device(device).type == "cpu" and not reference:
        from radixrt.kernels import cpu
        from radixrt.kernels.cpu import native as compiled

        return compiled if native and compiled.available() else cpu
    if torch_device(device).type == "cuda" and not reference:  # AMD's too: torch calls them so
        return _triton()
    from radixrt.kernels import torch as plain

    return plain


def _triton() -> Kernels:
    if find_spec("triton") is None:
        from radixrt.errors import StartupError

        raise StartupError(
            "a GPU needs triton, which is not installed: pip install 'radixrt[gpu]', or choose the plain kernels "
            "(--attention torch)"
        )
    from radixrt.kernels import triton as tuned

    return tuned


def __getattr__(name: str) -> Any:
    if name == "AttentionLayout":
        from radixrt.kernels.layout import AttentionLayout

        return AttentionLayout
    if name == "Kernels":
        from radixrt.kernels.ops import Kernels

        return Kernels
    raise AttributeError(f"module 'radixrt.kernels' has no attribute {name!r}")
