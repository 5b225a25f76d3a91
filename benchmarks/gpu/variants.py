"""Kernels in their rarer forms against float64: pools in fp8, trees of new tokens, other heads, all ways to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from radixrt.kernels import AttentionLayout
from radixrt.kernels import torch as plain
from radixrt.kernels import triton as ops
from radixrt.kernels.triton import moe, packed
from radixrt.kernels.triton.sampling import Rules

Case = tuple[str, Callable[[], float]]
Attention = Callable[..., torch.Tensor]
WIDTHS = {torch.bfloat16: (80, 256), torch.float16: (64, 96), torch.float32: (64,)}
"""Lengths of a head beside 128; each is tried in a dtype or two, for what is compiled takes time."""


class Variants:
    """Cases over random numbers; `error` and `attention` are those of `correct.py`."""

    def __init__(
        self,
        device: str,
        dtype: torch.dtype,
        small: bool,
        random: Callable[..., torch.Tensor],
        layout: Callable[..., AttentionLayout],
        error: Callable[[torch.Tensor, torch.Tensor], float],
        attention: Attention,
        seed: int,
    ) -> None:
        self.device, self.dtype, self.small, self.random = device, dtype, small, random
        self.layout, self.error, self.attention = layout, error, attention
        self.rng = np.random.default_rng(seed)

    def cases(self) -> Iterator[Case]:
        yield from self.pools()
        yield from self.heads()
        yield "attention, trees of new tokens", self.trees
        yield "moe_mlp, fp8", self.experts
        yield "sample, mask, bias and min-p", self.masked
        yield "sample, top log-probabilities", self.top
        yield "sample, Gumbel", self.gumbel

    def step(self, rows: int, longest: int, new: int, shared: int) -> AttentionLayout:
        return self.layout(self.rng, rows, longest, new, self.device, shared)

    def tensors(self, step: AttentionLayout, heads: int, kv_heads: int, width: int) -> list[torch.Tensor]:
        used = len(step.slots) + len(step.private_slots) + len(step.span_slots)
        pool = [self.random(kv_heads, used, width) for _ in range(2)]
        return [self.random(step.num_tokens, heads, width), *pool]

    def pools(self) -> Iterator[Case]:
        """Written as e4m3 with a scale a head, and read as what that stands for."""
        heads, kv_heads, width = (4, 2, 16) if self.small else (32, 8, 128)
        step = self.step(3, 9, 3, 66) if self.small else self.step(16, 700, 9, 1200)
        q, keys, values = self.tensors(step, heads, kv_heads, width)
        scales = [torch.rand(kv_heads, device=self.device) * 0.02 + 0.005 for _ in range(2)]
        stored = [
            (pool.float() / scale[:, None, None]).to(torch.float8_e4m3fn)
            for pool, scale in zip((keys, values), scales, strict=True)
        ]
        meant = [s.float() * scale[:, None, None] for s, scale in zip(stored, scales, strict=True)]
        names = {"k_scale": scales[0], "v_scale": scales[1]}

        def read() -> float:
            out = ops.tree_attention(q, q[:, :kv_heads], q[:, :kv_heads], *stored, step, width**-0.5, **names)
            return self.error(out, self.attention(q, *meant, step, width**-0.5, None, None))

        def write() -> float:
            count = min(30, q.shape[0])
            pool = torch.zeros(2, kv_heads, count + 2, width, device=self.device).to(torch.float8_e4m3fn)
            places = torch.randperm(count, device=self.device)
            k, v = self.random(count, kv_heads, width), self.random(count, kv_heads, width)
            ops.write_kv(k, v, pool[0], pool[1], places, *scales)
            wrong = 0.0
            for part, new, scale in zip(pool, (k, v), scales, strict=True):
                wanted = (new.float().transpose(0, 1) / scale[:, None, None]).to(torch.float8_e4m3fn).float()
                wrong = max(wrong, self.error(part[:, places].float(), wanted))
            return wrong

        yield "attention, fp8 pool", read
        yield "write_kv, fp8 pool", write

        def apart() -> float:
            x, cos, sin = self.random(9, 5, width), *(self.random(9, 1, width) for _ in range(2))
            turned = self.error(ops.rope(x, cos, sin), plain.rope(x.double(), cos.double(), sin.double()))
            pool, places = self.random(2, kv_heads, 12, width), torch.randperm(12, device=self.device)[:9]
            k, v = self.random(9, kv_heads, width), self.random(9, kv_heads, width)
            ops.write_kv(k, v, pool[0], pool[1], places)
            found = self.error(pool[:, :, places], torch.stack([k, v]).transpose(1, 2))
            source, target = places[:4], places[4:8]
            ops.copy_kv(pool[None], source, target)
            return max(turned, found, self.error(pool[:, :, target], pool[:, :, source]))

        yield "rope, write_kv, copy_kv", apart

    def heads(self) -> Iterator[Case]:
        for width in WIDTHS[self.dtype]:
            for new in (1, 7):

                def run(width: int = width, new: int = new) -> float:
                    step = self.step(3, 9, new, 66) if self.small else self.step(9, 500, new, 300)
                    q, keys, values = self.tensors(step, 6, 2, width)
                    out = ops.tree_attention(q, q[:, :2], q[:, :2], keys, values, step, width**-0.5)
                    return self.error(out, self.attention(q, keys, values, step, width**-0.5, None, None))

                yield f"attention, heads of {width}, {new} new", run

    def trees(self) -> float:
        """A token reads its ancestors: as if each path stood alone."""
        step = self.step(2, 9, 6, 66) if self.small else self.step(6, 300, 40, 500)
        parents = np.concatenate([
            [int(self.rng.integers(-1, i)) if i else -1 for i in range(n)] for n in np.diff(step.starts)
        ])  # fmt: skip
        tree = AttentionLayout(
            new_lens=np.diff(step.starts), slots=step.slots, positions=step.positions,
            private_lens=np.diff(step.private_starts), private_slots=step.private_slots, spans=step.spans,
            span_slots=step.span_slots, parents=parents, device=self.device,
        )  # fmt: skip
        heads, kv_heads, width = (4, 2, 16) if self.small else (32, 8, 128)
        q, keys, values = self.tensors(step, heads, kv_heads, width)
        out = ops.tree_attention(q, q[:, :kv_heads], q[:, :kv_heads], keys, values, tree, width**-0.5)
        truth = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
        for row in range(tree.num_rows):
            first, end = int(tree.starts[row]), int(tree.starts[row + 1])
            seen = torch.from_numpy(np.concatenate([tree.context(row), tree.new_slots(row)])).to(q.device)
            k, v = (x[:, seen].double().repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
            before = torch.ones(end - first, len(seen) - (end - first), dtype=torch.bool)
            allowed = torch.cat([before, torch.from_numpy(tree.sees(row))], 1).to(q.device)
            scores = torch.einsum("thd,hnd->htn", q[first:end].double(), k) * width**-0.5
            weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
            truth[first:end] = torch.einsum("htn,hnd->thd", weights, v)
        return self.error(out, truth)

    def experts(self) -> float:
        count, inner, outer = (4, 32, 64) if self.small else (16, 512, 1024)
        x, router = self.random(7, outer), self.random(7, count)
        held = [
            [packed.quantize_fp8(self.random(n, c).float() * 0.1, 32, 32) for _ in range(count)]
            for n, c in ((2 * inner, outer), (outer, inner))
        ]
        out = ops.moe_mlp(x, router, *(moe.Fp8Experts.stack(each) for each in held), 2)
        chosen, weights = moe.route(router, 2)
        truth = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        wide = [[packed.dense(weight).double().to(x.device) for weight in each] for each in held]
        for token, (line, shares) in enumerate(zip(chosen.tolist(), weights.double(), strict=True)):
            for expert, share in zip(line, shares, strict=True):
                hidden = plain.silu_mul((wide[0][expert] @ x[token].double())[None])
                truth[token] += share * (hidden @ wide[1][expert].T)[0]
        return self.error(out, truth) / 2  # the sums in between are rounded too

    def rules(self, lines: int) -> Rules:
        device = self.device
        return Rules(
            temperature=torch.ones(lines, device=device), top_k=torch.zeros(lines, dtype=torch.int32, device=device),
            top_p=torch.ones(lines, dtype=torch.float64, device=device), min_p=torch.zeros(lines, device=device),
            uniforms=torch.from_numpy(self.rng.random(lines)).to(device),
        )  # fmt: skip

    def masked(self) -> float:
        """Only what mask, bias and min-p leave is drawn, with the model's own log-probability."""
        lines, vocabulary = (3, 300) if self.small else (32, 128256)
        logits = self.random(lines, vocabulary)
        words = -(-vocabulary // 32)
        mask = torch.from_numpy(self.rng.integers(-(1 << 31), 1 << 31, (lines, words)).astype(np.int32))
        ids = self.rng.integers(0, vocabulary, lines)
        numbers = {"dtype": torch.int32, "device": self.device}
        given = replace(
            self.rules(lines), bitmask=mask.to(self.device), mask_row=torch.arange(lines, **numbers),
            min_p=torch.full((lines,), 0.2, device=self.device), bias_starts=torch.arange(lines + 1, **numbers),
            bias_ids=torch.from_numpy(ids.astype(np.int32)).to(self.device),
            bias=torch.full((lines,), -5.0, device=self.device),
        )  # fmt: skip
        found = ops.sample(logits, given)
        changed = logits.double().cpu()
        changed[torch.arange(lines), torch.from_numpy(ids)] -= 5.0
        place = torch.arange(vocabulary)
        changed[((mask[:, place // 32] >> (place % 32)) & 1) == 0] = -torch.inf
        p = torch.softmax(changed, -1).gather(1, found.tokens.cpu()[:, None])[:, 0]
        if (p < 0.2 * torch.softmax(changed, -1).amax(-1) * (1 - 1e-4)).any():
            return float("inf")
        own = torch.log_softmax(logits.double(), -1).gather(1, found.tokens[:, None])[:, 0]
        return self.error(found.logprobs, own)

    def top(self) -> float:
        lines, vocabulary, count = (3, 300, 4) if self.small else (32, 128256, 20)
        logits = self.random(lines, vocabulary)
        found = ops.sample(logits, self.rules(lines), top=count)
        # Of equal numbers the first comes first, as in a stable sort.
        order = logits.float().cpu().sort(dim=-1, descending=True, stable=True).indices[:, :count]
        if (found.top_ids.cpu() != order).any():
            return float("inf")
        own = torch.log_softmax(logits.double(), -1).cpu().gather(1, order)
        return self.error(found.top_logprobs.cpu(), own)

    def gumbel(self) -> float:
        """Many draws of one row: a chi-squared statistic, and the same seeds give the same tokens."""
        draws = 40 if self.small else 20_000
        logits = self.random(1, 8).expand(draws, -1).contiguous()
        numbers = torch.arange(draws, device=self.device)
        given = replace(self.rules(draws), uniforms=None, seeds=torch.full_like(numbers, 7), positions=numbers)
        tokens = ops.sample(logits, given).tokens
        if not torch.equal(tokens, ops.sample(logits, given).tokens):
            return float("inf")
        expected = torch.softmax(logits[0].double(), -1) * draws
        found = torch.bincount(tokens, minlength=8).double()
        statistic = float(((found - expected) ** 2 / expected).sum())
        return 0.0 if statistic < 29.9 else float("inf")  # 99.99 % of the distribution with 7 degrees of freedom
