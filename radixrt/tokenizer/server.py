"""What the tokenizer process does with each message; it owns text, and knows neither tensors nor the tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from radixrt.checkpoint import Vocabulary
from radixrt.dialects import DIALECTS
from radixrt.errors import GenerationFailed, Overloaded, RadixrtError
from radixrt.messages import (
    Abort,
    AppendProgram,
    Cancel,
    Deltas,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Enqueue,
    EnqueueSelect,
    Failed,
    FromClient,
    FromScheduler,
    Hello,
    Loading,
    Namespace,
    OpenProgram,
    Pooled,
    PromptScores,
    Query,
    Ready,
    Rejected,
    SchedulerAnswer,
    Select,
    Selected,
    SelectScores,
    StartupFailed,
    StopRow,
    Submit,
    ToClient,
    TokenBatch,
    TokenDelta,
    Tokenize,
    ToScheduler,
)
from radixrt.results import Delta
from radixrt.tokenizer.cache_text import with_text
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.detokenize import adds_space
from radixrt.tokenizer.embedding import embeddings_alone, to_embed
from radixrt.tokenizer.encode import PromptEncoder, all_special
from radixrt.tokenizer.logprobs import token_logprob
from radixrt.tokenizer.options import SelectRequest, prepare
from radixrt.tokenizer.program import Program
from radixrt.tokenizer.programs import ProgramTable
from radixrt.tokenizer.queries import QueryTable, answer_of
from radixrt.tokenizer.requests import Open, Request, RequestTable
from radixrt.tokenizer.sample import Sample

log = logging.getLogger(__name__)

SendClient = Callable[[bytes, ToClient], bool]
"""Queue a message for a client (by its identity); False: it is gone, or reads nothing any more."""
SendScheduler = Callable[[ToScheduler], bool]


class TokenizerServer:
    """Message in, messages out, no sockets: `handle_client` and `handle_scheduler` are all there is.

    An error belongs to the request that caused it: it is answered by Failed, and nothing else notices. A client that
    cannot be sent to loses all its requests.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        chat: ChatTemplate,
        send_client: SendClient,
        send_scheduler: SendScheduler,
        *,
        model_name: str = "",
        embeds_only: bool = False,
    ) -> None:
        """`embeds_only`: the model generates nothing, and is asked for nothing that would need it."""
        self._embeds_only = embeds_only
        self._vocabulary = vocabulary
        self._chat = chat
        self._encoder = PromptEncoder(vocabulary, chat, embeds_only=embeds_only)
        self._send_client = send_client
        self._send_scheduler = send_scheduler
        self._model_name = model_name
        self._adds_space = adds_space(vocabulary)
        self._requests = RequestTable()
        self._programs = ProgramTable(vocabulary, self._encoder, self._requests, self._send, send_scheduler, model_name)
        self._queries = QueryTable(model_name)
        self._listeners: set[bytes] = set()
        self._state: Loading | Ready | StartupFailed = Loading(stage="starting", fraction=0.0)

    @property
    def open_requests(self) -> int:
        return len(self._requests)

    @property
    def open_programs(self) -> int:
        return len(self._programs)

    # --- from clients ---------------------------------------------------------------------------------------------

    def handle_client(self, peer: bytes, message: FromClient) -> None:
        if isinstance(message, Hello):
            self._listeners.add(peer)
            self._send(peer, self._state)
        elif isinstance(message, Abort):
            request = self._requests.of_client(peer, message.request_id)
            if request is not None:
                self._cancel(request)
            self._programs.abort(peer, message.request_id)
        elif isinstance(message, AppendProgram):
            self._programs.append(peer, message)
        else:
            with self._answering(peer, message.request_id):
                self._answer(peer, message)

    def _answer(
        self, peer: bytes, message: Submit | Select | Embed | OpenProgram | Tokenize | Detokenize | Query
    ) -> None:
        if self._embeds_only and isinstance(message, Submit | Select | OpenProgram):
            raise embeddings_alone()
        if isinstance(message, Embed):
            self._requests.check_new(peer, message.request_id)
            request, enqueue = to_embed(message, self._encoder, self._requests.next_id(), peer, self._model_name)
            if not self._send_scheduler(enqueue):
                raise _busy()
            self._requests.add(request)
        elif isinstance(message, Submit):
            self._submit(peer, message)
        elif isinstance(message, Select):
            self._select(peer, message)
        elif isinstance(message, OpenProgram):
            self._programs.open(peer, message)
        elif isinstance(message, Tokenize):
            self._send(peer, self._encoder.tokenized(message.request_id, message.prompt))
        elif isinstance(message, Detokenize):
            ids = self._encoder.checked(message.ids, "tokens")
            text = self._vocabulary.decode(ids, skip_special_tokens=message.skip_special_tokens)
            self._send(peer, Detokenized(request_id=message.request_id, text=text))
        else:
            number = self._requests.next_id()
            if not self._send_scheduler(self._queries.ask(number, peer, message)):
                self._queries.pop(number)
                raise _busy()

    def _submit(self, peer: bytes, message: Submit) -> None:
        self._requests.check_new(peer, message.request_id)
        sampling = message.sampling
        self._encoder.check_sampling(sampling)
        ids = self._encoder.start(message.prompt)
        strip_space = self._adds_space and all_special(self._vocabulary, ids)
        request = Request(
            id=self._requests.next_id(),
            peer=peer,
            client_id=message.request_id,
            sampling=sampling,
            stream=message.stream,
            samples=[Sample(i, self._vocabulary, sampling, strip_space=strip_space) for i in range(sampling.n)],
            prompt_ids=ids if sampling.prompt_logprobs is not None else None,
        )
        enqueue = Enqueue(
            request_id=request.id,
            ids=ids,
            sampling=sampling,
            constraint=message.constraint,
            namespace=Namespace(model=self._model_name, tenant=message.tenant, salt=message.cache_salt),
            pin_s=message.pin_s,
            priority=message.priority,
            timeout_s=message.timeout_s,
        )
        if not self._send_scheduler(enqueue):
            raise _busy()
        self._requests.add(request)

    def _select(self, peer: bytes, message: Select) -> None:
        self._requests.check_new(peer, message.request_id)
        request = prepare(message, self._encoder, self._requests.next_id(), peer)
        enqueue = EnqueueSelect(
            request_id=request.id,
            prompt=np.asarray(request.prompt, dtype=np.int32),
            options=request.token_ids,
            base=np.asarray(request.base, dtype=np.int32),
            return_cache_report=message.return_cache_report,
            namespace=Namespace(model=self._model_name, tenant=message.tenant, salt=message.cache_salt),
            priority=message.priority,
        )
        if not self._send_scheduler(enqueue):
            raise _busy()
        self._requests.add(request)

    # --- from the scheduler ---------------------------------------------------------------------------------------

    def handle_scheduler(self, message: FromScheduler) -> None:
        if isinstance(message, TokenBatch):
            self._token_batch(message)
        elif isinstance(message, PromptScores):
            request = self._requests.get(message.request_id)
            if isinstance(request, Request):
                with self._failing(request):
                    self._prompt_scores(request, message)
        elif isinstance(message, SelectScores):
            self._selected(message)
        elif isinstance(message, Pooled):
            self._embedded(message)
        elif isinstance(message, Rejected):
            program = self._programs.of_number(message.request_id)
            if program is not None:
                self._programs.rejected(program, RadixrtError.from_info(message.error))
            request = self._requests.get(message.request_id)
            if request is not None:
                self._requests.remove(request)
                self._send(request.peer, Failed(request_id=request.client_id, error=message.error))
        elif isinstance(message, SchedulerAnswer):
            self._query_answer(message)
        else:
            self._new_state(message)

    def _token_batch(self, batch: TokenBatch) -> None:
        outbox: dict[bytes, list[tuple[int, Delta]]] = {}
        programs: dict[int, Program] = {}
        for item in batch.items:
            program = self._programs.of_number(item.request_id)
            if program is not None:
                programs[program.id] = program
                self._programs.tokens(program, item)
                continue
            request = self._requests.get(item.request_id)
            if not isinstance(request, Request):
                continue  # aborted while this was under way
            with self._failing(request):
                delta = self._tokens(request, item)
                if delta is not None:
                    outbox.setdefault(request.peer, []).append((request.client_id, delta))
        for peer, items in outbox.items():
            self._send(peer, Deltas(items=items))
        self._programs.tell([*programs.values()])

    def _tokens(self, request: Request, item: TokenDelta) -> Delta | None:
        sample = request.samples[item.index]
        step = sample.step(item)
        if step.stop_keep is not None:
            self._tell(StopRow(request_id=request.id, index=item.index, keep=step.stop_keep))
        if request.finished or item.usage is not None:
            self._requests.remove(request)
        if not request.stream:
            collected = sample.collect(step)
            if collected is None:
                return None
            step = collected
        scores = request.prompt_logprobs if item.index == 0 else None
        if not (step or item.usage or scores):
            return None
        delta = sample.delta(step)
        if item.usage is None and scores is None:
            return delta
        if scores is not None:
            request.prompt_logprobs = None
        usage = item.usage and with_text(item.usage, self._vocabulary)
        return msgspec.structs.replace(
            delta, usage=usage, prompt_logprobs=tuple(scores) if scores is not None else None
        )

    def _prompt_scores(self, request: Request, scores: PromptScores) -> None:
        if request.prompt_ids is None:
            return
        ids = request.prompt_ids[scores.start : scores.start + len(scores.logprobs)].tolist()
        rows = zip(ids, scores.logprobs.tolist(), scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
        entries = [token_logprob(self._vocabulary, *row) for row in rows]
        request.prompt_logprobs = [*(request.prompt_logprobs or ()), *entries]

    def _selected(self, scores: SelectScores) -> None:
        program = self._programs.of_number(scores.request_id)
        if program is not None:
            self._programs.scored(program, scores)
            return
        request = self._requests.get(scores.request_id)
        if not isinstance(request, SelectRequest):
            return  # aborted while this was under way
        self._requests.remove(request)
        self._send(
            request.peer,
            Selected(
                request_id=request.client_id,
                token_ids=request.token_ids,
                logprobs=scores.logprobs,
                unconditional=scores.unconditional,
                written=request.written,
                usage=with_text(scores.usage, self._vocabulary),
            ),
        )

    def _embedded(self, pooled: Pooled) -> None:
        request = self._requests.get(pooled.request_id)
        if request is not None:  # else aborted while this was under way
            self._requests.remove(request)
            answer = Embedded(request_id=request.client_id, vectors=pooled.vectors, usage=pooled.usage)
            self._send(request.peer, answer)

    def _query_answer(self, answer: SchedulerAnswer) -> None:
        peer, client_id = self._queries.pop(answer.query_id)
        if not peer:
            return
        with self._answering(peer, client_id):
            self._send(peer, answer_of(client_id, answer, self._vocabulary))

    def _new_state(self, state: Loading | Ready | StartupFailed) -> None:
        if isinstance(state, Ready):
            self._encoder.context_length = state.info.context_length
            info = msgspec.structs.replace(state.info, **self._chat_facts())
            state = Ready(info=info)
        self._state = state
        for peer in list(self._listeners):
            self._send(peer, state)

    def _chat_facts(self) -> dict[str, Any]:
        """What ModelInfo says of conversations."""
        special, name, marks = self._vocabulary.special_tokens, self._chat.dialect, self._chat.thinking
        return {
            "has_chat_template": self._chat.exists,
            "tool_dialect": name,
            # Explained tools are called in plain text, whatever the vocabulary holds.
            "tool_controls": tuple(
                word for word in (DIALECTS[name].words if name and self._chat.knows_tools else ()) if word in special
            ),
            # Marks that are control tokens cannot be told from others once they are left out of the text.
            "thinking": (marks.open, marks.close) if marks and marks.close not in special else None,
        }

    # --- errors and ends ------------------------------------------------------------------------------------------

    @contextmanager
    def _answering(self, peer: bytes, client_id: int) -> Iterator[None]:
        """What goes wrong before a request is open is answered to whoever asked."""
        try:
            yield
        except RadixrtError as error:
            self._send(peer, Failed(request_id=client_id, error=error.info()))
        except Exception:
            log.exception("a client's message failed")
            self._send(peer, Failed(request_id=client_id, error=_internal().info()))

    @contextmanager
    def _failing(self, request: Open) -> Iterator[None]:
        """What goes wrong in an open request ends that request alone."""
        try:
            yield
        except RadixrtError as error:
            self._cancel(request)
            self._send(request.peer, Failed(request_id=request.client_id, error=error.info()))
        except Exception:
            log.exception("a request failed")
            self._cancel(request)
            self._send(request.peer, Failed(request_id=request.client_id, error=_internal().info()))

    def _cancel(self, request: Open) -> None:
        self._requests.remove(request)
        self._tell(Cancel(request_id=request.id))

    def _tell(self, message: StopRow | Cancel) -> None:
        if not self._send_scheduler(message):
            log.error("the scheduler does not take messages: %s is lost", type(message).__name__)

    def _send(self, peer: bytes, message: ToClient) -> None:
        if self._send_client(peer, message):
            return
        log.info("a client is gone")
        self._listeners.discard(peer)
        self._queries.drop(peer)
        for request in self._requests.of_peer(peer):
            self._cancel(request)
        self._programs.drop(peer)


def _busy() -> Overloaded:
    return Overloaded("the engine does not take requests at the moment: try again later")


def _internal() -> GenerationFailed:
    return GenerationFailed("the tokenizer failed on this request; the server's log says why")
