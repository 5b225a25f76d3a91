"""What an OpenAI-compatible service can do for a program, and a gen in its words.

| capability | what needs it | OpenAI's own API |
|---|---|---|
| chat | gen in an assistant turn | yes |
| tools | gen(tools=) | yes |
| completions | gen after plain text, outside of turns | no |
| json_schema, json_object | gen(json_schema=, type=a model) | yes |
| n, stop, seed, logit_bias, logprobs, penalties | the parameters of those names | yes |
| top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids | the same: sent as vLLM spells them | no |
| stop_regex | gen(stop_regex=) (radixrt, SGLang) | no |
| regex, choice, grammar | gen(regex=, choices=, grammar=, type=int): sent as `structured_outputs` (vLLM) | no |
| continue | gen after text in the same assistant turn: `continue_final_message` (vLLM, SGLang, radixrt) | no |
| cache_salt, priority | run(cache_salt=, priority=): sent as vLLM spells them | no |

Never there: exact select, healing (`heal=True`), token ids and the text with the template's markers, pins (`s.pin()`,
`s.unpin()`), `s.cache()` and `return_cache_report`.
What a service cannot do raises InvalidRequest with code `unsupported`, before that request is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from radixrt.errors import InvalidRequest
from radixrt.lang.expressions import Gen
from radixrt.params import SamplingParams

PLAIN = frozenset(
    {"chat", "tools", "json_schema", "json_object", "n", "stop", "seed", "logit_bias", "logprobs", "penalties"}
)
"""Of OpenAI's own API."""
EXTENDED = frozenset(
    {
        "completions", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "regex",
        "stop_regex", "choice", "grammar", "continue", "cache_salt", "priority",
    }
)  # fmt: skip
KNOWN = PLAIN | EXTENDED

_NEEDS = {
    "n": "n", "stop": "stop", "seed": "seed", "logit_bias": "logit_bias", "logprobs": "logprobs",
    "frequency_penalty": "penalties", "presence_penalty": "penalties", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "min_tokens": "min_tokens", "ignore_eos": "ignore_eos",
    "stop_regex": "stop_regex", "stop_token_ids": "stop_token_ids",
}  # fmt: skip
_DEFAULTS = SamplingParams()


def chosen(names: Iterable[str]) -> frozenset[str]:
    """InvalidRequest for a name that is no capability."""
    given = frozenset(names)
    if unknown := given - KNOWN:
        raise InvalidRequest(
            f"unknown capability {', '.join(sorted(unknown))}; there are: {', '.join(sorted(KNOWN))}",
            param="capabilities",
        )
    return given


def need(have: frozenset[str], capability: str, what: str) -> None:
    if capability not in have:
        raise InvalidRequest(
            f"{what} needs {capability!r}, which this service is not known to have: change the program, or say "
            f"OpenAI(..., capabilities=PLAIN | {{{capability!r}}}) if it has",
            param=capability,
            code="unsupported",
        )


def refuse_pins(service: object | None) -> None:
    if service is not None:
        raise InvalidRequest(
            "pin() and unpin() keep text in radixrt's own tree, which a service does not offer: use an Engine or a "
            "radixrt.Client",
            param="pin",
            code="unsupported",
        )


def refuse_report(wanted: bool) -> None:
    if wanted:
        raise InvalidRequest(
            "return_cache_report asks for radixrt's own tree: use an Engine or a radixrt.Client",
            param="return_cache_report",
            code="unsupported",
        )


def request_fields(gen: Gen, have: frozenset[str], options: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    """The fields of a request but for prompt and model; what the service cannot do raises."""
    sampling = gen.sampling
    if gen.heal:
        raise InvalidRequest("heal=True needs token ids, which no service gives", param="heal", code="unsupported")
    refuse_report(sampling.return_cache_report)
    fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.max_tokens is not None:
        fields["max_completion_tokens" if chat else "max_tokens"] = sampling.max_tokens
    for name, capability in _NEEDS.items():
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name) and not (name == "top_k" and value == -1):
            need(have, capability, f"gen({name}=...)")
            fields[name] = list(value) if isinstance(value, tuple) else value
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if "logprobs" in fields:
        if not chat:
            raise InvalidRequest("logprobs need a turn: put the gen into assistant(...)", code="unsupported")
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs}
    for name, value in options.items():
        need(have, name, f"run({name}=...)")
        fields[name] = value
    if gen.tools is not None:
        need(have, "tools", "gen(tools=...)")
        fields |= gen.tools.fields()
    return fields | _constraint_fields(gen, have, chat)


def _constraint_fields(gen: Gen, have: frozenset[str], chat: bool) -> dict[str, Any]:
    constraint = gen.constraint
    if constraint is None:
        return {}
    need(have, constraint.kind, f"gen with the constraint {constraint.kind}")
    if constraint.kind == "json_schema" and chat:
        schema = {"name": gen.name or "answer", "schema": json.loads(constraint.value), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if constraint.kind == "json_schema":
        raise InvalidRequest("json_schema needs a turn: put the gen into assistant(...)", code="unsupported")
    value = list(constraint.choices) if constraint.kind == "choice" else constraint.value
    return {"structured_outputs": {constraint.kind: value}}
