"""Stands in for flashinfer on a machine without a GPU: the same names and arguments, computed by torch.

It checks what FlashInfer takes for granted, such as types, shapes and where tensors lie. Where the package itself is
installed a test compares the arguments (`test_flashinfer.py`).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch

INT32 = torch.int32


class _Wrapper:
    def __init__(self, room: torch.Tensor, layout: str, backend: str) -> None:
        assert room.dtype == torch.uint8 and room.numel() >= 64 << 20 and not room.any()
        assert layout == "NHD" and backend == "fa2"
        self.plans = 0

    def _planned(self, starts: torch.Tensor, pages: tuple[torch.Tensor, ...], page_size: int, **options: Any) -> None:
        indptr, indices, last = pages
        for each in (starts, indptr, indices, last):
            assert each.dtype == INT32 and each.dim() == 1 and each.is_contiguous()
        assert starts.device.type == "cpu" and indptr.device.type == "cpu"  # else planning waits for the device
        assert page_size == 1 and (last == 1).all() and len(last) == len(indptr) - 1 == len(starts) - 1
        assert int(indptr[-1]) == len(indices) and int(indptr[0]) == 0 and (indptr.diff() > 0).all()
        self._starts, self._indptr, self._indices = starts.tolist(), indptr.tolist(), indices.long()
        self._options = options
        self.plans += 1

    def _ran(self, q: torch.Tensor, pool: Any, return_lse: bool) -> Any:
        o = self._options
        heads, kv_heads, width = o["heads"], o["kv_heads"], o["width"]
        assert q.shape == (self._starts[-1], heads, width) and q.dtype == o["q"] and q.is_contiguous()
        assert isinstance(pool, tuple)
        for each in pool:
            assert each.dim() == 4 and each.shape[1:] == (1, kv_heads, width)
            assert each.dtype == o["kv"] and each.stride(3) == 1
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
        for row, (first, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            seen = self._indices[self._indptr[row] : self._indptr[row + 1]]
            keys, values = (x[seen, 0].float().repeat_interleave(heads // kv_heads, 1) for x in pool)
            scores = torch.einsum("thd,nhd->htn", q[first:end].float(), keys) * o["scale"]
            if o["cap"]:
                scores = o["cap"] * torch.tanh(scores / o["cap"])
            new, count = end - first, len(seen)
            place, own = torch.arange(count)[None], torch.arange(new)[:, None] + count - new
            allowed = (place <= own) if o["causal"] else torch.ones(new, count, dtype=torch.bool)
            if o["mask"] is not None:
                at = sum((b - a) * (d - c) for a, b, c, d in self._before(row))
                allowed = o["mask"][at : at + new * count].view(new, count)
            if o["window"] >= 0:
                assert o["causal"]
                allowed = allowed & (place >= own - o["window"])
            scores = scores.masked_fill(~allowed, -torch.inf)
            total = scores.logsumexp(-1)
            out[first:end] = torch.einsum("htn,nhd->thd", torch.exp(scores - total[..., None]), values).to(q.dtype)
            lse[first:end] = total.T / math.log(2)
        return (out, lse) if return_lse else out

    def _before(self, row: int) -> list[tuple[int, int, int, int]]:
        s, i = self._starts, self._indptr
        return [(s[n], s[n + 1], i[n], i[n + 1]) for n in range(row)]


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", *, backend="auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, *, custom_mask=None, causal=False, sm_scale=None, window_left=-1,
        logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    ) -> None:  # fmt: skip
        if custom_mask is not None:
            assert custom_mask.dtype == torch.bool and custom_mask.dim() == 1
        self._planned(
            qo_indptr, (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len), page_size, heads=num_qo_heads,
            kv_heads=num_kv_heads, width=head_dim_qk, mask=custom_mask, causal=causal, scale=sm_scale,
            window=window_left, cap=logits_soft_cap, q=q_data_type, kv=kv_data_type,
        )  # fmt: skip

    def run(self, q, paged_kv_cache, *, return_lse=False):
        return self._ran(q, paged_kv_cache, return_lse)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", *, use_tensor_cores=False, backend="auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        self.use_tensor_cores = use_tensor_cores

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, sm_scale=None,
        window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    ) -> None:  # fmt: skip
        # Without tensor cores there are kernels for these many query heads a key-value head.
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        self._planned(
            torch.arange(len(last_page_len) + 1, dtype=INT32), (indptr, indices, last_page_len), page_size,
            heads=num_qo_heads, kv_heads=num_kv_heads, width=head_dim, mask=None, causal=True, scale=sm_scale,
            window=window_left, cap=logits_soft_cap, q=q_data_type, kv=kv_data_type,
        )  # fmt: skip

    def run(self, q, paged_kv_cache, *, return_lse=False):
        return self._ran(q, paged_kv_cache, return_lse)


def merge_state(v_a, s_a, v_b, s_b):
    assert v_a.dtype == v_b.dtype and v_a.shape == v_b.shape and s_a.dtype == s_b.dtype == torch.float32
    assert s_a.shape == s_b.shape == v_a.shape[:2]
    total = torch.logaddexp2(s_a, s_b)
    merged = sum(v.float() * torch.exp2(s - total)[..., None] for v, s in ((v_a, s_a), (v_b, s_b)))
    return merged.to(v_a.dtype), total


def module() -> ModuleType:
    """What `import flashinfer` shall give."""
    made: Any = ModuleType("flashinfer")
    for each in (BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper, merge_state):
        setattr(made, each.__name__, each)
    return made
