"""A backend without a model: a token is a byte, the answer a fixed text. It follows the client API to the letter.

Words in a prompt make things happen: WAIT stays queued until the engine dies, SLOW stops after three tokens, DIE loses
the engine and DEADEND fails the request after three tokens, BOOM raises what nobody expects, MIDBOOM after three too.
USETOOL calls get_weather for Orléans until a tool's result stands in the prompt.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from radixrt.backend import Tokens
from radixrt.choosing import check_options, selection
from radixrt.collect import Collector
from radixrt.embedding import Embeddings, TextLike, as_texts, check_size
from radixrt.errors import (
    Aborted,
    ConstraintError,
    ContextLengthExceeded,
    EngineDead,
    GenerationFailed,
    InvalidRequest,
    NotFound,
)
from radixrt.messages import ChatPrompt, Prompt, Selected, TextPrompt, TokensPrompt
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.prompts import PromptLike, as_prompt
from radixrt.results import (
    CacheNode,
    CacheReport,
    CacheView,
    ConstraintReport,
    Delta,
    EmbeddingInfo,
    EngineStats,
    Generation,
    ModelInfo,
    Pin,
    Scores,
    Selection,
    TokenLogprob,
    TopLogprob,
    Usage,
)

CONTEXT = 600
REPLY = "Zwölf Äpfel 🍎, no more."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Orléans"}}\n</tool_call>'


class FakeBackend:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        self.alive = True
        self.after_death: Callable[[], str] = str
        self.reply = REPLY
        self.report: ConstraintReport | None = None
        """What the usage says of a constraint."""
        self.scores_single = True
        """Whether a prompt of one token, which has nothing to score, comes with its empty entry."""
        self.info = ModelInfo(
            name="fake", context_length=CONTEXT, kv_tokens=4096, vocab_size=256, dtype="float32", device="cpu",
            threads=1, eos_token_ids=(), has_chat_template=True, tool_dialect="hermes",
            embedding=EmbeddingInfo(size=4, pooling="last", sizes=(2, 3)),
        )  # fmt: skip
        self.seen: list[tuple[Prompt, SamplingParams, Constraint | None, str | None, int]] = []
        self.scored: tuple[str | None, int, float | None] | None = None
        """Cache salt, priority and timeout of the last `ascore`."""
        self.selected: tuple[Prompt, str, bool, str | None, int, float | None] | None = None
        """What the last `aselect` was given beside the options."""
        self.pins: dict[str, tuple[Pin, str | None]] = {}
        self.active = 0
        self.aborted = 0
        self.finished: dict[str, int] = {}
        self.prompt_tokens = self.cached_tokens = 0
        self._known: set[bytes] = set()

    # --- tokens ---

    def tokenize(self, prompt: PromptLike) -> Tokens:
        message = as_prompt(prompt)
        text = _render(message)
        return Tokens(ids=tuple(text), text=text.decode(errors="replace"), pieces=tuple(bytes([byte]) for byte in text))

    async def atokenize(self, prompt: PromptLike) -> Tokens:
        return self.tokenize(prompt)

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        if any(not 0 <= i < 256 for i in ids):
            raise InvalidRequest("token ids must be below 256", param="tokens")
        return bytes(ids).decode(errors="replace")

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.detokenize(ids, skip_special_tokens=skip_special_tokens)

    async def aselect(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        return_cache_report: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Selection:
        check_options(options, method)
        message = as_prompt(prompt)
        self.selected = (message, text, begins_turn, cache_salt, priority, timeout)
        ids = [list(option.encode() if isinstance(option, str) else option) for option in options]
        bare = [[-0.5] * len(row) for row in ids] if method.startswith("unconditional") else []
        answer = Selected(
            request_id=0, token_ids=ids, logprobs=[[logprob(token) for token in row] for row in ids],
            unconditional=bare, written=[[*text.encode(), *row] for row in ids],
            usage=Usage(
                prompt_tokens=len(_render(message)) + sum(map(len, ids)),
                cache=CacheReport(cached=0, computed=9, reason="never_seen") if return_cache_report else None,
            ),
        )  # fmt: skip
        return selection(answer, options, method)

    async def ascore(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        if any(token >= 256 for option in options for token in option):
            raise InvalidRequest("token id 256 is not in the vocabulary", param="options")
        self.tokenize(prompt)
        self.scored = (cache_salt, priority, timeout)
        tokens = len(_render(as_prompt(prompt)))
        return Scores(
            logprobs=[tuple(logprob(token) for token in option) for option in options],
            usage=Usage(prompt_tokens=sum(tokens + len(option) for option in options)),
        )

    async def aembed(
        self,
        texts: TextLike | Sequence[TextLike],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Embeddings:
        """Four numbers a text, which say which bytes it has."""
        check_size(dimensions, self.info)
        vectors, tokens = [], 0
        for index, prompt in enumerate(as_texts(texts)):
            ids = _render(prompt)
            if len(ids) > CONTEXT and not truncate:
                raise ContextLengthExceeded(f"input {index} has {len(ids)} tokens", param="input")
            tokens += len(ids)
            vectors.append(np.array([len(ids), sum(ids), ids[0], ids[-1]], np.float32)[:dimensions])
        if normalize:
            vectors = [(vector / np.linalg.norm(vector)).astype(np.float32) for vector in vectors]
        return Embeddings(vectors, Usage(prompt_tokens=tokens))

    # --- generation ---

    async def agenerate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        collector = Collector((sampling_params or SamplingParams()).n)
        async for delta in self.astream(
            prompt, sampling_params, constraint=constraint, cache_salt=cache_salt, priority=priority, timeout=timeout
        ):
            collector.add(delta)
        return collector.generation()

    async def astream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[Delta]:
        params = sampling_params or SamplingParams()
        self.seen.append((as_prompt(prompt), params, constraint, cache_salt, priority))
        ids = _render(as_prompt(prompt))
        self._admit(ids, params, constraint)
        self._count(+1)
        reason = "abort"
        try:
            async with asyncio.timeout(timeout):
                if b"WAIT" in ids:
                    while self.alive:
                        await asyncio.sleep(0.01)
                    raise EngineDead("the scheduler process ended")
                async for delta in self._deltas(ids, params, constraint):
                    yield delta
            reason = "stop"
        except TimeoutError as error:
            raise Aborted("the request took too long", code="timeout") from error
        finally:
            self.finished[reason] = self.finished.get(reason, 0) + 1
            self.aborted += reason == "abort"
            self._count(-1)

    def _admit(self, ids: bytes, params: SamplingParams, constraint: Constraint | None) -> None:
        if b"MIDBOOM" not in ids and b"BOOM" in ids:
            raise ValueError("secret internals")
        if constraint is not None and "[unclosed" in constraint.value:
            raise ConstraintError("the pattern is not closed at character 0", param="regex")
        if len(ids) + (params.max_tokens or 1) > CONTEXT:
            raise ContextLengthExceeded(
                f"the prompt has {len(ids)} tokens, but the limit is {CONTEXT}: lower max_tokens",
                param="prompt" if len(ids) >= CONTEXT else "max_tokens",
            )

    async def _deltas(self, ids: bytes, params: SamplingParams, constraint: Constraint | None) -> AsyncIterator[Delta]:
        cached = len(ids) - 1 if ids in self._known else 0
        self._known.add(ids)
        self.prompt_tokens += len(ids)
        self.cached_tokens += cached
        outputs = [self._output(ids, params, constraint, index) for index in range(params.n)]
        scores = None
        if params.prompt_logprobs is not None and (self.scores_single or len(ids) > 1):
            scores = tuple(entry(b, params.prompt_logprobs, first=i == 0) for i, b in enumerate(ids))
        decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in outputs]
        tokens = sum(len(output) for output, _, _ in outputs)
        usage = Usage(
            prompt_tokens=len(ids), cached_tokens=cached, completion_tokens=tokens, constraint=self.report,
            queue_s=0.002, grammar_s=0.001, ttft_s=0.012, total_s=0.05,
        )  # fmt: skip
        for step in range(max(len(output) for output, _, _ in outputs) + 1):
            await asyncio.sleep(0)
            if step == 3:
                await _happens(ids)
            # Later samples first: who reads must not count on their order.
            for index, (output, finish, stop) in reversed(list(enumerate(outputs))):
                if step > len(output):
                    continue
                new = output[step : step + 1]
                ended = step == len(output)
                last = ended and step == max(len(other) for other, _, _ in outputs) and index == min(
                    i for i, (other, _, _) in enumerate(outputs) if len(other) == step
                )  # fmt: skip
                yield Delta(
                    index=index,
                    text=decoders[index].decode(new, final=ended),
                    token_ids=tuple(new),
                    logprobs=tuple(entry(b, params.logprobs) for b in new) if params.logprobs is not None else None,
                    finish_reason=finish if ended else None,  # type: ignore[arg-type]
                    stop_reason=stop if ended else None,
                    usage=usage if last else None,
                    prompt_logprobs=scores if index == 0 and step == 0 else None,
                )

    def _output(
        self, ids: bytes, params: SamplingParams, constraint: Constraint | None, index: int
    ) -> tuple[bytes, str, str | None]:
        text = self.reply if index == 0 else f"{self.reply} ({index})"
        if b"USETOOL" in ids:
            text = "12 °C." if b"<tool>" in ids else CALL
        if constraint is not None and constraint.kind != "structural_tag":
            text = {"choice": constraint.choices[-1] if constraint.choices else "", "regex": "abc"}.get(
                constraint.kind, '{"a":1}'
            )
        cuts = [(text.index(stop), stop) for stop in params.stop if stop in text]
        found = min(cuts, default=None)
        if found is not None:
            text = text[: found[0]]
        output = text.encode()
        if params.max_tokens is not None and len(output) > params.max_tokens:
            return output[: params.max_tokens], "length", None
        return output, "stop", found[1] if found else None

    # --- watching ---

    def _count(self, change: int) -> None:
        with self.changed:
            self.active += change
            self.changed.notify_all()

    def wait_active(self, number: int, timeout: float = 5.0) -> bool:
        """Whether exactly `number` requests are open, now or within `timeout` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self.active == number, timeout)

    async def astats(self) -> EngineStats:
        return EngineStats(
            running=self.active, kv_tokens=4096, kv_used=self.active, prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens, finished=dict(self.finished), ttft_s=(0.5, 2),
        )  # fmt: skip

    async def acache(self, *, cache_salt: str | None = None) -> CacheView:
        text = f"abc{cache_salt or ''}"
        return CacheView(nodes=[CacheNode(depth=1, tokens=3, hits=1, locks=0, age_s=0.5, text=text)], tokens=3)

    async def apin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        tokens = len(_render(as_prompt(prompt)))
        if tokens > 100:
            raise InvalidRequest("more would be pinned than may be", param="prompt", code="pin_quota")
        pin = Pin(id=f"pin{len(self.pins)}", tokens=tokens, expires_in_s=ttl)
        self.pins[pin.id] = (pin, cache_salt)
        return pin

    async def aunpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        found = self.pins.pop(str(pin), None)
        if found is None or found[1] != cache_salt:
            raise NotFound("there is no such pin here", param="id", code="pin_not_found")
        return found[0]

    def for_tenant(self, tenant: str) -> FakeBackend:
        return TenantView(self, tenant)  # type: ignore[return-value]

    async def aflush(self) -> int:
        return 3


class TenantView:
    """The same backend, which says whose tree it shows."""

    def __init__(self, backend: FakeBackend, tenant: str) -> None:
        self._backend, self._tenant = backend, tenant

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    async def acache(self, *, cache_salt: str | None = None) -> CacheView:
        return await self._backend.acache(cache_salt=f"/{self._tenant}/{cache_salt or ''}")


async def _happens(ids: bytes) -> None:
    if b"SLOW" in ids:
        await asyncio.Event().wait()
    if b"DIE" in ids:
        raise EngineDead("the scheduler process ended")
    if b"DEADEND" in ids:
        raise GenerationFailed("the constraint met a dead end")
    if b"MIDBOOM" in ids:
        raise ValueError("secret internals")


def _render(prompt: Prompt) -> bytes:
    if isinstance(prompt, TextPrompt):
        return prompt.text.encode()
    if isinstance(prompt, TokensPrompt):
        if any(not 0 <= i < 256 for i in prompt.ids):
            raise InvalidRequest("token ids must be below 256", param="prompt")
        return bytes(int(i) for i in prompt.ids)
    assert isinstance(prompt, ChatPrompt)
    turns = [f"<{m.role}>{m.content}{m.tool_calls or ''}" for m in prompt.messages]
    end = f"\n<assistant>{prompt.opening}" if prompt.add_generation_prompt else ""
    return ("\n".join(turns) + end).encode()


def logprob(token: int) -> float:
    return -(token % 7 + 1) / 8


def entry(token: int, k: int, first: bool = False) -> TokenLogprob:
    if first:
        return TokenLogprob(token, _show(token), bytes([token]), None)
    others = [
        (token, logprob(token)),
        *((o % 256, -5.0 - o if o < token + 3 else -math.inf) for o in range(token + 1, token + k)),
    ]
    top = tuple(TopLogprob(o, _show(o), bytes([o]), lp) for o, lp in others[:k])
    return TokenLogprob(token, _show(token), bytes([token]), logprob(token), top)


def _show(token: int) -> str:
    return bytes([token]).decode(errors="replace")
