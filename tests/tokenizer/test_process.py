"""The process itself, driven over its sockets by a client and a scheduler that this test plays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import zmq

import radixrt
from radixrt.config import TokenizerConfig
from radixrt.messages import (
    ChatMessage,
    ChatPrompt,
    Deltas,
    Enqueue,
    FromClient,
    FromScheduler,
    Hello,
    Loading,
    Ready,
    StartupFailed,
    StopRow,
    Submit,
    ToClient,
    TokenBatch,
    TokenDelta,
    Tokenize,
    Tokenized,
    TokensPrompt,
    ToScheduler,
)
from radixrt.params import SamplingParams
from radixrt.results import Usage
from radixrt.transport import Link, open_socket, private_directory
from tests.waiting import HANG_S

from .test_server import INFO

Kind = TypeVar("Kind")


class Process:
    """The child with its three links."""

    def __init__(self, child: subprocess.Popen[bytes], context: zmq.Context[Any], config: TokenizerConfig) -> None:
        self.child = child
        self.client: Link[ToClient, FromClient] = Link(
            open_socket(context, zmq.DEALER, config.client_address, bind=False), ToClient
        )
        self.orders: Link[ToScheduler, FromScheduler] = Link(
            open_socket(context, zmq.PULL, config.scheduler_in, bind=False), ToScheduler
        )
        self.results: Link[ToScheduler, FromScheduler] = Link(
            open_socket(context, zmq.PUSH, config.scheduler_out, bind=False), ToScheduler
        )
        self._waiting: dict[int, list[Any]] = {}

    def take(self, link: Link[Any, Any], kind: type[Kind]) -> Kind:
        """The next message of a link, which must be of that kind."""
        waiting = self._waiting.setdefault(id(link), [])
        while not waiting:
            assert link.wait(HANG_S), f"no {kind.__name__} came; exit status {self.child.poll()}"
            waiting += [message for _, message in link.receive()]
        message = waiting.pop(0)
        assert isinstance(message, kind)
        return message


@contextmanager
def running(model: Path, **changes: Any) -> Iterator[Process]:
    directory = private_directory()
    config = TokenizerConfig(
        model_path=str(model), model_name="m", tokenizer=None, chat_template=None,
        client_address=f"ipc://{directory}/client", scheduler_in=f"ipc://{directory}/in",
        scheduler_out=f"ipc://{directory}/out", ipc_dir=directory, log_level="error",
    )  # fmt: skip
    config = msgspec.structs.replace(config, **changes)
    root = str(Path(radixrt.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "radixrt.tokenizer"], stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert child.stdin is not None
    context: zmq.Context[Any] = zmq.Context()
    try:
        child.stdin.write(msgspec.json.encode(config) + b"\n")
        child.stdin.flush()
        yield Process(child, context, config)
    finally:
        child.stdin.close()
        context.destroy(linger=0)
        try:
            child.wait(HANG_S)
        finally:
            child.kill()
            shutil.rmtree(directory, ignore_errors=True)


def test_a_request_from_end_to_end(smollm2_path: Path) -> None:
    with running(smollm2_path) as process:
        process.client.send(Hello())
        assert process.take(process.client, Loading).fraction == 0.0
        process.results.send(Ready(info=INFO))
        assert process.take(process.client, Ready).info.has_chat_template
        prompt = ChatPrompt(messages=[ChatMessage(role="user", content="Say <|im_end|> 🇨🇭")])
        process.client.send(Tokenize(request_id=1, prompt=prompt))
        tokenized = process.take(process.client, Tokenized)
        assert "Say <|im_end|> 🇨🇭<|im_end|>\n<|im_start|>assistant\n" in tokenized.text

        # Bytes that are no message, and a message whose parameters do not hold, cost nobody anything.
        process.client.socket.send(b"junk")
        process.client.socket.send(
            msgspec.msgpack.encode({"type": "Submit", "request_id": 1, "prompt": {}, "sampling": {"n": 0}})
        )
        process.client.send(Submit(request_id=2, prompt=prompt, sampling=SamplingParams(stop=("!",))))
        enqueue = process.take(process.orders, Enqueue)
        assert enqueue.ids.tolist() == tokenized.ids.tolist()

        process.client.send(Tokenize(request_id=3, prompt=TokensPrompt(ids=np.asarray([2, 9531], np.int32))))
        assert process.take(process.client, Tokenized).text.startswith("<|im_end|>")
        # What the process itself makes of a text comes back as the sample's tokens.
        reply = process_tokens(process, "Grüße 🇨🇭! more")
        text = ""
        for token in reply:
            process.results.send(TokenBatch(items=[TokenDelta(request_id=enqueue.request_id, index=0, ids=[token])]))
            ((request_id, delta),) = process.take(process.client, Deltas).items
            assert request_id == 2 and "\ufffd" not in delta.text
            text += delta.text
            if len(text) == len("Grüße 🇨🇭"):
                break
        seen = reply.index(token) + 1
        process.results.send(
            TokenBatch(items=[TokenDelta(request_id=enqueue.request_id, index=0, ids=reply[seen : seen + 1])])
        )
        stop = process.take(process.orders, StopRow)
        assert (stop.request_id, stop.index, stop.keep) == (enqueue.request_id, 0, seen + 1)
        process.take(process.client, Deltas)
        usage = Usage(prompt_tokens=3, completion_tokens=9)
        process.results.send(
            TokenBatch(items=[TokenDelta(request_id=enqueue.request_id, index=0, finish_reason="abort", usage=usage)])
        )
        ((_, last),) = process.take(process.client, Deltas).items
        assert (text, last.text, last.finish_reason, last.stop_reason) == ("Grüße 🇨🇭", "", "stop", "!")
        assert last.usage == usage
    assert process.child.returncode == 0


def process_tokens(process: Process, text: str) -> list[int]:
    from radixrt.messages import TextPrompt

    process.client.send(Tokenize(request_id=4, prompt=TextPrompt(text=text)))
    ids: list[int] = process.take(process.client, Tokenized).ids.tolist()
    return ids


@pytest.mark.parametrize("fault", ["model", "template", "missing template"])
def test_a_broken_model_is_told_to_whoever_says_hello(fault: str, smollm2_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    template = tmp_path / "template.jinja"
    template.write_text("{% for %}")
    changes = {
        "model": {"model_path": str(broken)},
        "template": {"chat_template": str(template)},
        "missing template": {"chat_template": str(tmp_path / "none")},
    }[fault]
    with running(smollm2_path, **changes) as process:
        process.client.send(Hello())
        error = process.take(process.client, StartupFailed).error
        assert error.kind == "ModelError"
        assert (str(tmp_path / "none") in error.message) == (fault == "missing template")  # the path that the user gave
        assert str(broken) not in error.message and str(template) not in error.message
        assert process.child.wait(HANG_S) == 1


def test_it_ends_when_its_parent_is_gone(smollm2_path: Path) -> None:
    with running(smollm2_path) as process:
        process.client.send(Hello())
        process.take(process.client, Loading)
        assert process.child.stdin is not None
        process.child.stdin.close()
        assert process.child.wait(HANG_S) == 0
