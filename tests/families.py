"""Chat templates as families of models have them (shortened), and tiny models that speak them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

RENAMED = {"<repo_name>": "[TOOL_CALLS]", "<file_sep>": "[ARGS]"}
"""Control tokens of SmolLM2 that stand in for Mistral's."""

_CHATML_END = "{% if add_generation_prompt %}<|im_start|>assistant\n{{ after }}{% endif %}"
_HERMES = (
    "{% set after = AFTER %}{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n"
    "{% set content = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}"
    "{{ content }}{% for call in m.tool_calls or [] %}"
    "{% if not loop.first or content %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": '
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)
_OFF = "('<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '')"
_LLAMA = (
    "{# <|start_header_id|> #}{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "<|im_start|>assistant\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}<|im_end|>\n"
    "{% else %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n"
    "{% if loop.index0 == 0 and tools %}{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MISTRAL_TURNS = (
    "{% set ns = namespace(user=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and loop.index0 == ns.user %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]"
)
_MISTRAL_RESULT = (
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|im_end|>{% else %}{{ raise_exception('roles') }}{% endif %}"
    "{% endfor %}"
)
_MISTRAL = (
    f"{_MISTRAL_TURNS}{{% elif m.tool_calls %}}[TOOL_CALLS][{{% for call in m.tool_calls %}}"
    "{% set out = call.function | tojson %}{{ out[:-1] }}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    """, "id": "{{ call.id }}"}{{ ', ' if not loop.last else ']<|im_end|>' }}"""
    f"{{% endfor %}}{_MISTRAL_RESULT}"
)
_MISTRAL_ARGS = (
    f"{_MISTRAL_TURNS}{{% elif m.tool_calls %}}{{{{ m.content }}}}{{% for call in m.tool_calls %}}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]"
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
    f"{{% endfor %}}<|im_end|>{_MISTRAL_RESULT}"
)
TEMPLATES = {
    "hermes": _HERMES.replace("AFTER", "''").replace(".split('</think>')[-1]", "") + _CHATML_END,
    "qwen3": _HERMES.replace("AFTER", _OFF) + _CHATML_END,
    "thinks": _HERMES.replace("AFTER", "'<think>\n'") + _CHATML_END,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mistral-args": _MISTRAL_ARGS,
}


def write_family(directory: Path, tiny: Path, family: str) -> Path:
    """The tiny model with a family's template, and its control tokens under their names. Returns the directory."""
    shutil.copytree(tiny, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATES[family]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if family.startswith("mistral"):
        text = (directory / "tokenizer.json").read_text()
        for old, new in RENAMED.items():
            text = text.replace(json.dumps(old), json.dumps(new))
        (directory / "tokenizer.json").write_text(text)
    return directory
