"""The benchmark's arithmetic and its prompts; the benchmark itself needs a server and is not run here."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from compare import median, ratio
from measure import Record, median_summary, percentile, summarise
from servers import Target
from workloads import AGENT_WORDS, PERSON_SCHEMA, SHARED_WORDS, is_person, prose


def test_percentiles_by_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [percentile(values, p) for p in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]
    assert percentile([7.0], 99) == 7
    assert math.isnan(percentile([], 50))


def test_failed_requests_count_as_errors_alone() -> None:
    good = Record(
        started=1.0, ended=3.0, ttft_s=0.5, gaps_s=[0.1, 0.3], prompt_tokens=10, cached_tokens=4, completion_tokens=6
    )
    bad = Record(started=0.0, ended=4.0, ttft_s=9.0, completion_tokens=99, error="HTTP 500")
    summary = summarise("w", [good, bad])
    assert (summary.requests, summary.errors, summary.first_error) == (2, 1, "HTTP 500")
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (10, 4, 6)
    assert (summary.wall_s, summary.tokens_per_s) == (4.0, 1.5)
    assert (summary.ttft_p99_s, summary.gap_p50_s, summary.gap_p99_s) == (0.5, 0.1, 0.3)


def test_the_median_round_is_shown_with_every_rounds_errors() -> None:
    rounds = [
        summarise("w", [Record(started=0.0, ended=1.0, completion_tokens=n), *extra])
        for n, extra in ((5, []), (9, [Record(started=0.0, ended=1.0, error="x")]), (7, []))
    ]
    median = median_summary(rounds)
    assert (median.completion_tokens, median.errors, median.first_error) == (7, 1, "x")


def test_prompts_depend_on_the_seed_alone() -> None:
    assert prose(random.Random("a"), 50) == prose(random.Random("a"), 50)
    assert prose(random.Random("a"), 50) != prose(random.Random("b"), 50)
    assert len(prose(random.Random(1), 137).split()) == 137


def test_the_long_prompts_have_the_sizes_that_the_readme_gives(smollm2_path: Path) -> None:
    from radixrt.checkpoint import open_checkpoint

    vocabulary = open_checkpoint(smollm2_path).vocabulary()
    for words, tokens in ((SHARED_WORDS, 1400), (AGENT_WORDS, 1000)):
        for seed in range(5):
            count = len(vocabulary.encode(prose(random.Random(seed), words)))
            assert abs(count - tokens) < tokens * 0.03


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"age": -1}, False),
        ({"age": True}, False),
        ({"city": "Rome"}, False),
        ({"hobbies": []}, False),
        ({"hobbies": ["x"] * 4}, False),
        ({"name": "x" * 31}, False),
        ({"employed": 1}, False),
        ({"more": 1}, False),
    ],
)
def test_the_check_of_an_answer_agrees_with_jsonschema(change: dict[str, object], valid: bool) -> None:
    import jsonschema

    person = {"name": "Ada", "age": 3, "city": "Oslo", "trade": "x", "hobbies": ["y"], "employed": True, **change}
    assert is_person(json.dumps(person)) is valid
    assert jsonschema.Draft202012Validator(PERSON_SCHEMA).is_valid(person) is valid


def test_text_that_is_not_json_is_no_answer() -> None:
    assert not is_person('{"name": "Ada"')
    assert not is_person("[]")


def test_a_server_is_a_url_or_a_command_with_a_port() -> None:
    assert Target.of("vllm=http://127.0.0.1:8011/v1/").url == "http://127.0.0.1:8011"
    assert Target.of('a=serve "my model" --port {port}').command == ["serve", "my model", "--port", "{port}"]
    for wrong in ("http://127.0.0.1:1", "a=", "a=serve --port 80"):
        with pytest.raises(SystemExit):
            Target.of(wrong)


def test_ratios_are_to_the_better_peer() -> None:
    assert ratio([30.0, 10.0, 15.0], less_is_better=False) == 2
    assert ratio([10.0, 40.0, 20.0], less_is_better=True) == 2
    assert ratio([30.0, math.nan, 10.0], less_is_better=False) == 3
    assert math.isnan(ratio([30.0, math.nan], less_is_better=False))
    assert math.isnan(ratio([math.nan, 1.0], less_is_better=False))
    assert median([1.0, 5.0, 2.0]) == 2 and math.isnan(median([1.0, math.nan]))
