"""Process 1: binds its sockets at once, loads the tokenizer, then serves until its parent is gone."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import zmq

from radixrt import process
from radixrt.checkpoint import open_checkpoint
from radixrt.config import TokenizerConfig
from radixrt.errors import ErrorInfo, ModelError, RadixrtError, StartupError
from radixrt.garbage import spare_what_stays
from radixrt.messages import FromClient, FromScheduler, Hello, StartupFailed, ToClient, ToScheduler
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.server import SendClient, SendScheduler, TokenizerServer
from radixrt.tokenizer.shield import Shield
from radixrt.transport import Link, open_socket

log = logging.getLogger(__name__)

HELLO_WAIT_S = 15.0
"""How long a process that cannot start waits for somebody to tell it to."""


def main() -> int:
    config = process.start("tokenizer", TokenizerConfig)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    clients: Link[FromClient, ToClient] = Link(
        open_socket(context, zmq.ROUTER, config.client_address, bind=True), FromClient
    )
    outbound: Link[FromScheduler, ToScheduler] = Link(
        open_socket(context, zmq.PUSH, config.scheduler_in, bind=True), FromScheduler
    )
    inbound: Link[FromScheduler, ToScheduler] = Link(
        open_socket(context, zmq.PULL, config.scheduler_out, bind=True), FromScheduler
    )
    try:
        server = load(config, lambda peer, message: clients.send(message, peer), outbound.send)
    except RadixrtError as error:
        log.error("cannot start: %s", error.message)
        _report(clients, error.info())
    except Exception:
        log.exception("cannot start")
        _report(clients, StartupError("the tokenizer process failed at start; its log says why").info())
    else:
        spare_what_stays()
        serve(server, clients, inbound)
    for link in (clients, outbound, inbound):
        link.close()
    context.term()
    return 1


def load(config: TokenizerConfig, send_client: SendClient, send_scheduler: SendScheduler) -> TokenizerServer:
    """The server for a model. Raises ModelError when the model's files, or a template that was given, are broken."""
    checkpoint = open_checkpoint(Path(config.model_path))
    vocabulary = checkpoint.vocabulary(config.tokenizer)
    source = checkpoint.chat_template
    if config.chat_template is not None:
        try:
            source = Path(config.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise ModelError(f"the chat template file {config.chat_template} cannot be read: {why}") from error
    chat = ChatTemplate(source, Shield(vocabulary), bos_token=vocabulary.bos_token, eos_token=vocabulary.eos_token)
    if config.chat_template is not None and chat.fault is not None:
        raise ModelError(chat.fault)
    return TokenizerServer(
        vocabulary,
        chat,
        send_client,
        send_scheduler,
        model_name=config.model_name,
        embeds_only=not checkpoint.generates,
    )


def serve(
    server: TokenizerServer, clients: Link[FromClient, ToClient], inbound: Link[FromScheduler, ToScheduler]
) -> None:
    """Handle messages for ever. New tokens go first: a long prompt delays them by itself alone."""
    poller = zmq.Poller()
    poller.register(clients.socket, zmq.POLLIN)
    poller.register(inbound.socket, zmq.POLLIN)
    while True:
        poller.poll()
        try:
            for _, message in inbound.receive():
                server.handle_scheduler(message)
            for peer, request in clients.receive():
                server.handle_client(peer, request)
                break
        except Exception:  # the server answers for its requests' faults; this one is nobody's
            log.exception("a message failed")


def _report(clients: Link[FromClient, ToClient], error: ErrorInfo) -> None:
    """Answer those who say Hello with StartupFailed; the first to come is waited for."""
    deadline = time.monotonic() + HELLO_WAIT_S
    told = False
    while not told and (left := deadline - time.monotonic()) > 0:
        if clients.wait(left):
            for peer, message in clients.receive():
                if isinstance(message, Hello):
                    told = clients.send(StartupFailed(error=error), peer) or told
