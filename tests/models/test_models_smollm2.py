"""The real model, SmolLM2-135M in Q4_1, against transformers with its own reading of the GGUF file, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_steps import Pool, Row, max_difference
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from radixrt.checkpoint import open_checkpoint
from radixrt.kernels.cpu import native
from radixrt.models import load_model
from radixrt.models.blocks import Decoder

NEW = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "age":',
    "The three states of matter are",
    "Q: Why is the sky blue?\nA:",
]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Decoder:
    loaded = load_model(open_checkpoint(smollm2_path), dtype=torch.float32, weights="float32")
    assert isinstance(loaded, Decoder)
    return loaded


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    vocabulary = open_checkpoint(smollm2_path).vocabulary()
    return [vocabulary.encode(text, allow_special=True) for text in PROMPTS]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> LlamaForCausalLM:
    """Names, order of rows and dequantization are transformers' and the gguf library's own."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(smollm2_path), return_tensors=True, model_to_load=theirs)["tensors"]
    missing = theirs.load_state_dict(tensors, strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys
    return theirs


@pytest.fixture(scope="module")
def greedy(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    """Our greedy continuation of each prompt: all prompts prefilled in one step, then decoded as one batch."""
    pool = Pool(model, 2000)
    rows = [Row() for _ in prompts]
    work = list(zip(rows, prompts, strict=True))
    out: list[list[int]] = [[] for _ in prompts]
    for _ in range(NEW):
        logits = pool.step(work)
        for tokens, row_logits in zip(out, logits, strict=True):
            tokens.append(int(row_logits[-1].argmax()))
        work = [(row, [tokens[-1]]) for row, tokens in zip(rows, out, strict=True)]
    return out


def test_logits_and_greedy_text(
    model: Decoder, reference: LlamaForCausalLM, prompts: list[list[int]], greedy: list[list[int]]
) -> None:
    """Whole sequences through both: logits agree, and transformers' choice at each step is the token we decoded."""
    pool = Pool(model, 2000, seed=1)
    for prompt, text in zip(prompts, greedy, strict=True):
        with torch.no_grad():
            theirs = reference(torch.tensor([prompt + text]), use_cache=False).logits[0]
        assert max_difference(pool.logits(prompt + text), theirs) < 1e-3
        # Step by step greedy search gives the same text, by induction over its length.
        assert theirs[len(prompt) - 1 : -1].argmax(-1).tolist() == text


def test_it_speaks_english(greedy: list[list[int]], smollm2_path: Path) -> None:
    assert " Paris" in open_checkpoint(smollm2_path).vocabulary().decode(greedy[0])


def test_chunked_prefill_equals_whole(model: Decoder, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    tokens = (prompts[1] + greedy[1] + prompts[6] + greedy[6])[:140]
    pool = Pool(model, 500)
    whole = pool.logits(tokens)
    row = Row()
    chunks = [pool.step([(row, tokens[a:b])])[0] for a, b in ((0, 50), (50, 51), (51, 120), (120, 140))]
    assert max_difference(torch.cat(chunks), whole) < 1e-3


def test_rows_over_a_shared_span_equal_rows_alone(model: Decoder, prompts: list[list[int]]) -> None:
    prefix = (prompts[1] + prompts[6]) * 8
    pool = Pool(model, 2000)
    first = Row()
    pool.step([(first, prefix)])
    rows = [Row(list(first.slots)) for _ in prompts]
    together = pool.step(list(zip(rows, prompts, strict=True)), shared=len(prefix))
    decoded = pool.step([(row, [11]) for row in rows], shared=len(prefix))
    for index in (0, 4, 9):
        alone = pool.logits([*prefix, *prompts[index], 11])[len(prefix) :]
        assert max_difference(torch.cat([together[index], decoded[index]]), alone) < 1e-3


def test_the_head_is_the_embedding(model: Decoder) -> None:
    assert model.head.data_ptr() == model.embedding.data_ptr()


@pytest.mark.skipif(not native.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_weights_under_each_type_of_activations_and_pool(
    dtype: torch.dtype, smollm2_path: Path, reference: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    """The rounding of rows to 8 bits remains, which is several times what a pool of bytes adds."""
    packed = load_model(open_checkpoint(smollm2_path), dtype=dtype)
    assert packed.narrow is not None and packed.narrow.description == "4-bit weights as the file, 8-bit head"
    tokens = [token for prompt in prompts for token in prompt]
    with torch.inference_mode():
        theirs = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    for kv in (torch.float32, torch.bfloat16, torch.float16, torch.int8):
        pool, row = Pool(packed, 200, kv=kv), Row()
        parts = [pool.step([(row, tokens[:50])])[0], pool.step([(row, tokens[50:])])[0]]
        ours = torch.cat(parts).log_softmax(-1)
        divergence = (theirs.exp() * (theirs - ours)).sum(-1)
        assert float(divergence.mean()) < 0.04
        assert float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()) > 0.9
