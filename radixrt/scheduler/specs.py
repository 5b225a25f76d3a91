"""Pure translations: a row into what the runner must know of it, a result into what the tokenizer is told."""

from __future__ import annotations

import numpy as np

from radixrt.messages import PromptScores, RowOpen, Score, ScoreSpec, StepResult, TokenDelta
from radixrt.scheduler.requests import Limits, Request, Row


def row_open(row: Row, limits: Limits) -> RowOpen:
    """What the runner must know of a row; the token histories only where a penalty needs them."""
    sampling = row.request.sampling
    repeats = sampling.repetition_penalty != 1.0
    counts = repeats or bool(sampling.frequency_penalty or sampling.presence_penalty)
    prompt = row.request.prompt
    # Without min_tokens no end is ever forbidden: a row that is told none may go without logits.
    ends = [*limits.eos_token_ids, *sampling.stop_token_ids] if sampling.min_tokens else []
    return RowOpen(
        row=row.id,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        seed=row.seed,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_ids=list(sampling.logit_bias.keys()),
        bias=list(sampling.logit_bias.values()),
        min_length=len(prompt) + sampling.min_tokens,
        end_ids=ends,
        logprobs=-1 if sampling.logprobs is None else sampling.logprobs,
        prompt_ids=np.array(prompt, dtype=np.int32) if repeats else None,
        output_ids=np.array(row.tokens[len(prompt) :], dtype=np.int32) if counts else None,
    )


def score_spec(row: Row, start: int, count: int) -> ScoreSpec | None:
    """The prompt log-probabilities that new tokens [start, start + count) of the row bring; each is planned once."""
    request = row.request
    first = max(start, request.score_from)
    end = min(start + count, len(request.prompt) - 1)
    if row.index or first >= end:
        return None
    request.score_from = end
    targets = np.array(request.prompt[first + 1 : end + 1], dtype=np.int32)
    return ScoreSpec(row_index=0, first=first - start, targets=targets, top=request.sampling.prompt_logprobs or 0)


def prompt_scores(request: Request) -> PromptScores | None:
    """All prompt log-probabilities at once; None while a later chunk of them is still under way."""
    start, top = request.sampling.prompt_logprobs_start, request.sampling.prompt_logprobs or 0
    pieces = list(request.scored)
    if start == 0:
        # Nothing comes before the first token: NaN, also where its alternatives would be.
        unknown = np.full((1, top), np.nan, dtype=np.float32)
        ids = np.full((1, top), -1, dtype=np.int32)
        pieces.insert(0, Score(logprobs=np.full(1, np.nan, np.float32), top_ids=ids, top_logprobs=unknown))
    if sum(piece.logprobs.size for piece in pieces) < len(request.prompt) - start:
        return None
    return PromptScores(
        request_id=request.id,
        start=start,
        logprobs=np.concatenate([piece.logprobs for piece in pieces]),
        top_ids=np.concatenate([piece.top_ids for piece in pieces]),
        top_logprobs=np.concatenate([piece.top_logprobs for piece in pieces]),
    )


def token_delta(row: Row, token: int, result: StepResult, k: int, forced: bool) -> TokenDelta:
    """One new token of a row, the k-th that the step sampled, with the log-probabilities that were asked for."""
    wanted = row.request.sampling.logprobs
    if wanted is None:
        return TokenDelta(request_id=row.request.id, index=row.index, ids=[token], forced=forced)
    return TokenDelta(
        request_id=row.request.id,
        index=row.index,
        ids=[token],
        forced=forced,
        logprobs=[float(result.logprobs[k])],
        top_ids=[result.top_ids[k, :wanted].tolist()],
        top_logprobs=[result.top_logprobs[k, :wanted].tolist()],
    )
