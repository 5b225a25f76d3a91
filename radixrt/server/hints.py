"""What a 400 says of a parameter that its route does not have: the name that it has here, or the route that has it."""

from __future__ import annotations

import difflib
from typing import Any

from radixrt.server import faults

REFUSED = "it would be ignored, so it is refused"
INSTEAD = {
    "guided_json": "structured_outputs.json or response_format",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object or response_format",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "guided_decoding_backend": "backend",
    "bad_words": "structured_outputs.grammar, which keeps words out however tokens spell them: "
    '"start: T\\nT: ~/(?s:.*(one|two).*)/"',
    "format": "response_format",
    "functions": "tools",
    "function_call": "tool_choice",
    "text": "prompt",
    "input": "prompt",
    "inputs": "prompt",
    "sampling_params": "sampling",
    "do_sample": "temperature (0 is greedy)",
}
"""Where a route has the (first) parameter on the right, it is what other servers call by the name on the left."""
ALIKE = (
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict", "n_predict"),
    ("stop", "stop_sequences", "stop_strings"),
    ("repetition_penalty", "repeat_penalty"),
    ("instructions", "system"),
    ("ebnf", "grammar"),
    ("json_schema", "schema"),
    ("logprobs", "top_logprobs", "n_probs"),
)
"""Names of one thing on different routes and servers."""
NOWHERE = {"chat_template": "templates are chosen when the server starts (--chat-template)"}


def hint(name: str, path: str, kind: Any) -> str:
    """What to do about the unknown field `name` of the object at `path` in a body of type `kind`; a body type may say
    in `ELSEWHERE` what its users mix up."""
    known = faults.fields(kind, path) if kind is not None else []
    if not path and name in (elsewhere := getattr(kind, "ELSEWHERE", {})):
        return str(elsewhere[name])
    if name in NOWHERE:
        return NOWHERE[name]
    instead = INSTEAD.get(name)
    if instead is not None and instead.split(".")[0].split()[0] in known:
        return f"use {instead}"
    for group in ALIKE:
        if name in group and (here := [each for each in group if each in known]):
            return f"use {here[0]}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {near[0]}?" if near else REFUSED
