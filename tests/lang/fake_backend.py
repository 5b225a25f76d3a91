"""A backend without a model: a toy tokenizer with chat markers, scripted answers, and hooks to hold or break requests.

Its ids are an independent truth for what a program should send: `FakeBackend.encode` is a plain greedy
longest-match over a fixed vocabulary, and a conversation is written by `render`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future

import msgspec

from radixrt.backend import Tokens
from radixrt.choosing import selection
from radixrt.errors import InvalidRequest
from radixrt.messages import ChatPrompt, Select, Selected, TextPrompt
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.prompts import PromptLike, as_prompt
from radixrt.results import Choice, Delta, Generation, ModelInfo, Selection, Usage
from radixrt.tokenizer.options import prepare

EOS, BOS, START, END = 0, 1, 2, 3
SPECIAL = [b"<eos>", b"<bos>", b"<|start|>", b"<|end|>"]
WORDS = [
    "ab", "abc", " Hello", "Hello", " Yes", "Yes", " No", "No", "Bye", "\n\n", "!\n", " there", "user", "assistant",
    "system", " red", " reddish", "é".encode()[1:] + b"\n",
]  # fmt: skip
PIECES: list[bytes] = [
    *SPECIAL,
    *(bytes([b]) for b in range(256)),
    *(w if isinstance(w, bytes) else w.encode() for w in WORDS),
]
_IDS = {piece: i for i, piece in enumerate(PIECES) if i >= len(SPECIAL)}
_LONGEST = max(map(len, _IDS))


def encode(text: str) -> list[int]:
    """Ids of plain text; never a special token."""
    data, ids, at = text.encode(), [], 0
    while at < len(data):
        size = next(n for n in range(min(_LONGEST, len(data) - at), 0, -1) if data[at : at + n] in _IDS)
        ids.append(_IDS[data[at : at + size]])
        at += size
    return ids


def decode(ids: Sequence[int], *, skip_special: bool = False) -> str:
    return b"".join(PIECES[i] for i in ids if not (skip_special and i < len(SPECIAL))).decode(errors="replace")


def chat_ids(
    messages: Sequence[tuple[str, str]],
    *,
    generation_prompt: bool = False,
    leave_open: bool = False,
    thinks: bool = False,
) -> list[int]:
    """The ids of a conversation, written down message by message."""
    ids: list[int] = []
    for i, (role, content) in enumerate(messages):
        ids += [START, *encode(f"{role}\n{content}")]
        if not (leave_open and i == len(messages) - 1):
            ids += [END, *encode("\n")]
    if generation_prompt:
        ids += [START, *encode("assistant\n"), *(encode("<think>\n") if thinks else [])]
    return ids


def logprob(before: Sequence[int], token: int) -> float:
    """The toy model: a token's log-probability is a fixed function of all ids before it."""
    seed = zlib.crc32(",".join(map(str, before)).encode())
    return -0.01 - (zlib.crc32(f"{seed}/{token}".encode()) % 10_000) / 1_000


class Gate:
    """Holds requests until it is opened; `reached` tells that `count` of them have come."""

    def __init__(self, count: int = 1) -> None:
        self.reached = threading.Event()
        self._missing = count
        self._open: Future[None] = Future()

    def open(self) -> None:
        self._open.set_result(None)

    async def wait(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self.reached.set()
        await asyncio.shield(asyncio.wrap_future(self._open))


HEALING = "(.|\\n)*"
"""How the regex of a healed join ends."""
Script = Callable[[str], str]


class FakeBackend:
    """`script` gives the continuation of a prompt's text; `gates` and `failures` act where their text ends a prompt."""

    def __init__(
        self, script: Script | None = None, *, bos: bool = False, incremental: bool = True, thinks: bool = False
    ) -> None:
        self.script = script or (lambda text: f"<{zlib.crc32(text.encode()) % 997}>")
        self.bos = bos
        self.incremental = incremental
        self.thinks = thinks
        self.gates: dict[str, Gate] = {}
        self.failures: dict[str, Exception] = {}
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.constraints: list[Constraint | None] = []
        self.tokenized: list[object] = []
        self.selects: list[tuple[Select, list[int], list[list[int]], dict[str, object]]] = []
        self.options: list[dict[str, object]] = []
        self.heals: dict[str, Sequence[str]] = {}
        self.probes: list[tuple[list[int], str, SamplingParams]] = []
        self.cached = 0
        self.forced: tuple[tuple[int, int], ...] = ()
        """What every answer says of its text."""
        self.cancelled: list[str] = []
        self.active = 0
        self.peak = 0
        self.lock = threading.Lock()
        self.pause = False
        """Yield to the loop a few times in each request, so that requests overlap."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="fake", context_length=4096, kv_tokens=4096, vocab_size=len(PIECES), dtype="float32", device="cpu",
            threads=1, eos_token_ids=(EOS,), has_chat_template=True,
        )  # fmt: skip

    # --- tokenizing --------------------------------------------------------------------------------------------------

    def tokenize(self, prompt: PromptLike) -> Tokens:
        message = as_prompt(prompt)
        with self.lock:
            self.tokenized.append(message)
        if isinstance(message, TextPrompt):
            ids = ([BOS] if self.bos and message.add_special_tokens else []) + encode(message.text)
        elif isinstance(message, ChatPrompt):
            ids = self._chat(message)
        else:
            ids = message.ids.tolist()
        pieces = tuple(PIECES[i] for i in ids)
        return Tokens(ids=tuple(ids), text=b"".join(pieces).decode(errors="replace"), pieces=pieces)

    async def atokenize(self, prompt: PromptLike) -> Tokens:
        await asyncio.sleep(0)
        return self.tokenize(prompt)

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return decode(ids, skip_special=skip_special_tokens)

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.detokenize(ids, skip_special_tokens=skip_special_tokens)

    def _chat(self, prompt: ChatPrompt) -> list[int]:
        if not prompt.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        pairs = [(m.role, m.content) for m in prompt.messages]
        whole = chat_ids(
            pairs,
            generation_prompt=prompt.add_generation_prompt,
            leave_open=prompt.continue_final_message,
            thinks=self.thinks,
        )
        if not prompt.after:
            return whole
        if not self.incremental:
            raise InvalidRequest("not a continuation", code="not_incremental")
        begin = chat_ids(pairs[: prompt.after], leave_open=prompt.after_open)
        return whole[len(begin) :]

    # --- generating --------------------------------------------------------------------------------------------------

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
        params = sampling_params or SamplingParams()
        ids = list(self.tokenize(prompt).ids)
        text = decode(ids)
        with self.lock:
            self.options.append({"cache_salt": cache_salt, "priority": priority})
        if constraint is not None and constraint.value.endswith(HEALING):
            return self._heal(ids, constraint.value.removesuffix(HEALING).replace("\\", ""), params)
        with self.lock:
            self.prompts.append(ids)
            self.params.append(params)
            self.constraints.append(constraint)
            self.active += 1
            self.peak = max(self.peak, self.active)
        try:
            for ending, gate in self.gates.items():
                if text.endswith(ending):
                    await gate.wait()
            if self.pause:
                for _ in range(3):
                    await asyncio.sleep(0)
            for ending, error in self.failures.items():
                if text.endswith(ending):
                    raise error
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        finally:
            with self.lock:
                self.active -= 1
        answer = constraint.choices[0] if constraint and constraint.kind == "choice" else self.script(text)
        choices = tuple(_choice(i, answer if i == 0 else f"{answer}#{i}", params) for i in range(params.n))
        choices = tuple(msgspec.structs.replace(choice, forced=self.forced) for choice in choices)
        completion = sum(len(choice.token_ids) for choice in choices)
        return Generation(
            choices=choices,
            usage=Usage(
                prompt_tokens=len(ids), completion_tokens=completion, cached_tokens=min(self.cached, len(ids) - 1)
            ),
        )

    def _heal(self, ids: list[int], end: str, params: SamplingParams) -> Generation:
        """The next of the pieces that `heals` has for the text's last one, but for those that are forbidden."""
        assert params.max_tokens == 1
        self.probes.append((ids, end, params))
        pieces = [*self.heals.get(end, ()), end]
        token = next(i for piece in pieces for i in encode(piece)[:1] if params.logit_bias.get(i, 0) > -100)
        choice = Choice(index=0, text=decode([token]), token_ids=(token,), finish_reason="length")
        return Generation(
            choices=(choice,), usage=Usage(prompt_tokens=len(ids), completion_tokens=1, cached_tokens=self.cached)
        )

    async def astream(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None, **options: object
    ) -> AsyncIterator[Delta]:
        result = await self.agenerate(prompt, sampling_params, **options)  # type: ignore[arg-type]
        for choice in result.choices:
            for character in choice.text:
                await asyncio.sleep(0)
                yield Delta(index=choice.index, text=character)
            last = choice is result.choices[-1]
            yield Delta(
                index=choice.index, token_ids=choice.token_ids, finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason, usage=result.usage if last else None,
            )  # fmt: skip

    def generate(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None, **options: object
    ) -> Generation:
        return asyncio.run(self.agenerate(prompt, sampling_params, **options))  # type: ignore[arg-type]

    def stream(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None, **options: object
    ) -> Iterator[Delta]:
        raise NotImplementedError("programs never stream by thread")

    # --- scoring -----------------------------------------------------------------------------------------------------

    def select(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        **options_: object,
    ) -> Selection:
        """The ids are found as the engine's tokenizer process finds them; the log-probabilities are the toy model's."""
        message = Select(
            request_id=1, prompt=as_prompt(prompt), text=text, options=[str(option) for option in options],
            begins_turn=begins_turn, unconditional=method.startswith("unconditional"),
        )  # fmt: skip
        request = prepare(message, _Encoder(self), 1, b"")  # type: ignore[arg-type]
        heads = [request.prompt, *([request.base] if request.base else [])]
        scores = [[toy_scores(head, option) for option in request.token_ids] for head in heads]
        self.selects.append((message, request.prompt, request.token_ids, options_))
        answer = Selected(
            request_id=1,
            token_ids=request.token_ids,
            logprobs=scores[0],
            unconditional=scores[1] if request.base else [],
            written=request.written,
            usage=Usage(
                prompt_tokens=sum(len(head) + sum(map(len, request.token_ids)) for head in heads),
                cached_tokens=self.cached,
            ),
        )
        return selection(answer, options, method)

    async def aselect(self, *arguments: object, **options: object) -> Selection:
        await asyncio.sleep(0)
        return self.select(*arguments, **options)  # type: ignore[arg-type]


class _Encoder:
    """The toy tokenizer behind the interface of `tokenizer.encode.PromptEncoder`."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    def encode(self, prompt: PromptLike) -> list[int]:
        return list(self._backend.tokenize(prompt).ids)

    def tokens(self, text: str, *, first: bool) -> tuple[list[int], list[bytes]]:
        tokens = self._backend.tokenize(TextPrompt(text=text, add_special_tokens=first))
        return list(tokens.ids), list(tokens.pieces)

    def beginning(self) -> list[int]:
        return [BOS] if self._backend.bos else [EOS]


def toy_scores(prompt: Sequence[int], option: Sequence[int]) -> list[float]:
    return [logprob([*prompt, *option[:j]], option[j]) for j in range(len(option))]


def _choice(index: int, answer: str, params: SamplingParams) -> Choice:
    """The answer under max_tokens and stop strings; as an engine's, the ids keep those of the stop string."""
    every = encode(answer)
    limit = len(every) if params.max_tokens is None else params.max_tokens
    for count in range(1, min(limit, len(every)) + 1):
        text = decode(every[:count])
        places = [(text.find(stop), stop) for stop in params.stop if stop in text]
        if places:
            at, stop = min(places)
            return Choice(
                index=index, text=text[:at], token_ids=tuple(every[:count]), finish_reason="stop", stop_reason=stop
            )
    cut = limit < len(every)
    ids = every[:limit]
    return Choice(index=index, text=decode(ids), token_ids=tuple(ids), finish_reason="length" if cut else "stop")


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
