"""Traces: one span a request with its parts below it, continuing the client's trace, and telling none of its text."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from radixrt.server.tracing import Tracing, over_http

from .conftest import serving
from .fake_backend import REPLY, FakeBackend

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(*requests: dict[str, Any]) -> dict[str, list[ReadableSpan]]:
    exporter, backend = InMemorySpanExporter(), FakeBackend()
    with serving(backend, backend, tracing=(tracing := Tracing(exporter))) as served:
        for body in requests:
            served.chat("my password is tulip", **body) if "word" not in body else served.chat(body["word"])
        served.http.get("/secret-path", headers={"traceparent": PARENT})
        tracing._provider.force_flush()
        spans: dict[str, list[ReadableSpan]] = {}
        for span in exporter.get_finished_spans():
            spans.setdefault(span.name, []).append(span)
    return spans


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_and_its_parts(stream: bool) -> None:
    spans = traced({"stream": stream})
    (request,) = spans["POST /v1/chat/completions"]
    assert request.attributes is not None and request.context is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["gen_ai.usage.output_tokens"] == len(REPLY.encode())
    parts = [spans[name][0] for name in ("tokenize", "queue", "prefill", "decode")]
    assert all(part.parent is not None and part.parent.span_id == request.context.span_id for part in parts)
    ends = [(part.start_time, part.end_time) for part in parts]
    assert all(a is not None and b is not None and a <= b for a, b in ends)
    assert all(a[1] <= b[0] for a, b in pairwise(ends)), "one after the other"  # type: ignore[operator]


def test_it_continues_the_clients_trace_and_tells_nothing() -> None:
    spans = traced({}, {"word": "BOOM"})
    (missing,) = spans["GET unmatched"]
    assert missing.context is not None and f"{missing.context.trace_id:032x}" == PARENT.split("-")[1]
    failed = [
        span for span in spans["POST /v1/chat/completions"] if not span.status.is_ok and span.status.status_code.value
    ]
    assert len(failed) == 1
    everything = repr([(span.name, dict(span.attributes or {})) for group in spans.values() for span in group])
    assert "tulip" not in everything and "secret" not in everything


def test_a_collector_gets_them() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Not on the test's stderr."""

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=collector.serve_forever, daemon=True).start()
    backend = FakeBackend()
    tracing = over_http(f"http://127.0.0.1:{collector.server_port}/v1/traces")
    with serving(backend, backend, tracing=tracing) as served:
        assert served.chat().status_code == 200
    tracing.close()
    collector.shutdown()
    collector.server_close()
    assert any(path == "/v1/traces" and b"POST /v1/chat/completions" in body for path, body in received)
