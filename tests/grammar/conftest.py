"""A small tokenizer of our own (bytes, some hundred merges, control tokens): its whole vocabulary can be tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from radixrt.checkpoint import Vocabulary
from radixrt.grammar import Grammar, GrammarError, Limits
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

CONTROL = ["<|end|>", "<|turn|>", "<|tool|>", "<|pad|>"]
CORPUS = [
    '{"name":"Ann","age":31,"tags":["red","blue"],"ok":true,"note":null}',
    'yes please, no thanks; the quick brown fox -2 7 42 Mango, Mango "quoted" \\n text {"a":{"b":[1,2,3]}}',
    "Orléans København 東京 😀 naïve café 2024-05-06 12:30 abc xyz aaa bbb",
]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Size 500 or so; ids 0 and 1 are end tokens, 2 and 3 other control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True) for text in CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return Vocabulary(tokenizer.to_str(), bos_id=None, eos_ids=[0, 1], adds_bos=False)


@pytest.fixture(scope="session")
def vocab_size(vocabulary: Vocabulary) -> int:
    """Width of the logits: above the tokenizer's, and no multiple of 32."""
    return vocabulary.size + 45


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary, vocab_size: int) -> Backends:
    return Backends(
        vocabulary.tokenizer_json(),
        size=vocabulary.size,
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocab_size,
        limits=Limits(),
    )


@pytest.fixture(scope="session")
def accepts(vocabulary: Vocabulary) -> Callable[[Grammar, str], bool]:
    """Whether a grammar takes a text whole, token by token."""

    def check(grammar: Grammar, text: str) -> bool:
        matcher = grammar.matcher()
        try:
            for token in vocabulary.encode(text):
                matcher.accept(token)
        except GrammarError:
            return False
        return matcher.may_stop

    return check


def schema(text: str, **options: bool) -> Constraint:
    return Constraint(kind="json_schema", value=text, **options)
