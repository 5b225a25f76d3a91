"""Where free text meets a gen: the last token of the text may be another one once the model goes on.

"http:" ends in the token ":", but a model that writes an address has only ever seen "://" as one token, and finds
nothing good to say after ":" alone. So the last token of the text is taken back, and the model is asked which token
it would write there, of those that begin with the same bytes. Is it the same one, all stays as it was; is it a longer
one, it takes the place of the text's token, and what it holds beyond the text is the beginning of the variable. The
text itself never changes.

It costs one request for one token, and is exact: the token is drawn from the model's distribution under the gen's own
sampling parameters, restricted to those tokens. `radixrt.healing` says where it is not done (here by None, or by the
token as it was).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.backend import Backend, Tokens
from radixrt.healing import decoded, reaches
from radixrt.lang.expressions import Gen
from radixrt.messages import TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.prompts import token_array
from radixrt.results import TokenLogprob, Usage

ATTEMPTS = 8
"""Tokens that are only a part of the last one are forbidden one after another, as they come; then it is left as is."""


@dataclass(frozen=True, slots=True)
class Join:
    """What the model writes in place of the last token: `token`, and `rest`, its text beyond the old one's."""

    token: int
    rest: str
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage


async def heal_join(
    backend: Backend, ids: Sequence[int], text: Tokens, gen: Gen, options: Mapping[str, Any]
) -> Join | None:
    """The token with which the model goes on from the last one of `text`, which `ids` end with; None: not healed."""
    piece = text.pieces[-1]
    if len(ids) < 2 or not piece or (end := decoded(piece)) is None:
        return None
    prompt = TokensPrompt(ids=token_array(ids[:-1]))
    constraint = Constraint(kind="regex", value=f"{_escaped(end)}(.|\\n)*")
    forbidden: dict[int, float] = {}
    usage = Usage()
    for _ in range(ATTEMPTS):
        probe = await backend.agenerate(prompt, _one_token(gen.sampling, forbidden), constraint=constraint, **options)
        usage = usage + probe.usage
        if not probe.token_ids:
            return None
        token = probe.token_ids[0]
        if token == ids[-1]:
            return Join(token, "", None, usage)
        written = (await backend.atokenize(TokensPrompt(ids=token_array([token])))).pieces[0]
        if written.startswith(piece):
            rest = decoded(written[len(piece) :])
            if rest is None or token in gen.sampling.stop_token_ids or reaches(rest, gen.sampling.stop):
                break
            return Join(token, rest, probe.choices[0].logprobs, usage)
        forbidden[token] = -100.0
    return Join(ids[-1], "", None, usage)


def _one_token(sampling: SamplingParams, forbidden: Mapping[int, float]) -> SamplingParams:
    return msgspec.structs.replace(
        sampling,
        max_tokens=1,
        min_tokens=0,
        stop=(),
        stop_token_ids=(),
        logit_bias={**sampling.logit_bias, **forbidden},
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\.^$*+?{}[]|()/-&~#" else c for c in text)
