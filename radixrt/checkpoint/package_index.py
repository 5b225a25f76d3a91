"""Where a wheel lies in the Python package index that this machine's pip uses.

The index is read through its simple API (PEP 503 HTML, PEP 691 JSON). The user's own settings count: PIP_INDEX_URL,
UV_DEFAULT_INDEX, UV_INDEX_URL, then pip's configuration, for the index, its certificate and a proxy.
"""

from __future__ import annotations

import ast
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from radixrt.errors import ModelError

if TYPE_CHECKING:
    import httpx

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_MAX_PAGE_BYTES = 32 << 20


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this machine reaches its package index."""

    url: str
    cert: str | None
    """A file of certificates to trust instead of the usual ones."""
    proxy: str | None

    def client(self) -> httpx.Client:
        """A client that follows redirects and honours the settings (and the environment's proxies)."""
        import httpx

        verify: ssl.SSLContext | bool = True
        if self.cert:
            try:
                verify = ssl.create_default_context(cafile=self.cert)
            except OSError as error:
                raise ModelError(
                    "the certificate file of PIP_CERT or pip's configuration cannot be read: "
                    f"{error.strerror or 'not a file of certificates'}. Correct that setting."
                ) from error
        timeout = httpx.Timeout(60.0, connect=15.0)
        return httpx.Client(verify=verify, proxy=self.proxy, timeout=timeout, follow_redirects=True)


def index_settings(environ: Mapping[str, str] = os.environ) -> IndexSettings:
    """The settings of this machine; asks pip for its configuration only where the environment leaves a gap."""
    url = environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    cert, proxy = environ.get("PIP_CERT"), environ.get("PIP_PROXY")
    configured = {} if url and cert else pip_configuration(environ)
    url = url or configured.get("index-url") or DEFAULT_INDEX
    if urlsplit(url).scheme not in ("http", "https"):
        raise ModelError(
            "the package index of pip's settings is not an http(s) address: set PIP_INDEX_URL to one that is"
        )
    # SSL_CERT_FILE and SSL_CERT_DIR are read by httpx itself when nothing more special is set.
    cert = cert or configured.get("cert") or environ.get("REQUESTS_CA_BUNDLE")
    return IndexSettings(url=url, cert=cert, proxy=proxy or configured.get("proxy"))


def pip_configuration(environ: Mapping[str, str]) -> dict[str, str]:
    """`pip config list` as option -> value; a command's own section outweighs [global]. Empty where pip is absent."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=30,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_pip_configuration(done.stdout) if done.returncode == 0 else {}


def parse_pip_configuration(listing: str) -> dict[str, str]:
    """The lines `section.option='value'` of `pip config list`; sections but global, install and :env: are skipped."""
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, equals, value = line.partition("=")
        section, dot, option = name.partition(".")
        if not equals or not dot or section not in ranks:
            continue
        try:
            text = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            continue
        if isinstance(text, str) and ranks[section] >= found.get(option, (-1, ""))[0]:
            found[option] = (ranks[section], text.strip())
    return {option: value for option, (_, value) in found.items()}


def find_file(client: httpx.Client, index: str, project: str, filename: str) -> str:
    """The URL of `filename` among the files of `project`; ModelError when the index cannot be reached or lacks it."""
    import httpx

    page = f"{index.rstrip('/')}/{project}/"
    host = urlsplit(index).hostname
    try:
        answer = client.get(page, headers={"Accept": _ACCEPT})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(
            f"the package index at {host} cannot be reached ({type(error).__name__}): check the network, or set "
            "PIP_INDEX_URL (and HTTPS_PROXY, PIP_CERT) as pip needs them"
        ) from error
    if answer.status_code != 200:
        raise ModelError(
            f"the package index at {host} answers {answer.status_code} for {project}: set PIP_INDEX_URL to an index "
            "that has it"
        )
    if len(answer.content) > _MAX_PAGE_BYTES:
        raise ModelError(f"the package index at {host} sends an unreasonably large page for {project}")
    if "json" in answer.headers.get("content-type", ""):
        links = _json_links(answer.content)
    else:
        links = _html_links(answer.text)
    for name, url in links:
        if name == filename:
            return urldefrag(urljoin(str(answer.url), url)).url
    raise ModelError(f"the package index at {host} does not hold {filename}: set PIP_INDEX_URL to an index that does")


class _File(msgspec.Struct):
    filename: str
    url: str


class _Page(msgspec.Struct):
    files: list[_File]


def _json_links(body: bytes) -> list[tuple[str, str]]:
    try:
        return [(file.filename, file.url) for file in msgspec.json.decode(body, type=_Page).files]
    except msgspec.MsgspecError as error:
        raise ModelError("the package index sends a page that is not of the simple API (PEP 691)") from error


def _html_links(body: str) -> list[tuple[str, str]]:
    parser = _Links()
    parser.feed(body)
    return [(unquote(urlsplit(url).path).rsplit("/", 1)[-1], urljoin(parser.base, url)) for url in parser.links]


class _Links(HTMLParser):
    """The targets of a page's links, and its <base>."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if target and tag == "a":
            self.links.append(target)
        elif target and tag == "base":
            self.base = target
