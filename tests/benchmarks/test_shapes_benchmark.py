"""Rates of several streams, and what a benchmark says its figures were made with; no server is started here."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare
import machine
from measure import Record
from servers import Target, radixrt
from shapes import together

SAYS = "avx2, 4-bit weights as the file, float16 KV, 2 threads"


def stream(first: float, gaps: list[float], tokens: int) -> Record:
    ended = first + sum(gaps)
    return Record(started=0.0, ended=ended, ttft_s=first, gaps_s=gaps, completion_tokens=tokens)


def test_one_stream_counts_what_comes_after_its_first_token() -> None:
    assert together([stream(2.0, [0.5] * 4, 5)]) == pytest.approx(2.0)


def test_several_streams_count_while_all_of_them_run() -> None:
    late = stream(3.0, [1.0] * 4, 5)  # tokens at 3, 4 ... 7
    early = stream(1.0, [1.0] * 4, 5)  # at 1, 2 ... 5
    assert together([late, early]) == pytest.approx((2 + 2) / 2)


def test_chunks_of_several_tokens_count_as_such() -> None:
    assert together([stream(1.0, [1.0] * 4, 15)]) == pytest.approx(3.0)


def test_streams_that_never_run_at_once_have_no_rate() -> None:
    assert math.isnan(together([stream(1.0, [1.0], 2), stream(5.0, [1.0], 2)]))


def test_a_stream_that_failed_ends_the_measurement() -> None:
    with pytest.raises(SystemExit, match="HTTP 500"):
        together([Record(started=0.0, ended=1.0, error="HTTP 500")])


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/server_info"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"model": {"description": SAYS}} if known else {}).encode())

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_figures_name_the_cpu_the_rung_and_the_peers_command(server: str) -> None:
    ours = radixrt("model.gguf", compare.NO_GUESSES, home=Path("/cache"), cpu="avx2")
    assert ours.environment == {"RADIXRT_HOME": "/cache", "RADIXRT_CPU": "avx2"}
    ours.url = server
    peer = Target.of("peer=llama-server --port {port} -t 2")
    peer.url = server + "/no"
    found = compare.made_with([ours, peer])
    assert found["CPU"] == machine.name()
    assert found["radixrt"].startswith(f"{SAYS}; RADIXRT_CPU=avx2 ")
    assert found["radixrt"].endswith(compare.NO_GUESSES)
    assert found["peer"] == "llama-server --port {port} -t 2"


def test_single_without_guesses_needs_a_radixrt_that_is_started_here() -> None:
    assert compare.wanted(compare.parse([])) == list(compare.NAMES)
    running = compare.parse(["--radixrt", "http://127.0.0.1:8000"])
    assert compare.UNGUESSED not in compare.wanted(running)
    assert compare.wanted(compare.parse(["--workload", compare.UNGUESSED])) == [compare.UNGUESSED]
