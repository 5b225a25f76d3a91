"""Stand-ins that the checkpoint tests share: an HTTP server on loopback, and tiny tokenizers and models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np

Answer = Callable[[BaseHTTPRequestHandler], None]


class StandIn:
    """A server on loopback. `routes` maps a path to what answers it; `seen` lists (method, path, Range header)."""

    def __init__(self) -> None:
        self.routes: dict[str, Answer] = {}
        self.seen: list[tuple[str, str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                outer.seen.append((self.command, path, self.headers.get("Range")))
                answer = outer.routes.get(path)
                if answer is None:
                    send(self, 404, b"not here")
                else:
                    answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def gets(self, path: str) -> list[str | None]:
        """The Range headers of the GET requests for `path`, in order."""
        return [ranges for method, seen, ranges in self.seen if method == "GET" and seen == path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    cut: int | None = None,
) -> None:
    """Answer with `body`; `cut`: close the connection after so many bytes, though all were announced."""
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body[:cut])
    if cut is not None:
        handler.close_connection = True


def file_answer(body: bytes, *, ranges: bool = True) -> Answer:
    """A file, continued where a Range header asks for it (unless not `ranges`)."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        if not wanted or not ranges:
            send(handler, 200, body)
            return
        start = int(wanted.removeprefix("bytes=").partition("-")[0])
        if start >= len(body):
            send(handler, 416, b"", {"Content-Range": f"bytes */{len(body)}"})
            return
        send(handler, 206, body[start:], {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"})

    return answer


def write_gguf(
    path: Path,
    *,
    tokens: list[str],
    types: list[int],
    arch: str = "llama",
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """A GGUF model of one layer with random weights over the given vocabulary; `extra` adds fields."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if extra:
        extra(writer)
    rng = np.random.default_rng(0)
    for name, shape in {"token_embd.weight": (len(tokens), 8), "blk.0.attn_q.weight": (8, 8)}.items():
        writer.add_tensor(name, rng.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
