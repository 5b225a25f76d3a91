"""`radixrt chat`: turns, commands, interruption, pipes."""

from __future__ import annotations

import io

import pytest
from fake_engine import FakeEngine

from radixrt.cli import main
from radixrt.cli.conversation import Conversation, answer, obey, printable
from radixrt.errors import EngineDead, InvalidRequest
from radixrt.params import SamplingParams


def turns(messages: list) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def chat(monkeypatch: pytest.MonkeyPatch, text: str, *flags: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(SystemExit) as caught:
        main(["chat", "fake", *flags])
    return int(caught.value.code or 0)


def test_a_pipe_asks_line_by_line_over_a_growing_history(
    monkeypatch: pytest.MonkeyPatch, fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, "one\n\ntwo\n", "--system", "Be brief.") == 0
    (engine,) = fake_engine
    assert turns(engine.asked[0]) == [("system", "Be brief."), ("user", "one")]
    assert turns(engine.asked[1]) == [
        ("system", "Be brief."), ("user", "one"), ("assistant", "You sent 2 messages."), ("user", "two"),
    ]  # fmt: skip
    out, err = capsys.readouterr()
    assert out == "You sent 2 messages.\nYou sent 4 messages.\n"
    assert "20 prompt tokens, 7 of them cached; 3 generated" in err


def test_flags_reach_engine_and_sampling(monkeypatch: pytest.MonkeyPatch, fake_engine: list[FakeEngine]) -> None:
    flags = (  # noqa: SIM905 (a command line reads best as one)
        "--served-model-name n --tokenizer t --chat-template c --dtype bfloat16 --weights int8 --kv-dtype int8 "
        "--threads 3 "
        "--max-model-len 99 --kv-tokens 1000 --max-num-seqs 4 --max-num-batched-tokens 64 --max-waiting 5 "
        "--policy fcfs --draft-sources tree --draft-model d --max-draft-rows 9 "
        "--cache-dir d --cache-dir-bytes 5000000 --cache-host-bytes 7 --share-from 512 --device cpu --attention torch "
        "--load-format dummy --pooling mean --tp 2 --grammar-backend outlines "
        "--namespace-weight a=b=2 --lookahead 0 --max-drafts 3 --check --log-level info "
        "--eviction cost --pin-quota 5 --low-watermark 0.1 --high-watermark 0.2 "
        "--kv-events inproc://a --kv-events-replay inproc://b --log-format text "
        "--start-timeout-s 7 --seed 1 --max-tokens 9 --temperature 0 --top-p 0.5"
    ).split()
    assert chat(monkeypatch, "hi\n", *flags) == 0
    (engine,) = fake_engine
    assert engine.model == "fake"
    assert engine.options == {
        "served_model_name": "n", "tokenizer": "t", "chat_template": "c", "dtype": "bfloat16",
        "weights": "int8", "kv_dtype": "int8", "threads": 3,
        "context_length": 99, "kv_tokens": 1000, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_waiting": 5,
        "share_from": 512, "device": "cpu", "attention": "torch", "load_format": "dummy", "tp": 2,
        "pooling": "mean",
        "grammar_backend": "outlines",
        "policy": "fcfs", "prefix_cache": True,
        "cache_dir": "d", "cache_dir_bytes": 5_000_000, "cache_host_bytes": 7,
        "max_wait_s": 10.0, "fair": True, "namespace_weights": {"a=b": 2.0},
        "lookahead": 0, "max_drafts": 3, "check": True,
        "draft_sources": "tree", "draft_model": "d", "max_draft_rows": 9,
        "log_level": "info", "log_format": "text", "start_timeout_s": 7.0,
        "eviction": "cost", "pin_quota": 5, "low_watermark": 0.1,
        "high_watermark": 0.2, "check_every_s": 1.0, "kv_events": "inproc://a", "kv_events_replay": "inproc://b",
    }  # fmt: skip
    assert engine.sampling == SamplingParams(temperature=0, top_p=0.5, max_tokens=9, seed=1)
    # What would say nothing beside one of those (test_cli_errors.py).
    assert (
        chat(monkeypatch, "hi\n", "--no-prefix-cache", "--max-wait-s", "2.5", "--no-fair", "--check-every-s", "2") == 0
    )
    options = fake_engine[1].options
    assert (options["prefix_cache"], options["max_wait_s"], options["fair"]) == (False, 2.5, False)
    assert options["check_every_s"] == 2.0


def test_commands(
    monkeypatch: pytest.MonkeyPatch, fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    script = "one\n/reset\ntwo\n/system Speak French.\nthree\n/system\n/nonesuch\n/help\n/quit\nnever asked\n"
    assert chat(monkeypatch, script) == 0
    (engine,) = fake_engine
    assert [turns(asked) for asked in engine.asked] == [
        [("user", "one")],
        [("user", "two")],
        [("system", "Speak French."), ("user", "three")],
    ]
    err = capsys.readouterr().err
    assert "Speak French." in err
    assert "unknown command /nonesuch" in err
    assert "/reset" in err


def test_an_interrupt_stops_the_answer_and_keeps_what_was_said(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(engine, SamplingParams())  # type: ignore[arg-type]
    engine.interrupt_after = 2
    answer(conversation, "one")
    assert engine.closed_streams == 1
    assert turns(conversation.messages) == [("user", "one"), ("assistant", "You sent ")]
    out, err = capsys.readouterr()
    assert out == "You sent \n"
    assert "stopped" in err


def test_leaving_an_answer_closes_the_backends_stream(engine: FakeEngine) -> None:
    conversation = Conversation(engine, SamplingParams())  # type: ignore[arg-type]
    stream = conversation.ask("one")
    next(stream)
    assert engine.closed_streams == 0
    stream.close()
    assert engine.closed_streams == 1


def test_a_refused_question_is_not_kept(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(engine, SamplingParams())  # type: ignore[arg-type]
    engine.failure = InvalidRequest("too long; use /reset")
    answer(conversation, "one")
    assert conversation.messages == []
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: too long; use /reset\n")


def test_a_dead_engine_ends_the_program(engine: FakeEngine) -> None:
    conversation = Conversation(engine, SamplingParams())  # type: ignore[arg-type]
    engine.failure = EngineDead("gone")
    with pytest.raises(EngineDead):
        answer(conversation, "one")


def test_system_begins_anew(engine: FakeEngine) -> None:
    conversation = Conversation(engine, SamplingParams(), "A")  # type: ignore[arg-type]
    answer(conversation, "one")
    obey(conversation, "/system B")
    assert turns(conversation.messages) == [("system", "B")]


def test_what_a_model_writes_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\n\tc\x9b1md\u00e9") == "a[2Jb\n\tc1md\u00e9"
