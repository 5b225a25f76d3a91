"""Embeddings end to end: vectors against transformers, an encoder's manners, a decoder's cache, and both over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest

from radixrt import Engine, SamplingParams
from radixrt.errors import Aborted, ContextLengthExceeded, InvalidRequest, RadixrtError
from tests.server.conftest import serving
from tests.tiny_bert import POSITIONS, bert_tokenizer, tiny_bert, true_vectors, write_gguf, write_tiny_bert

TEXTS = [
    "Hello world", "the cat sat on the mat", "x", "Привет, 你好 €!", "unbelievable walking 2026", "a " * 40,
    "naïve Café", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_bert()


@pytest.fixture(scope="module")
def encoder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny-bert", model)
    with Engine(str(path), threads=1) as engine:
        yield engine


def tokens(text: str) -> list[int]:
    ids: list[int] = bert_tokenizer()(text).input_ids
    return ids


def close(ours: Any, truth: np.ndarray) -> None:
    assert 1 - np.min(np.sum(np.stack(ours).astype(np.float64) * truth, axis=1)) < 1e-5


def test_vectors_are_those_of_transformers(encoder: Engine, model: Any) -> None:
    made = encoder.embed(TEXTS)
    ids = [tokens(text) for text in TEXTS]
    close(made, true_vectors(model, ids))
    assert all(vector.dtype == np.float32 and vector.shape == (32,) for vector in made)
    np.testing.assert_allclose(np.linalg.norm(np.stack(made), axis=1), 1, atol=1e-6)
    assert made.usage.prompt_tokens == sum(map(len, ids)) and made.usage.completion_tokens == 0
    facts = encoder.info.embedding
    assert facts is not None and (facts.size, facts.pooling, facts.sizes) == (32, "mean", None)
    assert not encoder.info.generates and encoder.info.context_length == POSITIONS and encoder.info.dtype == "float32"


def test_a_long_list_has_the_vectors_of_each_text_alone(encoder: Engine) -> None:
    texts = [f"the cat walks {'x' * (n % 17)} {n}" for n in range(100)]
    together = np.stack(encoder.embed(texts))
    for index in (0, 31, 32, 99):
        np.testing.assert_allclose(together[index], encoder.embed(texts[index])[0], atol=1e-6)


def test_token_ids_are_used_as_they_are(encoder: Engine, model: Any) -> None:
    ids = encoder.tokenize("hello, world").ids
    assert list(ids) == tokens("hello, world")
    np.testing.assert_array_equal(encoder.embed(ids)[0], encoder.embed("hello, world")[0])
    close(encoder.embed([ids[1:-1], list(ids)]), true_vectors(model, [list(ids[1:-1]), list(ids)]))


def test_pooled_states_as_they_are(encoder: Engine) -> None:
    raw, unit = encoder.embed("hello", normalize=False)[0], encoder.embed("hello")[0]
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    np.testing.assert_allclose(raw / np.linalg.norm(raw), unit, atol=1e-6)


def test_long_texts_are_refused_or_cut(encoder: Engine, model: Any) -> None:
    long = "cat " * 100
    with pytest.raises(ContextLengthExceeded, match="input 33 has 102 tokens, but the model's context holds 64"):
        encoder.embed([*["x"] * 33, long])
    cut = tokens(long)[: POSITIONS - 1] + tokens("")[-1:]
    made = encoder.embed(["x", long], truncate=True)
    close(made, true_vectors(model, [tokens("x"), cut]))
    assert made.usage.prompt_tokens == 3 + POSITIONS


@pytest.mark.parametrize(
    ("given", "words"),
    [([], "empty"), ([[]], "at least one"), (7, "input must be"), ([7.5], "input must be"),
     (["a", 7], "input must be"), (["x"] * 2049, "at most 2048"), ([10**6], "not in the vocabulary"),
     (b"x", "input must be"), ([True], "input must")],
)  # fmt: skip
def test_what_is_no_text_is_refused(encoder: Engine, given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        encoder.embed(given)
    assert caught.value.param == "input"


def test_vectors_are_cut_only_where_the_model_says_so(encoder: Engine) -> None:
    with pytest.raises(InvalidRequest, match="lose their meaning"):
        encoder.embed("x", dimensions=8)
    assert encoder.embed("x", dimensions=32)[0].shape == (32,)


def test_the_async_twin_and_its_timeout(encoder: Engine) -> None:
    async def both() -> None:
        one, two = await asyncio.gather(encoder.aembed(TEXTS[:2]), encoder.aembed(TEXTS[2:4]))
        np.testing.assert_allclose(np.stack([*one, *two]), np.stack(encoder.embed(TEXTS[:4])), atol=1e-6)
        with pytest.raises(Aborted):
            await encoder.aembed(["x y z"] * 2000, timeout=0.0)
        assert len(await encoder.aembed("x")) == 1

    asyncio.run(both())
    with pytest.raises(Aborted):
        encoder.embed(["x"] * 2000, timeout=0.0)
    assert len(encoder.embed("x")) == 1  # what was given up is out of the way


def test_an_encoder_generates_nothing(encoder: Engine) -> None:
    calls = [
        lambda: encoder.generate("x", SamplingParams(max_tokens=1)),
        lambda: encoder.generate([{"role": "user", "content": "x"}]),
        lambda: encoder.select("x", ["a", "b"]),
        lambda: encoder.score("x", [[1]]),
        lambda: encoder.pin("x", 5),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match="makes embeddings and generates no text") as caught:
            call()
        assert caught.value.code == "model_cannot_generate"
    assert encoder.flush() == 0 and encoder.tree() == [] and encoder.save() == 0
    with pytest.raises(RadixrtError, match="pin"):
        encoder.unpin("none")
    stats = encoder.stats()
    assert stats.embedded_texts and stats.finished["embed"] and (stats.running, stats.waiting) == (0, 0)


def test_over_http(encoder: Engine, model: Any) -> None:
    truth = true_vectors(model, [tokens(text) for text in TEXTS[:3]])
    with serving(encoder, None) as server:  # type: ignore[arg-type]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            plain = client.embeddings.create(model="tiny-bert", input=TEXTS[:3], encoding_format="float")
            made = client.embeddings.create(model="tiny-bert", input=TEXTS[:3])  # in base64, which the package decodes
            for answer in (plain, made):
                close([np.array(item.embedding) for item in answer.data], truth)
            assert made.usage.prompt_tokens == sum(len(tokens(text)) for text in TEXTS[:3])
            with pytest.raises(openai.BadRequestError, match="context holds 64") as caught:
                client.embeddings.create(model="tiny-bert", input="cat " * 100)
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(openai.BadRequestError, match="generates no text"):
                client.completions.create(model="tiny-bert", prompt="x")
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError, match="generates no text"):
                    client.chat.completions.create(
                        model="tiny-bert", messages=[{"role": "user", "content": "x"}], stream=stream
                    )
        embedded = ollama.Client(host=server.url).embed(model="tiny-bert", input=[*TEXTS[:3], "cat " * 100])
        close([np.array(vector) for vector in embedded.embeddings[:3]], truth)
        assert ollama.Client(host=server.url).show("tiny-bert").capabilities == ["embedding"]
        metrics = server.http.get("/metrics").text
        assert 'radixrt_requests_finished_total{reason="embed"}' in metrics
        assert "radixrt_embedded_texts_total" in metrics and "radixrt_kv_tokens 0.0" in metrics


def test_a_gguf_file_with_another_pooling(model: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "bert.gguf", model, pooling=1)
    with Engine(str(path), threads=1, pooling="cls", context_length=8) as engine:
        close(engine.embed(["hello world"]), true_vectors(model, [tokens("hello world")], "cls"))
        assert engine.info.embedding is not None and engine.info.embedding.pooling == "cls"
        with pytest.raises(ContextLengthExceeded, match="context holds 8"):
            engine.embed("a b c d e f g")


def test_a_decoders_last_token(small_engine: Engine, tiny_path: Path) -> None:
    import torch
    from transformers import LlamaModel

    truth = LlamaModel.from_pretrained(tiny_path, dtype=torch.float32)
    texts = ["Once upon a time there was a river", "Once upon a time", "ß 你好", "Once upon a time"]
    view = small_engine.for_tenant("embeddings")
    ids = [list(view.tokenize(text).ids) for text in texts]
    made = view.embed(texts)
    close(made, true_vectors(truth, ids, "last"))
    again = view.embed(texts)
    close(again, true_vectors(truth, ids, "last"))
    assert again.usage.cached_tokens == sum(len(text) - 1 for text in ids)
    assert view.embed(ids[0])[0].shape == (64,)
    long = [1] * 700
    close(view.embed([long]), true_vectors(truth, [long], "last"))  # longer than a step
    with pytest.raises(ContextLengthExceeded, match="input 1 has 2049"):
        view.embed(["x", [5] * 2049])


def test_the_real_minilm(long: bool) -> None:
    """The model that has a short name: fetched, hash-checked, and its vectors those of transformers."""
    if not long:
        pytest.skip("fetches 84 MB; with --long")
    from transformers import AutoModel, AutoTokenizer

    from radixrt.checkpoint import resolve

    path = resolve("all-minilm-l6-v2")
    tokenizer, truth = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    texts = [
        "A river in Spain.",
        "The Ebro flows into the Mediterranean.",
        "Tax forms",
        "naïve Café 你好 🦀",
        "word " * 200,
    ]
    with Engine("all-minilm-l6-v2") as engine:
        made = engine.embed(texts)
        close(made, true_vectors(truth, [tokenizer(text).input_ids for text in texts]))
        assert made[0] @ made[1] > made[0] @ made[2] + 0.2
        assert engine.info.context_length == 256
