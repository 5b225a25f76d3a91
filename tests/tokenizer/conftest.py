"""A small byte-level tokenizer, made here, and the server around it without sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.messages import Deltas, FromClient, ToClient, ToScheduler
from radixrt.results import Delta
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.server import TokenizerServer
from radixrt.tokenizer.shield import Shield

SPECIALS = ["<|end|>", "<|bos|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ["the", "Ġthe", "hello", "Ġworld", "ab", "abc", "bc", "\u010a\u010a", "Ġa", "cd"]


def byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def tokenizer_json() -> str:
    """256 byte tokens, a few longer ones with the merges that make them, and four special tokens."""
    letters = byte_alphabet()
    vocab = {token: i for i, token in enumerate([*SPECIALS, *letters])}
    merges = []
    for word in WORDS:
        for i in range(2, len(word) + 1):
            if word[:i] not in vocab:
                vocab[word[:i]] = len(vocab)
                merges.append([word[: i - 1], word[i - 1]])
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False}
                for i, text in enumerate(SPECIALS)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": False},
        }
    )  # fmt: skip


def spaced_json(scheme: str) -> str:
    """A sentencepiece-like tokenizer: a space in front of the text ("first") or of each piece of it ("always")."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *"▁abcxyz\n.", "▁a", "▁ab", "▁x"]
    merges = [["▁", "a"], ["▁a", "b"], ["▁", "x"]]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False}
                for i, text in enumerate(pieces[:3])
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges,
            },
        }
    )  # fmt: skip


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer_json(), bos_id=1, eos_ids=(0, 3), adds_bos=False)


@pytest.fixture(scope="session", params=["first", "always"])
def spaced(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(spaced_json(request.param), bos_id=1, eos_ids=(2,), adds_bos=True)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Any) -> Any:
    from radixrt.checkpoint import open_checkpoint

    return open_checkpoint(smollm2_path)


Kind = TypeVar("Kind")


@dataclass
class Rig:
    """A server whose outgoing messages are kept in lists; `gone` holds clients that cannot be reached."""

    server: TokenizerServer
    to_clients: list[tuple[bytes, ToClient]]
    to_scheduler: list[ToScheduler]
    gone: set[bytes]

    def client(self, message: FromClient, peer: bytes = b"c") -> None:
        self.server.handle_client(peer, message)

    def sent(self, kind: type[Kind], peer: bytes | None = None) -> list[Kind]:
        return [m for p, m in self.to_clients if isinstance(m, kind) and (peer is None or p == peer)]

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [m for m in self.to_scheduler if isinstance(m, kind)]

    def deltas(self, request_id: int, index: int | None = None, peer: bytes = b"c") -> list[Delta]:
        """All deltas of a request so far."""
        return [
            delta
            for batch in self.sent(Deltas, peer)
            for number, delta in batch.items
            if number == request_id and (index is None or delta.index == index)
        ]


@pytest.fixture
def make_rig(vocabulary: Vocabulary) -> Callable[..., Rig]:
    def make(template: str | None = CHATML, vocab: Vocabulary = vocabulary) -> Rig:
        to_clients: list[tuple[bytes, ToClient]] = []
        to_scheduler: list[ToScheduler] = []
        gone: set[bytes] = set()

        def send_client(peer: bytes, message: ToClient) -> bool:
            if peer in gone:
                return False
            to_clients.append((peer, message))
            return True

        def send_scheduler(message: ToScheduler) -> bool:
            to_scheduler.append(message)
            return True

        chat = ChatTemplate(template, Shield(vocab), bos_token=vocab.bos_token, eos_token=vocab.eos_token)
        server = TokenizerServer(vocab, chat, send_client, send_scheduler, model_name="m")
        return Rig(server, to_clients, to_scheduler, gone)

    return make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()
