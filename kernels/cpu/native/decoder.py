"""A narrow step through all layers of a decoder in one call (forward.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from radixrt.kernels.cpu.native.binding import POOL_TYPES, Decoder, LayerWeights, Step, is_half, library, pointer
from radixrt.kernels.cpu.native.packed import NarrowLinear
from radixrt.kernels.cpu.native.reads import step_reads
from radixrt.kernels.kv_lines import line_length
from radixrt.kernels.layout import AttentionLayout


@dataclass(frozen=True)
class NarrowLayer:
    """One layer: norms of any float type, [N] each; q_norm and k_norm None where heads are not normed.

    qkv gives queries, keys and values one below the other; gate_up the gate above what it gates.
    """

    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    qkv: NarrowLinear
    output: NarrowLinear
    gate_up: NarrowLinear
    down: NarrowLinear


class NarrowDecoder:
    """Layers and final norm. Holds what it points to."""

    def __init__(
        self,
        layers: Sequence[NarrowLayer],
        final_norm: torch.Tensor,
        *,
        heads: int,
        kv_heads: int,
        head_width: int,
        eps: float,
        window: int | None,
    ) -> None:
        loaded = library()
        if loaded is None:
            raise RuntimeError("a narrow decoder needs the compiled kernels")
        self._library = loaded
        self._window = window
        self._layers = list(layers)
        self._norms: list[torch.Tensor] = []
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._spent = (ctypes.c_double * 3)()
        structs = (LayerWeights * len(layers))(
            *(
                LayerWeights(
                    input_norm=self._norm(layer.input_norm),
                    mlp_norm=self._norm(layer.mlp_norm),
                    q_norm=self._norm(layer.q_norm),
                    k_norm=self._norm(layer.k_norm),
                    qkv=layer.qkv.struct,
                    output=layer.output.struct,
                    gate_up=layer.gate_up.struct,
                    down=layer.down.struct,
                )
                for layer in layers
            )
        )
        self._struct = Decoder(
            layers=structs,
            layers_count=len(layers),
            hidden=layers[0].qkv.inputs,
            inner=layers[0].down.inputs,
            kv_heads=kv_heads,
            group=heads // kv_heads,
            width=head_width,
            window=window or 0,
            final_norm=self._norm(final_norm),
            eps=eps,
            scale=head_width**-0.5,
        )

    def __call__(
        self,
        embedded: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """embedded [T, hidden], float32 or bfloat16; cos, sin float32[T, 1, head_width] as `rope` takes them; slots
        int64[T]; kv [layers, 2, kv_heads, slots, line], contiguous: a pool of any type that `kv_lines` lists, written
        and read. Returns [T, hidden] of embedded's type, finally normed; with `wanted` int64[K], ascending, the
        [K, hidden] of these tokens alone, for which the last layer does less. TypeError for other types, ValueError
        where kv or wanted has another shape.
        """
        if embedded.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"embedded tokens must be float32 or bfloat16, not {embedded.dtype}")
        if kv.dtype not in POOL_TYPES:
            raise TypeError(f"the pool must be float32, bfloat16, float16 or int8, not {kv.dtype}")
        shape = (self._struct.layers_count, 2, self._struct.kv_heads, line_length(kv.dtype, self._struct.width))
        if (*kv.shape[:3], kv.shape[-1]) != shape or not kv.is_contiguous():
            raise ValueError(f"the pool must be contiguous, [{shape[0]}, 2, {shape[2]}, slots, {shape[3]}]")
        residual = embedded.to(torch.float32, copy=True)
        cos, sin, slots = cos.contiguous(), sin.contiguous(), slots.contiguous()
        if wanted is not None:
            wanted = _ascending(wanted, len(residual))
        out = torch.empty((len(residual) if wanted is None else len(wanted), residual.shape[1]), dtype=embedded.dtype)
        reads = step_reads(layout, self._window)
        step = Step(
            reads=reads.reads,
            residual=residual.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            slots=slots.data_ptr(),
            kv=kv.data_ptr(),
            pool=kv.shape[3],
            type=POOL_TYPES[kv.dtype],
            wanted=pointer(wanted),
            wanted_count=-1 if wanted is None else len(wanted),
            out=out.data_ptr(),
            half=is_half(out),
            spent=ctypes.addressof(self._spent),
        )
        self._spent[:] = [0.0, 0.0, 0.0]
        needed = self._library.radixrt_forward_bytes(self._struct, step)
        if needed > self._scratch.numel():
            self._scratch = torch.empty(needed * 5 // 4, dtype=torch.uint8)
        step.scratch = self._scratch.data_ptr()
        self._library.radixrt_forward(self._struct, step)
        return out

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of the last call, by part; waiting for the other threads is in them."""
        return dict(zip(("pointwise", "products", "attention"), self._spent, strict=True))

    def _norm(self, weight: torch.Tensor | None) -> int | None:
        if weight is None:
            return None
        self._norms.append(weight.to(torch.float32, copy=True))
        return pointer(self._norms[-1])


def _ascending(wanted: torch.Tensor, tokens: int) -> torch.Tensor:
    """`wanted`, contiguous; ValueError unless it is int64, rising, and within the step's tokens."""
    rising = wanted.dtype == torch.int64 and wanted.dim() == 1 and bool((wanted[1:] > wanted[:-1]).all())
    if not rising or (len(wanted) and not 0 <= int(wanted[0]) <= int(wanted[-1]) < tokens):
        raise ValueError(f"wanted must be int64, rising, and below {tokens}")
    return wanted.contiguous()
