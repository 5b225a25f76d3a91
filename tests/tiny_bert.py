"""A tiny random BERT, made by transformers, the independent truth: on disk in each form that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LETTERS = "abcdefghijklmnopqrstuvwxyzäß0123456789"
WORDS = [
    *SPECIAL, "[unused0]", *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *".,!?'-()[]{}#@$%&*+=/\\:;<>|~^_`\"",
    "你", "好", "世", "界", "€", "the", "cat", "sat", "on", "mat", "hello", "world", "river", "##ing", "##ed", "##es",
    "walk", "un", "##believ", "##able", "naive", "cafe", "2026", "##26", "и", "##и", "привет", "中", "▁",
]  # fmt: skip
POSITIONS = 64


def tiny_bert(seed: int = 0, **changes: Any) -> Any:
    """A transformers BertModel, float32, whose vocabulary is WORDS."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": POSITIONS, "initializer_range": 0.3,
    }  # fmt: skip
    return BertModel(BertConfig(**(sizes | changes)), add_pooling_layer=False).eval()


def bert_tokenizer(words: list[str] | None = None, **options: Any) -> Any:
    """transformers' own tokenizer over the words."""
    from transformers import BertTokenizer

    vocabulary = WORDS if words is None else words
    return BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)}, **options)


def write_tiny_bert(directory: Path, model: Any, *, pooling: str | None = "mean", tokens: int | None = None) -> Path:
    """A directory as the sentence-transformers library writes it (`pooling` None: without its files)."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    bert_tokenizer().save_pretrained(directory)
    if pooling is not None:
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
        (directory / "modules.json").write_text(json.dumps(modules))
        names = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken", "max": "max_tokens"}
        modes = {f"pooling_mode_{name}": kind == pooling for kind, name in names.items()}
        (directory / "1_Pooling").mkdir(exist_ok=True)
        (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    if tokens is not None:
        (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens}))
    return directory


_GGUF_LAYER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_GGUF = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip


def write_gguf(path: Path, model: Any, *, pooling: int | None = 1, words: list[str] | None = None, **keys: Any) -> Path:
    """The model as llama.cpp's converter writes it: pieces with a phantom space, its names, its keys."""
    import gguf

    words = WORDS if words is None else words
    config = model.config
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    special = set(SPECIAL)
    pieces = [w if w in special else w[2:] if w.startswith("##") and len(w) > 2 else f"▁{w}" for w in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.CONTROL if w in special else gguf.TokenType.NORMAL for w in words])
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_mask_token_id(words.index("[MASK]"))
    for key, value in keys.items():
        writer.add_string(key, value)
    for name, tensor in model.state_dict().items():
        if name.startswith("pooler") or name.endswith("position_ids"):
            continue
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("encoder.layer."):
            index, part = stem.removeprefix("encoder.layer.").split(".", 1)
            writer.add_tensor(f"blk.{index}.{_GGUF_LAYER[part]}.{kind}", tensor.numpy())
        else:
            writer.add_tensor(f"{_GGUF[stem]}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def true_vectors(model: Any, ids: list[list[int]], pooling: str = "mean") -> Any:
    """float32[n, hidden], unit length: each text alone through transformers, pooled in numpy."""
    import numpy as np
    import torch

    out = []
    with torch.inference_mode():
        for text in ids:
            hidden = model(input_ids=torch.tensor([text])).last_hidden_state[0].double().numpy()
            one = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
            out.append(one / np.linalg.norm(one))
    return np.stack(out).astype(np.float32)
