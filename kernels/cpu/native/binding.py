"""The C functions of library.cpp, and the structures they take.

OpenMP is the one that torch has loaded (both ask for libgomp.so.1; on macOS its libomp's symbols are used), so threads,
their number and how they wait are shared with torch's own operators.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from ctypes import POINTER, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch  # loads the OpenMP that ours must share

from radixrt.kernels.build import SWITCH, build, rung_of

_log = logging.getLogger(__name__)


class Reads(ctypes.Structure):
    """attention.h, Reads."""

    _fields_ = [
        ("tokens", c_int64),
        ("segments_count", c_int64),
        ("window", c_int64),
        ("segments", c_void_p),
        ("slots", c_void_p),
        ("positions", c_void_p),
    ]


class Heads(ctypes.Structure):
    """attention.h, Heads."""

    _fields_ = [
        ("q", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("out", c_void_p),
        ("q_stride", c_int64),
        ("pool", c_int64),
        ("kv_heads", c_int64),
        ("group", c_int64),
        ("width", c_int64),
        ("half", c_int64),
        ("type", c_int64),
        ("scale", c_float),
    ]


class Linear(ctypes.Structure):
    """linear.h, Linear."""

    _fields_ = [
        ("bits", c_int64),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
    ]


class Choice(ctypes.Structure):
    """choose.h, Choice."""

    _fields_ = [
        ("head", POINTER(Linear)),
        ("rows", c_int64),
        ("allowed", c_int64),
        ("masks", c_void_p),
        ("words", c_int64),
        ("mask_of", c_void_p),
        ("logits_of", c_void_p),
        ("logits", c_void_p),
        ("chosen", c_void_p),
    ]


class LayerWeights(ctypes.Structure):
    """forward.h, LayerWeights."""

    _fields_ = [
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
    ]


class Decoder(ctypes.Structure):
    """forward.h, Decoder."""

    _fields_ = [
        ("layers", POINTER(LayerWeights)),
        ("layers_count", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("kv_heads", c_int64),
        ("group", c_int64),
        ("width", c_int64),
        ("window", c_int64),
        ("final_norm", c_void_p),
        ("eps", c_float),
        ("scale", c_float),
    ]


class Step(ctypes.Structure):
    """forward.h, Step."""

    _fields_ = [
        ("reads", Reads),
        ("residual", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("slots", c_void_p),
        ("kv", c_void_p),
        ("pool", c_int64),
        ("type", c_int64),
        ("wanted", c_void_p),
        ("wanted_count", c_int64),
        ("out", c_void_p),
        ("half", c_int64),
        ("scratch", c_void_p),
        ("spent", c_void_p),
    ]


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "radixrt_features": ([], c_int64),
    "radixrt_attention": ([POINTER(Reads), POINTER(Heads)], None),
    "radixrt_linear": ([POINTER(Linear), c_void_p, c_int64, c_int64, c_void_p], None),
    "radixrt_choose": ([POINTER(Choice), c_void_p, c_int64], None),
    "radixrt_packed_bytes": ([c_int64] * 3, c_int64),
    "radixrt_pack": ([c_int64] * 3 + [c_void_p] * 4, None),
    "radixrt_forward_bytes": ([POINTER(Decoder), POINTER(Step)], c_int64),
    "radixrt_forward": ([POINTER(Decoder), POINTER(Step)], None),
    "radixrt_add_norm": ([c_void_p, c_void_p, c_void_p, c_float, c_int64, c_int64, c_void_p, c_int64], None),
    "radixrt_silu_mul": ([c_void_p, c_int64, c_int64, c_void_p, c_int64], None),
    "radixrt_rope": ([c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64], None),
    "radixrt_write_kv": ([c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p] + [c_int64] * 6, None),
}

POOL_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
"""lines.h, PoolType."""

_FEATURES = ("avx2", "avx512", "avx512_bf16", "avx512_vnni", "avx_vnni", "neon", "dotprod", "i8mm", "bf16")


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it is switched off, cannot be compiled or cannot be loaded. Asked for once a process.

    StartupError where RADIXRT_CPU names an instruction set that this CPU does not have.
    """
    if os.environ.get(SWITCH) == "0":
        _log.info("%s=0: torch's operators are used", SWITCH)
        return None
    path = build()
    if path is None:
        return None
    try:
        loaded = load(path)
    except (OSError, AttributeError) as error:
        _log.warning("the compiled kernels cannot be loaded: plain torch operators are used (%s)", error)
        return None
    _log.info("kernels for %s from %s", rung_of(path), path)
    return loaded


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, with its functions' types. OSError where it is none for this machine."""
    if sys.platform == "darwin":
        share_openmp(Path(torch.__file__).parent / "lib")
    loaded = ctypes.CDLL(str(path))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def share_openmp(directory: Path) -> None:
    """Let libraries that ask for OpenMP by its symbols alone find those of the one in torch's directory."""
    for path in sorted(directory.glob("lib*omp*.dylib")):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def features(loaded: ctypes.CDLL) -> list[str]:
    """What the library's compiler was told that the CPU has."""
    bits = loaded.radixrt_features()
    return [name for i, name in enumerate(_FEATURES) if bits >> i & 1]


def pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def is_half(tensor: torch.Tensor) -> bool:
    """Whether it is bfloat16; the functions know that and float32."""
    return tensor.dtype == torch.bfloat16
