"""A tiny random llama on disk, with SmolLM2's tokenizer: whole-engine tests that need a model, not its words."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_llama(directory: Path, tokenizer_json: str, *, context_length: int = 2048, seed: int = 0) -> Path:
    """config.json, model.safetensors, tokenizer files; 2 layers, 64 wide. Returns the directory."""
    import torch
    from safetensors.torch import save_file

    hidden, inner, layers, heads, kv_heads, head_dim, vocab = 64, 128, 2, 4, 2, 16, 49152
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.05

    weights = {"model.embed_tokens.weight": random(vocab, hidden) * 10, "model.norm.weight": torch.ones(hidden)}
    for i in range(layers):
        prefix = f"model.layers.{i}."
        weights |= {
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
            f"{prefix}self_attn.q_proj.weight": random(heads * head_dim, hidden),
            f"{prefix}self_attn.k_proj.weight": random(kv_heads * head_dim, hidden),
            f"{prefix}self_attn.v_proj.weight": random(kv_heads * head_dim, hidden),
            f"{prefix}self_attn.o_proj.weight": random(hidden, heads * head_dim),
            f"{prefix}mlp.gate_proj.weight": random(inner, hidden),
            f"{prefix}mlp.up_proj.weight": random(inner, hidden),
            f"{prefix}mlp.down_proj.weight": random(hidden, inner),
        }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(tokenizer_json)
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    return directory
