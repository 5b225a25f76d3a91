"""The page in a headless browser: it works, by keyboard too, fits a phone, loads nothing from elsewhere, and shows what
a model writes as text alone. Skipped where no browser is installed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from radixrt.server.keys import keys_of
from tests.waiting import HANG_S

from .conftest import Served, serving
from .fake_backend import REPLY, FakeBackend

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def test_its_files_are_open_and_say_what_they_may_load(served: Served) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        response = served.http.get(path)
        assert response.status_code == 200 and response.headers["content-type"] == f"{kind}; charset=utf-8"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy
        assert "http://" not in response.text and "https://" not in response.text
        assert not re.search(r"""(href|src)=.?/|fetch\(["'`]/""", response.text), "behind a proxy it may have a prefix"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """The page, loaded; afterwards nothing may have gone wrong in it."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.set_default_timeout(HANG_S * 1000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(served.url) else faults.append(request.url))
    page.goto(served.url)
    page.get_by_text("fake: float32").wait_for()
    yield page
    context.close()
    assert not [fault for fault in faults if not fault.startswith("data:")]


def test_a_chat_by_keyboard(page: Any, served: Served) -> None:
    page.locator("#prompt").focus()
    page.keyboard.type(" Please.")
    page.keyboard.press("Control+Enter")
    page.locator("#figures", has_text="prompt tokens cached").wait_for()
    assert page.locator("#log .turn").nth(1).inner_text() == REPLY
    assert page.evaluate("document.activeElement.id") == "prompt", "the next turn can be typed at once"
    page.keyboard.type("More.")
    page.keyboard.press("Control+Enter")
    page.locator("#log .turn").first.get_by_text("More.").wait_for()
    page.locator("#go:enabled").wait_for()
    messages = served.backend.seen[-1][0].messages  # type: ignore[union-attr]
    assert [message.role for message in messages] == ["user", "assistant", "user"] and messages[1].content == REPLY


def test_what_is_written_is_text(page: Any, served: Served) -> None:
    served.backend.reply = "<img src=x onerror=alert(1)><b>bold</b>"
    page.locator("input[value=completion]").check()
    assert not page.locator("#system").is_visible()
    page.locator("#go").click()
    page.locator("#figures", has_text="prompt tokens cached").wait_for()
    assert page.locator("#log .turn").nth(1).inner_text() == served.backend.reply
    assert page.locator("#log img, #log b").count() == 0


def test_schemas_are_judged_while_they_are_typed(page: Any, served: Served) -> None:
    page.get_by_text("JSON schema", exact=True).click()
    page.locator("#schema").fill("{")
    page.get_by_text("not JSON").wait_for()
    page.locator("#schema").fill('{"type": "object"}')
    page.get_by_text("enforced, every word").wait_for()
    page.locator("#schema").fill('{"x": "[unclosed"}')
    page.get_by_text("is not closed").wait_for()


def test_errors_and_stopping(page: Any, served: Served) -> None:
    page.locator("#prompt").fill("DEADEND")
    page.locator("#go").click()
    page.get_by_text("dead end").wait_for()
    page.locator("#prompt").fill("WAIT")
    page.locator("#go").click()
    assert served.backend.wait_active(1)
    page.locator("#stop").click()
    page.get_by_text("stopped").wait_for()
    assert served.backend.wait_active(0)


def test_it_fits_a_phone_and_names_its_parts(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    nameless = "e => !(e.labels?.length || e.textContent)"
    assert page.evaluate(f"[...document.querySelectorAll('input, textarea, button')].filter({nameless}).length") == 0
    assert page.locator("#tree li").count() > 0 and page.locator("#metrics dd").count() > 4


def test_with_a_key(browser: Any) -> None:
    backend = FakeBackend()
    with serving(backend, backend, keys=keys_of(["client-key-1234"])) as served:
        page = browser.new_page()
        page.set_default_timeout(HANG_S * 1000)
        page.goto(served.url)
        page.get_by_text("an API key is needed").wait_for()
        page.locator("#key").fill("client-key-1234")
        page.locator("#key").press("Tab")
        page.get_by_text("fake: float32").wait_for()
        page.close()
