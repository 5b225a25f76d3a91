"""Two whole servers on one machine: nothing shared that both write, and the end of one is nothing to the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import HANG_S, all_end

from . import odd_templates
from .live import Live, live_server


def unix_sockets(server: Live) -> set[str]:
    """Paths of the Unix sockets that its processes hold."""
    found = set()
    for process in [psutil.Process(server.process.pid), *server.children()]:
        try:
            found |= {each.laddr for each in process.net_connections(kind="unix") if each.laddr}
        except psutil.Error:
            continue
    return {str(path) for path in found}


def test_side_by_side(tiny_path: Path, tmp_path: Path) -> None:
    options = ("--dtype", "float32", "--kv-tokens", "2048", "--threads", "1")
    cache = ("--cache-dir", str(tmp_path / "cache"))
    bare, refusing = odd_templates.without_template(tiny_path, tmp_path / "bare"), tmp_path / "refusing.jinja"
    refusing.write_text(odd_templates.REFUSING)
    command = [sys.executable, "-m", "radixrt", "serve", str(tiny_path), "--port", "0", *options, *cache]
    body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with live_server(tmp_path / "one.log", *options, *cache, model=str(bare)) as one:
        # A third one over the first one's directory starts meanwhile, and must say why it cannot.
        third = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        mine = ("--chat-template", str(refusing))
        with live_server(tmp_path / "two.log", *options, *mine, model=str(tiny_path)) as two:
            _, said = third.communicate(timeout=HANG_S)
            assert third.returncode == 1
            assert "another engine uses the cache directory" in said and "give each its own (--cache-dir)" in said
            assert unix_sockets(one) and unix_sockets(two)
            assert not unix_sockets(one) & unix_sockets(two)
            text = one.text("One fish", **body)
            assert two.text("One fish", **body) == text
            odd_templates.no_template(one)
            odd_templates.a_template_that_refuses(two)
            doomed = one.children()
            one.process.kill()
            one.process.wait()
            assert all_end(doomed)
            assert two.text("One fish", **body) == text
            assert two.http.get("/ready").status_code == 200
            two.wait_until_idle()


@pytest.mark.parametrize("where", ["port", "uds"])
def test_an_address_that_is_taken_is_found_before_the_model_is_looked_for(
    live: Live, tmp_path: Path, where: str
) -> None:
    """The model does not exist: who speaks of it looked for it first."""
    import socket

    address = live.url.rpartition(":")[2] if where == "port" else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        if where == "uds":
            listener.bind(address)
            listener.listen()
        command = [sys.executable, "-m", "radixrt", "serve", "no-such-model", f"--{where}", address]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert "cannot listen on" in result.stderr and address in result.stderr
    assert "no-such-model" not in result.stderr
