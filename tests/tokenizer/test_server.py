"""Each message in, and what must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ErrorInfo, InvalidRequest
from radixrt.messages import (
    Abort,
    Cancel,
    ChatMessage,
    ChatPrompt,
    Deltas,
    Detokenize,
    Detokenized,
    Enqueue,
    Failed,
    FlushAnswer,
    Hello,
    Loading,
    Namespace,
    Prompt,
    PromptScores,
    Query,
    Ready,
    Rejected,
    SchedulerAnswer,
    SchedulerQuery,
    StartupFailed,
    StatsAnswer,
    StopRow,
    Submit,
    TextPrompt,
    TokenBatch,
    TokenDelta,
    Tokenize,
    Tokenized,
    TokensPrompt,
    TreeAnswer,
    TreeNode,
    TreeView,
)
from radixrt.params import Constraint, SamplingParams
from radixrt.results import EngineStats, ModelInfo, Usage
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.server import TokenizerServer
from radixrt.tokenizer.shield import Shield

from .conftest import Rig

INFO = ModelInfo(
    name="m", context_length=64, kv_tokens=100, vocab_size=300, dtype="float32", device="cpu", threads=1,
    eos_token_ids=(0,), has_chat_template=False,
)  # fmt: skip


def submit(request_id: int, prompt: Prompt | str = "hello", stream: bool = True, **sampling: Any) -> Submit:
    if isinstance(prompt, str):
        prompt = TextPrompt(text=prompt)
    return Submit(request_id=request_id, prompt=prompt, sampling=SamplingParams(**sampling), stream=stream)


def tokens(rig: Rig, *items: TokenDelta) -> None:
    rig.server.handle_scheduler(TokenBatch(items=list(items)))


def only_failure(rig: Rig) -> ErrorInfo:
    (failed,) = rig.sent(Failed)
    assert not rig.told(Enqueue)
    return failed.error


def test_submit_becomes_enqueue(rig: Rig, vocabulary: Vocabulary) -> None:
    constraint = Constraint(kind="regex", value="a")
    rig.client(
        Submit(
            request_id=7, prompt=TextPrompt(text="hello <|im_end|>"), sampling=SamplingParams(seed=3),
            constraint=constraint, cache_salt="s", priority=2,
        )
    )  # fmt: skip
    (enqueue,) = rig.told(Enqueue)
    assert enqueue.ids.dtype == np.int32 and enqueue.ids.tolist() == vocabulary.encode("hello <|im_end|>")
    assert not any(vocabulary.is_special(i) for i in enqueue.ids.tolist())
    assert enqueue.namespace == Namespace(model="m", salt="s")
    assert (enqueue.sampling.seed, enqueue.constraint, enqueue.priority) == (3, constraint, 2)


def test_two_clients_may_use_one_number(rig: Rig, vocabulary: Vocabulary) -> None:
    rig.client(submit(1), b"a")
    rig.client(submit(1), b"b")
    first, second = rig.told(Enqueue)
    assert first.request_id != second.request_id
    rig.client(Abort(request_id=1), b"b")
    assert [c.request_id for c in rig.told(Cancel)] == [second.request_id]
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    ids = vocabulary.encode("hello")
    tokens(
        rig,
        TokenDelta(request_id=first.request_id, index=0, ids=ids, finish_reason="stop", usage=usage),
        TokenDelta(request_id=second.request_id, index=0, ids=ids),
    )
    assert not rig.sent(Deltas, b"b")
    (delta,) = rig.deltas(1, peer=b"a")
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.usage) == ("hello", tuple(ids), "stop", usage)
    assert rig.server.open_requests == 0


def test_one_message_a_client_a_step(rig: Rig, vocabulary: Vocabulary) -> None:
    for i in range(3):
        rig.client(submit(i))
    numbers = [e.request_id for e in rig.told(Enqueue)]
    (token,) = vocabulary.encode("hello")
    tokens(rig, *(TokenDelta(request_id=n, index=0, ids=[token]) for n in numbers))
    (message,) = rig.sent(Deltas)
    assert [request_id for request_id, _ in message.items] == [0, 1, 2]


def test_samples_have_their_own_text_and_usage_comes_last(rig: Rig, vocabulary: Vocabulary) -> None:
    rig.client(submit(1, n=2))
    (enqueue,) = rig.told(Enqueue)
    emoji = vocabulary.encode("🇨")
    for a, b in zip(emoji, reversed(vocabulary.encode("xyz!")), strict=True):
        tokens(
            rig,
            TokenDelta(request_id=enqueue.request_id, index=0, ids=[a]),
            TokenDelta(request_id=enqueue.request_id, index=1, ids=[b]),
        )
    usage = Usage(completion_tokens=8)
    tokens(rig, TokenDelta(request_id=enqueue.request_id, index=1, finish_reason="stop"))
    assert rig.server.open_requests == 1
    tokens(rig, TokenDelta(request_id=enqueue.request_id, index=0, finish_reason="length", usage=usage))
    assert "".join(d.text for d in rig.deltas(1, 0)) == "🇨"
    assert "".join(d.text for d in rig.deltas(1, 1)) == "!zyx"
    assert [d.usage for d in rig.deltas(1)][-1] == usage
    assert all(d.usage is None for d in rig.deltas(1)[:-1])
    assert rig.server.open_requests == 0


def test_not_streamed_gives_one_delta_a_sample_with_the_same_content(rig: Rig, vocabulary: Vocabulary) -> None:
    pieces = [[i] for i in vocabulary.encode("hello the 🇨 end; rest")]
    results = []
    for request_id, stream in ((1, True), (2, False)):
        rig.client(submit(request_id, stream=stream, logprobs=1, stop=("end;",)))
        number = rig.told(Enqueue)[-1].request_id
        for ids in pieces:
            if not any(stop.request_id == number for stop in rig.told(StopRow)):
                item = TokenDelta(
                    request_id=number, index=0, ids=ids, logprobs=[-1.0], top_ids=[[5]], top_logprobs=[[-1.0]]
                )
                tokens(rig, item)
        tokens(rig, TokenDelta(request_id=number, index=0, finish_reason="stop", usage=Usage()))
        deltas = rig.deltas(request_id)
        assert (len(deltas) == 1) is not stream
        results.append(
            (
                "".join(d.text for d in deltas),
                [i for d in deltas for i in d.token_ids],
                [entry for d in deltas for entry in d.logprobs or ()],
                deltas[-1].finish_reason,
                deltas[-1].stop_reason,
                deltas[-1].usage,
            )
        )
    assert results[0] == results[1]
    assert results[0][0] == "hello the 🇨 " and results[0][3:5] == ("stop", "end;")
    assert [stop.index for stop in rig.told(StopRow)] == [0, 0]
    assert all(entry.top[0].token_id == 5 for entry in results[0][2])


def test_no_replacement_character_in_a_stream(rig: Rig, vocabulary: Vocabulary) -> None:
    text = "👩‍🚀ď漢字🇨🇭"
    rig.client(submit(1, logprobs=0))
    (enqueue,) = rig.told(Enqueue)
    ids = vocabulary.encode(text)
    for token in ids:
        tokens(rig, TokenDelta(request_id=enqueue.request_id, index=0, ids=[token], logprobs=[-1.0]))
    deltas = rig.deltas(1)
    assert "".join(d.text for d in deltas) == text and not any("\ufffd" in d.text for d in deltas)
    tokens(rig, TokenDelta(request_id=enqueue.request_id, index=0, finish_reason="length", usage=Usage()))
    entries = [entry for d in rig.deltas(1) for entry in d.logprobs or ()]
    assert b"".join(entry.bytes for entry in entries) == text.encode()
    assert [entry.token_id for entry in entries] == ids


def test_prompt_logprobs_come_with_the_first_delta(rig: Rig, vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("hello the🇨")
    rig.client(submit(1, TokensPrompt(ids=np.asarray(ids, np.int32)), prompt_logprobs=1, max_tokens=0))
    (enqueue,) = rig.told(Enqueue)
    n = len(ids)
    logprobs = np.linspace(-3, -1, n, dtype=np.float32)
    logprobs[0] = np.nan
    top_ids = np.full((n, 1), 9, np.int32)
    top = np.full((n, 1), -0.5, np.float32)
    top[1] = -np.inf
    for part in (slice(0, 2), slice(2, n)):
        rig.server.handle_scheduler(
            PromptScores(
                request_id=enqueue.request_id, start=part.start, logprobs=logprobs[part], top_ids=top_ids[part],
                top_logprobs=top[part],
            )
        )  # fmt: skip
    tokens(rig, TokenDelta(request_id=enqueue.request_id, index=0, finish_reason="length", usage=Usage()))
    (delta,) = rig.deltas(1)
    scores = delta.prompt_logprobs
    assert scores is not None and [s.token_id for s in scores] == ids
    assert scores[0].logprob is None
    assert [s.logprob for s in scores[1:]] == pytest.approx(logprobs[1:].tolist())
    assert b"".join(s.bytes for s in scores) == "hello the🇨".encode()
    assert scores[1].top[0].logprob == -9999.0 and scores[2].top[0].logprob == -0.5


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("logit_bias", submit(1, logit_bias={100_000: 1.0})),
        ("stop_token_ids", submit(1, stop_token_ids=(100_000,))),
        ("prompt", submit(1, TokensPrompt(ids=np.asarray([1, 100_000], np.int32)))),
        ("prompt", submit(1, TokensPrompt(ids=np.asarray([-1], np.int32)))),
        ("prompt", submit(1, TokensPrompt(ids=np.asarray([], np.int32)))),
        ("prompt", submit(1, TokensPrompt(ids=np.asarray([[1]], np.int32)))),
        ("prompt", submit(1, TokensPrompt(ids=np.asarray([1.0], np.float32)))),
        ("messages", submit(1, ChatPrompt(messages=[]))),
        ("messages[1].role", submit(1, ChatPrompt(messages=[ChatMessage(role="user"), ChatMessage(role="banana")]))),
    ],
)
def test_what_is_wrong_is_refused_by_name(rig: Rig, param: str, message: Submit) -> None:
    rig.client(message)
    error = only_failure(rig)
    assert (error.kind, error.param) == ("InvalidRequest", param)
    assert rig.server.open_requests == 0


def test_an_open_number_is_not_taken_twice(rig: Rig, vocabulary: Vocabulary) -> None:
    rig.client(submit(1))
    rig.client(submit(1))
    (failed,) = rig.sent(Failed)
    assert failed.error.param == "request_id"
    (enqueue,) = rig.told(Enqueue)
    done = TokenDelta(request_id=enqueue.request_id, index=0, finish_reason="stop", usage=Usage())
    tokens(rig, done)
    assert rig.deltas(1)[-1].finish_reason == "stop"
    rig.client(submit(1))
    assert len(rig.told(Enqueue)) == 2


@pytest.mark.parametrize("add", [True, False])
def test_an_empty_text_starts_from_bos(rig: Rig, add: bool) -> None:
    rig.client(submit(1, TextPrompt(text="", add_special_tokens=add)))
    assert rig.told(Enqueue)[0].ids.tolist() == [1]


def test_an_empty_text_without_bos_is_refused(make_rig: Callable[..., Rig], vocabulary: Vocabulary) -> None:
    bare = Vocabulary(vocabulary.tokenizer_json(), bos_id=None, eos_ids=(0,), adds_bos=False)
    rig = make_rig(vocab=bare)
    rig.client(submit(1, ""))
    assert only_failure(rig).param == "prompt"


def test_a_text_far_beyond_the_context_is_refused_early(rig: Rig) -> None:
    rig.server.handle_scheduler(Ready(info=INFO))
    rig.client(submit(1, "xy" * 64 * 20))
    error = only_failure(rig)
    assert (error.kind, error.code) == ("ContextLengthExceeded", "context_length_exceeded")
    assert "64" in error.message


def test_without_a_chat_template_completions_work(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(None)
    rig.client(submit(1, ChatPrompt(messages=[ChatMessage(role="user", content="hi")])))
    assert "--chat-template" in only_failure(rig).message
    rig.client(submit(1))
    assert len(rig.told(Enqueue)) == 1


def test_a_poisoned_request_fails_alone(rig: Rig, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.client(submit(1))
    rig.client(submit(2))
    first, second = rig.told(Enqueue)
    (token,) = vocabulary.encode("hello")
    tokens(
        rig,
        TokenDelta(request_id=first.request_id, index=5, ids=[token]),  # there is no such sample
        TokenDelta(request_id=second.request_id, index=0, ids=[token]),
    )
    (failed,) = rig.sent(Failed)
    assert (failed.request_id, failed.error.kind) == (1, "GenerationFailed")
    assert [c.request_id for c in rig.told(Cancel)] == [first.request_id]
    assert rig.deltas(2)[0].text == "hello"

    def broken(text: str, **_: Any) -> list[int]:
        raise RuntimeError("secret path /x/y")

    monkeypatch.setattr(vocabulary, "encode", broken)
    rig.client(submit(3))
    assert rig.sent(Failed)[-1].error.kind == "GenerationFailed"
    assert "secret" not in rig.sent(Failed)[-1].error.message


def test_a_rejected_request_is_answered_and_forgotten(rig: Rig) -> None:
    rig.client(submit(1))
    (enqueue,) = rig.told(Enqueue)
    error = InvalidRequest("no", param="x").info()
    rig.server.handle_scheduler(Rejected(request_id=enqueue.request_id, error=error))
    assert rig.sent(Failed) == [Failed(request_id=1, error=error)]
    assert rig.server.open_requests == 0 and not rig.told(Cancel)


def test_a_client_that_is_gone_loses_all_its_requests(rig: Rig, vocabulary: Vocabulary) -> None:
    for i in range(2):
        rig.client(submit(i), b"gone")
    rig.client(submit(0), b"here")
    numbers = [e.request_id for e in rig.told(Enqueue)]
    rig.gone.add(b"gone")
    (token,) = vocabulary.encode("hello")
    tokens(rig, *(TokenDelta(request_id=n, index=0, ids=[token]) for n in numbers))
    assert sorted(c.request_id for c in rig.told(Cancel)) == numbers[:2]
    assert rig.server.open_requests == 1
    assert rig.deltas(0, peer=b"here")[0].text == "hello"


def test_an_aborted_request_is_silent(rig: Rig, vocabulary: Vocabulary) -> None:
    rig.client(submit(1))
    rig.client(Abort(request_id=1))
    rig.client(Abort(request_id=1))
    rig.client(Abort(request_id=99))
    (enqueue,) = rig.told(Enqueue)
    assert [c.request_id for c in rig.told(Cancel)] == [enqueue.request_id]
    tokens(rig, TokenDelta(request_id=enqueue.request_id, index=0, ids=vocabulary.encode("hello")))
    assert not rig.to_clients


# --- questions ------------------------------------------------------------------------------------------------------


def test_tokenize_and_detokenize(rig: Rig, vocabulary: Vocabulary) -> None:
    rig.client(Tokenize(request_id=1, prompt=TextPrompt(text="hello 🇨 <|end|>")))
    (answer,) = rig.sent(Tokenized)
    assert answer.ids.tolist() == vocabulary.encode("hello 🇨 <|end|>")
    assert answer.text == "hello 🇨 <|end|>" and b"".join(answer.pieces) == answer.text.encode()
    rig.client(Detokenize(request_id=2, ids=np.asarray([2, *answer.ids], np.int32)))
    rig.client(Detokenize(request_id=3, ids=np.asarray([2, *answer.ids], np.int32), skip_special_tokens=True))
    assert [m.text for m in rig.sent(Detokenized)] == ["<|im_start|>hello 🇨 <|end|>", "hello 🇨 <|end|>"]
    rig.client(Tokenize(request_id=4, prompt=ChatPrompt(messages=[ChatMessage(role="user", content="hi")])))
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    chat = rig.sent(Tokenized)[-1]
    assert chat.text == text and b"".join(chat.pieces) == text.encode() and chat.ids.tolist()[0] == 2
    rig.client(Tokenize(request_id=5, prompt=TextPrompt(text="", add_special_tokens=False)))
    assert rig.sent(Tokenized)[-1].ids.tolist() == []
    rig.client(Detokenize(request_id=6, ids=np.asarray([100_000], np.int32)))
    assert rig.sent(Failed)[-1].error.param == "tokens"


def test_a_tokenized_text_does_not_show_the_tokenizers_own_space(
    make_rig: Callable[..., Rig], spaced: Vocabulary
) -> None:
    rig = make_rig(vocab=spaced)
    rig.client(Tokenize(request_id=1, prompt=TextPrompt(text="ab x", add_special_tokens=False)))
    (answer,) = rig.sent(Tokenized)
    assert answer.text == "ab x" and b"".join(answer.pieces) == b"ab x"


def tree_view(*nodes: TreeNode) -> TreeView:
    return TreeView(nodes=[*nodes], tokens=5, truncated=False, pins=[], pinned_tokens=0, pin_quota=0)


def test_queries(rig: Rig, vocabulary: Vocabulary) -> None:
    for request_id, what in enumerate(("stats", "tree", "flush"), start=1):
        rig.client(Query(request_id=request_id, what=what))  # type: ignore[arg-type]
    queries = {q.what: q.query_id for q in rig.told(SchedulerQuery)}
    assert len(set(queries.values())) == 3
    node = TreeNode(depth=1, tokens=5, hits=2, locks=0, age_s=1.5, head=vocabulary.encode("hello the"))
    rig.server.handle_scheduler(SchedulerAnswer(query_id=queries["flush"], freed_tokens=0))
    rig.server.handle_scheduler(SchedulerAnswer(query_id=queries["tree"], tree=tree_view(node)))
    rig.server.handle_scheduler(SchedulerAnswer(query_id=queries["stats"], stats=EngineStats(running=3)))
    rig.server.handle_scheduler(SchedulerAnswer(query_id=queries["stats"], stats=EngineStats(running=4)))
    assert rig.sent(StatsAnswer) == [StatsAnswer(request_id=1, stats=EngineStats(running=3))]
    (tree,) = rig.sent(TreeAnswer)
    assert tree.request_id == 2 and tree.view.nodes[0].text == "hello the" and tree.view.nodes[0].hits == 2
    assert rig.sent(FlushAnswer) == [FlushAnswer(request_id=3, freed_tokens=0)]


def test_a_query_that_fails_is_answered(rig: Rig, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.client(Query(request_id=1, what="tree"))
    node = TreeNode(depth=1, tokens=5, hits=2, locks=0, age_s=1.5, head=[])
    monkeypatch.setattr(vocabulary, "decode", None)
    rig.server.handle_scheduler(SchedulerAnswer(query_id=rig.told(SchedulerQuery)[0].query_id, tree=tree_view(node)))
    (failed,) = rig.sent(Failed)
    assert (failed.request_id, failed.error.kind) == (1, "GenerationFailed")


def test_a_scheduler_that_takes_nothing_is_an_overload(vocabulary: Vocabulary) -> None:
    sent: list[Any] = []
    chat = ChatTemplate(None, Shield(vocabulary))
    server = TokenizerServer(vocabulary, chat, lambda _, message: sent.append(message) is None, lambda _: False)
    server.handle_client(b"c", submit(1))
    server.handle_client(b"c", Query(request_id=2, what="stats"))
    assert [(m.request_id, m.error.kind) for m in sent] == [(1, "Overloaded"), (2, "Overloaded")]
    assert server.open_requests == 0


def test_hello_hears_the_state_then_and_later(rig: Rig) -> None:
    rig.client(Hello(), b"early")
    rig.server.handle_scheduler(Loading(stage="weights", fraction=0.5))
    rig.client(Hello(), b"middle")
    rig.server.handle_scheduler(Ready(info=INFO))
    rig.client(Hello(), b"late")
    assert [m.fraction for m in rig.sent(Loading, b"early")] == [0.0, 0.5]
    assert [m.fraction for m in rig.sent(Loading, b"middle")] == [0.5]
    for peer in (b"early", b"middle", b"late"):
        (ready,) = rig.sent(Ready, peer)
        assert ready.info.has_chat_template and ready.info.context_length == 64
    error = InvalidRequest("no").info()
    rig.server.handle_scheduler(StartupFailed(error=error))
    assert len(rig.sent(StartupFailed)) == 3
