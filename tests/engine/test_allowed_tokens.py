"""`allowed_token_ids`: nothing but these, and of these what the model itself would take."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt import Constraint, Engine, SamplingParams
from radixrt.errors import InvalidRequest
from radixrt.healing import healable

SALT = "allowed"
PROMPT = "The harbour opens at dawn"


def test_each_token_is_the_likeliest_of_those_that_are_allowed(small_engine: Engine) -> None:
    some, others = list(range(300, 340, 3)), dict.fromkeys(range(340, 400), 100.0)
    params = SamplingParams(temperature=0, max_tokens=3, allowed_token_ids=tuple(some), logit_bias=others)
    seen = set()
    for prompt in (PROMPT, "1, 2, 3", "Dear Sir"):
        ids = list(small_engine.tokenize(prompt).ids)
        first = small_engine.generate(ids, params, cache_salt=SALT)
        written = list(first.token_ids)
        assert len(written) == 3 and first.finish_reason == "length"
        for at, token in enumerate(written):
            scores = small_engine.score([*ids, *written[:at]], [[each] for each in some], cache_salt=SALT).logprobs
            assert token == some[max(range(len(some)), key=[sum(each) for each in scores].__getitem__)]
        again = small_engine.generate(ids, params, cache_salt=SALT)
        assert list(again.token_ids) == written, "guesses along the tree change nothing"
        seen |= set(written)
    assert len(seen) > 1


def test_samples_are_all_allowed_and_end_only_at_an_end_token_among_them(small_engine: Engine) -> None:
    some = (7, 64, 65, 511)
    made = small_engine.generate(
        PROMPT, SamplingParams(temperature=50, n=4, seed=1, max_tokens=40, allowed_token_ids=some), cache_salt=SALT
    )
    assert {token for choice in made.choices for token in choice.token_ids} == set(some)
    assert {choice.finish_reason for choice in made.choices} == {"length"}
    (end,) = small_engine.info.eos_token_ids[:1]
    made = small_engine.generate(PROMPT, SamplingParams(max_tokens=9, allowed_token_ids=(end,)), cache_salt=SALT)
    assert made.finish_reason == "stop" and made.text == ""
    stop = SamplingParams(max_tokens=9, allowed_token_ids=(65,), stop_token_ids=(65,))
    assert small_engine.generate(PROMPT, stop, cache_salt=SALT).choices[0].stop_reason == 65


@pytest.mark.parametrize(
    ("fields", "constraint", "words"),
    [
        ({"allowed_token_ids": (1,)}, Constraint(kind="regex", value="a"), "with a constraint"),
        ({"allowed_token_ids": (10**6,)}, None, "names token id 1000000"),
        ({"allowed_token_ids": (5,), "stop_token_ids": (5,), "min_tokens": 2}, None, "min_tokens forbids"),
    ],
)
def test_what_leaves_nothing_to_generate_is_refused(
    small_engine: Engine, fields: dict[str, Any], constraint: Constraint | None, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        small_engine.generate(PROMPT, SamplingParams(**fields), constraint=constraint)
    assert caught.value.param == "allowed_token_ids"


def test_no_join_is_healed_under_it() -> None:
    assert healable(SamplingParams(), None) and not healable(SamplingParams(allowed_token_ids=(1,)), None)
