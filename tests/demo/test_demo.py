"""The demo itself, as a user meets it: a process with piped output, the real model, the three processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from radixrt.demo import inputs
from radixrt.demo.programs import LABELS, Intake
from tests.waiting import HANG_S

NUMBERS = re.compile(r"prompt tokens +([\d,]+), ([\d,]+) of them from the tree")
GENERATED = re.compile(r"generated +([\d,]+) tokens, ([\d.]+) tokens/s")


@pytest.fixture(scope="module")
def demo(smollm2_path: Path) -> subprocess.CompletedProcess[str]:
    """One run of the demo, which the tests below read."""
    command = [sys.executable, "-m", "radixrt", "demo", "--kv-tokens", "20000"]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


@pytest.fixture(scope="module")
def jobs(demo: subprocess.CompletedProcess[str]) -> list[str]:
    """The output of the three jobs, and of the tree, each with its heading."""
    assert demo.returncode == 0, demo.stderr
    parts = re.split(r"^(?=1\. |2\. |3\. |The prefix tree)", demo.stdout, flags=re.MULTILINE)
    assert len(parts) == 5
    return parts[1:]


def numbers(job: str) -> list[int]:
    """Prompt tokens, cached tokens, generated tokens."""
    found = NUMBERS.search(job), GENERATED.search(job)
    assert found[0] and found[1]
    return [int(text.replace(",", "")) for text in (*found[0].groups(), found[1][1])]


def test_a_pipe_gets_plain_text(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stderr
    assert "\x1b" not in demo.stdout + demo.stderr
    assert "smollm2-135m" in demo.stdout


def test_agents_share_the_policy(jobs: list[str]) -> None:
    prompt, cached, generated = numbers(jobs[0])
    turns = sum(len(agent.turns) for agent in inputs.agents())
    # The policy holds more than 1,000 tokens; it is computed once, every later turn finds it in the tree.
    assert prompt > turns * 1000
    assert (turns - 1) * 1000 < cached < prompt
    assert turns < generated <= turns * 40
    for agent in inputs.agents():
        assert re.search(rf"^  {agent.agent}: +\w", jobs[0], re.MULTILINE)


def test_every_record_validates(jobs: list[str]) -> None:
    records = [json.loads(text) for text in re.findall(r"^  record: +(.*)$", jobs[1], re.MULTILINE)]
    assert len(records) == len(inputs.notes())
    validator = jsonschema.Draft202012Validator(Intake.model_json_schema())
    for record in records:
        validator.validate(record)
    assert "6 of 6 records validate" in jobs[1]
    prompt, cached, generated = numbers(jobs[1])
    assert 0 < cached < prompt
    assert generated > len(records) * 20


def test_every_ticket_gets_a_label(jobs: list[str]) -> None:
    labels = re.findall(rf"^  ({'|'.join(LABELS)}): +\w", jobs[2], re.MULTILINE)
    assert len(labels) == len(inputs.tickets())
    right = sum(ticket.label == label for ticket, label in zip(inputs.tickets(), labels, strict=True))
    assert f"{right} of 16 labels" in jobs[2]
    # How many are right is the model's affair, but it must have read the tickets.
    assert len(set(labels)) >= 2
    prompt, cached, _ = numbers(jobs[2])
    assert prompt / 2 < cached < prompt


def test_the_tree_is_drawn(jobs: list[str]) -> None:
    lines = [line for line in jobs[3].splitlines()[1:] if line.strip()]
    assert len(lines) > 10
    assert any("answer customers of Fernwick" in line for line in lines)
    depths = {len(line) - len(line.lstrip()) for line in lines}
    assert len(depths) >= 3
