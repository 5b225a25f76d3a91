"""The engine: a model served by three processes of this machine, behind the client API.

with radixrt.Engine("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", SamplingParams(max_tokens=8)).text)
"""

from __future__ import annotations

import copy
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from radixrt.backend import Tokens
from radixrt.choosing import selection
from radixrt.collect import Collector
from radixrt.config import EngineConfig, draft_sources
from radixrt.connection import AsyncInbox, Connection, Inbox, SyncInbox
from radixrt.errors import Aborted, EngineDead, InvalidRequest, RadixrtError, StartupError
from radixrt.launch import Trio
from radixrt.messages import (
    Abort,
    Detokenized,
    FlushAnswer,
    FromClient,
    Loading,
    Query,
    Ready,
    SaveAnswer,
    Selected,
    StartupFailed,
    StatsAnswer,
    Submit,
    Tokenize,
    Tokenized,
    TreeAnswer,
    UnpinAnswer,
)
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.pinning import NOTHING, checked_ttl, pin_name, pinned
from radixrt.programs import AsyncProgram, Program
from radixrt.prompts import PromptLike, as_prompt
from radixrt.questions import (
    detokenize_question,
    expect,
    score_question,
    scores,
    seconds,
    select_question,
    tokens,
)
from radixrt.results import CacheNode, CacheView, EngineStats, Generation, ModelInfo, Pin, Scores, Selection
from radixrt.streams import AsyncDeltaStream, DeltaStream

log = logging.getLogger(__name__)

SAVE_TIMEOUT_S = 30.0
"""How long `close` waits until the cache directory is up to date."""

Answer = TypeVar("Answer")


class Engine:
    """A Backend (see `radixrt.backend`) over processes of its own; use it as a context manager, or call `close`.

    Args:
        model: short name (`smollm2-135m`), directory with config.json and safetensors, GGUF file, or hub name.
        on_progress: called with (stage, fraction) while the model is fetched and loaded, from another thread.
        fields: those of `EngineConfig`.

    Raises ModelError when the model cannot be found or run, StartupError when a process ends before it serves.
    """

    programs_grow = True
    """A program request takes more while it runs, and can branch."""

    def __init__(self, model: str, *, on_progress: Callable[[str, float], None] | None = None, **fields: Any) -> None:
        try:
            self.config = msgspec.convert({"model": model, **fields}, EngineConfig)
            unknown = fields.keys() - set(EngineConfig.__struct_fields__)
        except msgspec.ValidationError as error:
            raise StartupError(f"the engine's configuration is wrong: {error}") from error
        if unknown:
            known = ", ".join(sorted(EngineConfig.__struct_fields__))
            raise StartupError(f"unknown engine option {', '.join(sorted(unknown))}; there are: {known}")
        from radixrt.checkpoint import dummy_directory, resolve

        self._tenant: str | None = None
        self._on_progress = on_progress
        self._ready = threading.Event()
        self._info: ModelInfo | None = None
        self._failure: RadixrtError | None = None
        self.started_at = time.monotonic()
        progress = self._fetching if on_progress else None
        draft_sources(self.config)  # before anything is fetched or started
        if self.config.load_format == "dummy":
            path = dummy_directory(self.config.model)
        else:
            path = resolve(self.config.model, progress=progress)
        draft = resolve(self.config.draft_model, progress=progress) if self.config.draft_model is not None else None
        self._trio = Trio(self.config, path, self._process_died, draft)
        self._connection = Connection(self._trio.client_address, self._status)
        self._finalizer = weakref.finalize(self, _shut_down, self._connection, self._trio)
        self._wait_until_ready()

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise self._failure or StartupError("the engine is still loading")
        return self._info

    @property
    def alive(self) -> bool:
        """All three processes run and the model is loaded."""
        return self._trio.alive and self._connection.alive and self._info is not None and self._failure is None

    @property
    def failure(self) -> RadixrtError | None:
        """Why the engine is dead, or None."""
        return self._failure

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id by name (tokenizer, scheduler, runner)."""
        return {name: process.pid for name, process in self._trio.processes.items()}

    def close(self) -> None:
        """Save what the tree holds where there is a cache directory, and stop the processes; open requests end with
        EngineDead. Safe to call twice."""
        if self.config.cache_dir is not None and self._finalizer.alive and self.alive:
            try:
                self._ask(self._query("save"), SaveAnswer, SAVE_TIMEOUT_S)
            except (RadixrtError, TimeoutError) as error:
                log.warning("the cache directory may lack what was computed last: %s", error)
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- generation -----------------------------------------------------------------------------------------------

    def generate(
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
        stream = self._stream(prompt, params, constraint, cache_salt, priority, timeout, stream=False)
        collector = Collector(params.n)
        for delta in stream:
            collector.add(delta)
        return collector.generation()

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> DeltaStream:
        params = sampling_params or SamplingParams()
        return self._stream(prompt, params, constraint, cache_salt, priority, timeout, stream=True)

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
        stream = self._astream(prompt, params, constraint, cache_salt, priority, timeout, stream=False)
        collector = Collector(params.n)
        async for delta in stream:
            collector.add(delta)
        return collector.generation()

    def astream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncDeltaStream:
        params = sampling_params or SamplingParams()
        return self._astream(prompt, params, constraint, cache_salt, priority, timeout, stream=True)

    def score(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        question = score_question(prompt, options, cache_salt=cache_salt, priority=priority)
        return scores(self._ask(question, Selected, timeout))

    async def ascore(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        question = score_question(prompt, options, cache_salt=cache_salt, priority=priority)
        return scores(await self._aask(question, Selected, timeout))

    def select(
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
        question = select_question(
            prompt, options, method, text=text, begins_turn=begins_turn, return_cache_report=return_cache_report,
            cache_salt=cache_salt, priority=priority,
        )  # fmt: skip
        return selection(self._ask(question, Selected, timeout), options, method)

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
        question = select_question(
            prompt, options, method, text=text, begins_turn=begins_turn, return_cache_report=return_cache_report,
            cache_salt=cache_salt, priority=priority,
        )  # fmt: skip
        return selection(await self._aask(question, Selected, timeout), options, method)

    def program(
        self, *, cache_salt: str | None = None, priority: int = 0, timeout: float | None = None, stream: bool = True
    ) -> Program:
        """An empty program request, to which text and gens are appended (`radixrt.programs`)."""
        return Program(
            self._connection,
            cache_salt=cache_salt,
            tenant=self._tenant,
            priority=priority,
            timeout=seconds(timeout),
            stream=stream,
        )

    def aprogram(
        self,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        stream: bool = True,
        parent: AsyncProgram | None = None,
    ) -> AsyncProgram:
        """The same for a task; to be called inside the event loop. With `parent` it begins where that one's next
        `Branch` names it (`AsyncProgram.branch` does both)."""
        return AsyncProgram(
            self._connection,
            parent,
            cache_salt=cache_salt,
            tenant=self._tenant,
            priority=priority,
            timeout=seconds(timeout),
            stream=stream,
        )

    def _stream(
        self, prompt: PromptLike, params: SamplingParams, constraint: Constraint | None, cache_salt: str | None,
        priority: int, timeout: float | None, *, stream: bool, pin_s: float | None = None,
    ) -> DeltaStream:  # fmt: skip
        inbox = SyncInbox()
        number = self._submit(inbox, prompt, params, constraint, cache_salt, priority, timeout, stream, pin_s)
        return DeltaStream(self._connection, number, inbox, params.n, timeout)

    def _astream(
        self, prompt: PromptLike, params: SamplingParams, constraint: Constraint | None, cache_salt: str | None,
        priority: int, timeout: float | None, *, stream: bool, pin_s: float | None = None,
    ) -> AsyncDeltaStream:  # fmt: skip
        inbox = AsyncInbox()
        number = self._submit(inbox, prompt, params, constraint, cache_salt, priority, timeout, stream, pin_s)
        return AsyncDeltaStream(self._connection, number, inbox, params.n, timeout)

    def _submit(
        self, inbox: Inbox, prompt: PromptLike, params: SamplingParams, constraint: Constraint | None,
        cache_salt: str | None, priority: int, timeout: float | None, stream: bool, pin_s: float | None,
    ) -> int:  # fmt: skip
        """Send a request; its number. What is wrong with it is raised here."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"sampling_params must be a SamplingParams, not a {type(params).__name__}")
        seconds(timeout)
        message = as_prompt(prompt)
        number = self._connection.open(inbox)
        try:
            self._connection.send(
                Submit(
                    request_id=number, prompt=message, sampling=params, constraint=constraint, cache_salt=cache_salt,
                    priority=priority, timeout_s=timeout, stream=stream, tenant=self._tenant, pin_s=pin_s,
                )
            )  # fmt: skip
        except BaseException:
            self._connection.forget(number)
            raise
        return number

    # --- text and tokens ------------------------------------------------------------------------------------------

    def tokenize(self, prompt: PromptLike) -> Tokens:
        return tokens(self._ask(lambda number: Tokenize(request_id=number, prompt=as_prompt(prompt)), Tokenized))

    async def atokenize(self, prompt: PromptLike) -> Tokens:
        message = as_prompt(prompt)
        return tokens(await self._aask(lambda number: Tokenize(request_id=number, prompt=message), Tokenized))

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._ask(detokenize_question(ids, skip_special_tokens), Detokenized).text

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return (await self._aask(detokenize_question(ids, skip_special_tokens), Detokenized)).text

    # --- looking at it --------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        return self._ask(self._query("stats"), StatsAnswer).stats

    async def astats(self) -> EngineStats:
        return (await self._aask(self._query("stats"), StatsAnswer)).stats

    def tree(self, *, cache_salt: str | None = None) -> list[CacheNode]:
        """The prefix tree in depth-first order, as far as it is of this tenant and salt."""
        return self.cache(cache_salt=cache_salt).nodes

    def cache(self, *, cache_salt: str | None = None) -> CacheView:
        """The tree with its pins and totals, as far as it is of this tenant and salt."""
        return self._ask(self._query("tree", cache_salt), TreeAnswer).view

    async def acache(self, *, cache_salt: str | None = None) -> CacheView:
        return (await self._aask(self._query("tree", cache_salt), TreeAnswer)).view

    def flush(self) -> int:
        """Drop everything from the tree that nobody uses, or pinned; the number of tokens freed."""
        return self._ask(self._query("flush"), FlushAnswer).freed_tokens

    async def aflush(self) -> int:
        return (await self._aask(self._query("flush"), FlushAnswer)).freed_tokens

    def _query(
        self, what: Literal["stats", "tree", "flush", "save", "unpin"], cache_salt: str | None = None, pin_id: str = ""
    ) -> Callable[[int], FromClient]:
        return lambda number: Query(request_id=number, what=what, cache_salt=cache_salt, pin_id=pin_id)

    # --- keeping --------------------------------------------------------------------------------------------------

    def pin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        stream = self._stream(
            prompt, NOTHING, None, cache_salt, priority, timeout, stream=False, pin_s=checked_ttl(ttl)
        )
        return pinned(list(stream))

    async def apin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        stream = self._astream(
            prompt, NOTHING, None, cache_salt, priority, timeout, stream=False, pin_s=checked_ttl(ttl)
        )
        return pinned([delta async for delta in stream])

    def unpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        return self._ask(self._query("unpin", cache_salt, pin_name(pin)), UnpinAnswer).pin

    async def aunpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        return (await self._aask(self._query("unpin", cache_salt, pin_name(pin)), UnpinAnswer)).pin

    def for_tenant(self, tenant: str) -> Engine:
        """This engine for one tenant: the same processes, and a part of the tree that no other shares or sees."""
        view = copy.copy(self)
        view._tenant = tenant
        return view

    def save(self) -> int:
        """Copy what the tree holds to the tier (cache directory, host memory), safely; the number of tokens that the
        tier holds then, 0 where there is none. `close` does it, too."""
        return self._ask(self._query("save"), SaveAnswer).tier_tokens

    # --- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[int], FromClient], answer: type[Answer], timeout: float | None = None) -> Answer:
        seconds(timeout)
        inbox = SyncInbox()
        number = self._connection.open(inbox)
        answered = False
        try:
            self._connection.send(self._own(question(number)))
            item = inbox.get(timeout)
            answered = True
        except TimeoutError:
            raise Aborted(f"the request took longer than {timeout} s and was cancelled", code="timeout") from None
        finally:
            self._connection.forget(number)
            if not answered:  # nobody waits for it any more
                self._connection.send(Abort(request_id=number))
        return expect(item, answer)

    async def _aask(
        self, question: Callable[[int], FromClient], answer: type[Answer], timeout: float | None = None
    ) -> Answer:
        seconds(timeout)
        inbox = AsyncInbox()
        number = self._connection.open(inbox)
        answered = False
        try:
            self._connection.send(self._own(question(number)))
            item = await inbox.get(timeout)
            answered = True
        except TimeoutError:
            raise Aborted(f"the request took longer than {timeout} s and was cancelled", code="timeout") from None
        finally:
            self._connection.forget(number)
            if not answered:  # nobody waits for it any more
                self._connection.send(Abort(request_id=number))
        return expect(item, answer)

    def _own(self, message: FromClient) -> FromClient:
        """The message, about this tenant's part of the tree where it is about one."""
        if self._tenant is None or "tenant" not in message.__struct_fields__:
            return message
        return msgspec.structs.replace(message, tenant=self._tenant)

    def _wait_until_ready(self) -> None:
        in_time = self._ready.wait(self.config.start_timeout_s)
        if self._failure is None and not in_time:
            self._failure = StartupError(f"the engine did not start within {self.config.start_timeout_s:.0f} s")
        if self._failure is not None:
            self.close()
            raise self._failure

    def _fetching(self, what: str, done: int, total: int | None) -> None:
        if self._on_progress is not None:
            self._on_progress(what, done / total if total else 0.0)

    def _status(self, message: Loading | Ready | StartupFailed) -> None:
        if isinstance(message, Loading):
            if self._on_progress is not None:
                self._on_progress(message.stage, message.fraction)
        elif isinstance(message, Ready):
            self._info = message.info
            self._ready.set()
        else:
            self._failure = self._failure or RadixrtError.from_info(message.error)
            self._ready.set()

    def _process_died(self, name: str, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._info is None:
            # A process that cannot start says why before it ends; give its words a moment to arrive.
            if not self._ready.wait(1.0):
                self._failure = StartupError(
                    f"the {name} process {how} before the engine was ready", code="process_died"
                )
                self._ready.set()
            return
        self._failure = EngineDead(f"the {name} process {how}: the engine must be restarted", code="process_died")
        log.error("%s", self._failure.message)
        self._connection.fail(self._failure)


def _shut_down(connection: Connection, trio: Trio) -> None:
    connection.close()
    trio.stop()
