"""`radixrt cache`: what fits a screen of a tree, and one reading of servers, fake and real."""

from __future__ import annotations

import random
from itertools import pairwise

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from radixrt import Engine, SamplingParams
from radixrt.cli import app
from radixrt.cli.cache import age, drawing, fitting, line, read
from radixrt.errors import EngineDead, Unauthorized
from radixrt.results import CacheNode, CacheView, Pin
from radixrt.server.keys import keys_of
from tests.server.conftest import serving
from tests.server.fake_backend import FakeBackend


def node(depth: int, hits: int = 0, locks: int = 0, pins: int = 0, text: str = "x", age_s: float = 1.0) -> CacheNode:
    return CacheNode(depth=depth, tokens=3, hits=hits, locks=locks, pins=pins, age_s=age_s, text=text)


def test_ages_and_texts() -> None:
    assert [age(s) for s in (0.44, 12, 59.4, 200, 7200, 200_000)] == ["0.4s", "12s", "59s", "3m", "2h", "2d"]
    assert line("a\nb\x1b[31m") == "a\\nb\\x1b[31m", "what a client wrote does not steer the terminal"
    assert len(line("y" * 500)) == 60


def test_a_screen_shows_what_matters_each_with_all_above_it() -> None:
    nodes = [node(1, 9), node(2, 1), node(3, 0), node(2, 0), node(3, 0, pins=1), node(1, 0), node(2, 0, locks=1)]
    assert fitting(nodes, 7) == nodes
    assert fitting(nodes, 5) == [nodes[i] for i in (0, 3, 4, 5, 6)]
    assert fitting(nodes, 2) == [nodes[i] for i in (5, 6)]
    rng, many, depth = random.Random(0), [], 0
    for _ in range(400):
        depth = rng.randint(1, depth + 1)
        many.append(node(depth, rng.randrange(9), age_s=rng.random()))
    shown = fitting(many, 40)
    assert 30 < len(shown) <= 40 and shown[0].depth == 1
    assert all(b.depth <= a.depth + 1 for a, b in pairwise(shown)), "nothing hangs in the air"


def test_a_drawing() -> None:
    pins = [Pin(id="p", tokens=3, expires_in_s=70)]
    nodes = [node(1, 1234, text="[bold]shared[/bold]"), node(2, pins=1, text="leaf"), node(2, locks=2, text="running")]
    console = Console(width=120, record=True, file=None)
    console.print(drawing(CacheView(nodes=nodes, tokens=9, pins=pins, pinned_tokens=3, pin_quota=100), "URL", None))
    said = console.export_text()
    assert "9 tokens in 3 nodes, 3 of 100 pinned (1 pins, the next ends in 1m)" in said
    assert "1,234" in said and "[bold]shared[/bold]" in said and "\n" in said
    assert said.index("shared") < said.index("  leaf") < said.index("  running")
    console.print(drawing(CacheView(nodes=nodes, tokens=9), "URL", 6))
    assert "2 more nodes are not shown" in console.export_text()


def test_one_reading_of_a_server() -> None:
    backend = FakeBackend()
    with serving(backend, backend) as served:
        result = CliRunner().invoke(app, ["cache", served.url, "--cache-salt", "mine"])
        assert result.exit_code == 0, "what is not a terminal gets one reading"
        assert "abcmine" in result.output and "3 tokens in 1 nodes" in " ".join(result.output.split())


def test_a_real_tree(small_engine: Engine) -> None:
    params = SamplingParams(max_tokens=1)
    for end in ("first", "second", "second"):
        small_engine.generate(f"Three notes on one long beginning: {end}", params, cache_salt="drawn")
    with serving(small_engine, None) as served:  # type: ignore[arg-type]
        result = CliRunner().invoke(app, ["cache", "--url", served.url, "--cache-salt", "drawn", "--once"])
        lines = [line for line in result.output.splitlines() if "notes" in line or "first" in line or "second" in line]
        assert result.exit_code == 0 and len(lines) == 3 and lines[0].index("Three") < lines[1].index("first")
        assert lines[0].split()[1] == "2", "the two that came after the first found it"
        with httpx.Client(base_url=served.url) as http:
            assert read(http, "nobody").nodes == []


def test_servers_that_do_not_answer_or_do_not_let_in() -> None:
    backend = FakeBackend()
    with serving(backend, backend, keys=keys_of(["client-key-1234"])) as served:
        assert isinstance(CliRunner().invoke(app, ["cache", "--url", served.url]).exception, Unauthorized)
        arguments = ["cache", "--url", served.url, "--once"]
        assert CliRunner().invoke(app, arguments, env={"RADIXRT_API_KEY": "client-key-1234"}).exit_code == 0
        url = served.url
    with pytest.raises(EngineDead, match="no server answers"):
        raise CliRunner().invoke(app, ["cache", "--url", url]).exception or AssertionError
