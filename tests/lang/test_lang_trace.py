"""What a run shows of itself: pieces by origin, the tree of forks, one page that stands alone."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fake_backend import FakeBackend, encode
from rich.console import Console

from radixrt.errors import GenerationFailed
from radixrt.lang import ProgramError, ProgramState, assistant, function, gen, select, user
from radixrt.lang.describe import ORIGINS, parts
from radixrt.lang.page import page
from radixrt.lang.terminal import show
from radixrt.lang.trace import record_runs, trace_of


@function
def story(s):
    s += "Once <b>" + gen("x", max_tokens=20, logprobs=0) + "Yes " + select("y", ["red", "blue"])
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += f" and {i}" + gen("z")
    forks.join()
    s += " the end"


def run(backend: FakeBackend) -> ProgramState:
    backend.script = lambda text: "<i>gone</i>"
    return story.run(backend=backend)


def test_the_pieces_are_the_text(backend: FakeBackend) -> None:
    state = run(backend)
    trace = json.loads(json.dumps(state.trace))
    trunk, *forks = trace["branches"]
    assert "".join(piece["text"] for piece in trunk["pieces"]) == state.text()
    origins = [(piece["origin"], piece["text"], piece.get("variable")) for piece in trunk["pieces"]]
    assert origins == [
        ("constant", "Once <b>", None), ("sampled", "<i>gone</i>", "x"), ("constant", "Yes ", None),
        ("selected", state["y"], "y"), ("constant", " the end", None),
    ]  # fmt: skip
    assert [(fork["parent"], fork["label"]) for fork in forks] == [(0, "fork 1 of 2"), (0, "fork 2 of 2")]
    assert [[piece["text"] for piece in fork["pieces"]] for fork in forks] == [
        [" and 0", "<i>gone</i>"], [" and 1", "<i>gone</i>"],
    ]  # fmt: skip
    gone = trunk["pieces"][1]
    assert re.fullmatch(r"test_lang_trace\.py:\d+", gone["line"]) and gone["seconds"] >= 0
    assert gone["prompt_tokens"] == len(encode("Once <b>")) and gone["completion_tokens"] == len(encode("<i>gone</i>"))
    scores = trunk["pieces"][3]["choices"]
    assert scores == [[c, s] for c, s in zip(state.meta("y").choices, state.meta("y").scores, strict=True)]
    assert trace["usage"]["prompt_tokens"] == state.usage.prompt_tokens and trace["seconds"] > 0


@pytest.mark.parametrize("bos", [False, True])
def test_what_the_cache_held_is_told_apart(bos: bool) -> None:
    backend = FakeBackend(lambda text: "ab", bos=bos)
    backend.cached = 6 + bos

    @function
    def program(s):
        s += "One two three." + gen("x") + "Hello" + gen("y", heal=False)

    pieces = program.run(backend=backend).trace["branches"][0]["pieces"]
    assert [(piece["origin"], piece["text"]) for piece in pieces] == [
        ("cached", "One tw"), ("constant", "o three."), ("sampled", "ab"), ("constant", "Hello"), ("sampled", "ab"),
    ]  # fmt: skip


def test_what_a_select_read_is_counted_with_its_choice() -> None:
    backend = FakeBackend()
    backend.cached = 3

    @function
    def program(s):
        s += "One two" + select("x", ["a", "b"])

    read, before, chosen = program.run(backend=backend).trace["branches"][0]["pieces"]
    assert (read["origin"], read["text"], before["origin"], before["text"]) == ("cached", "One", "constant", " two")
    assert chosen["cached_tokens"] == 3 and chosen["prompt_tokens"] == len(encode("One two")) + 2


def test_forced_text_is_told_apart(backend: FakeBackend) -> None:
    backend.script = lambda text: '{"a": 5}'
    backend.forced = ((0, 6), (7, 8))

    @function
    def program(s):
        s += "Give: " + gen("x", regex=r'\{"a": [0-9]\}')

    state = program.run(backend=backend)
    assert state.meta("x").samples[0].forced == ((0, 6), (7, 8))
    piece = state.trace["branches"][0]["pieces"][-1]
    assert piece["forced"] == [[0, 6], [7, 8]]
    assert list(parts(piece)) == [("forced", '{"a": '), ("sampled", "5"), ("forced", "}")]
    html = state._repr_html_()
    assert '<span class="forced"' in html and ">5</span>" in html
    console = Console(record=True, width=80, color_system="truecolor", file=io.StringIO())
    show(state.trace, console)
    assert "forced" in console.export_text()


def test_a_failed_run_has_a_trace_too(backend: FakeBackend) -> None:
    backend.failures = {"bad": GenerationFailed("broken")}

    @function
    def program(s):
        s += "good" + gen("x")
        forks = s.fork(2)
        forks[0] += "bad" + gen("y")
        forks[1] += "fine" + gen("y")
        forks.join(errors="return")
        s += "bad" + gen("z")

    trace = program.run(backend=backend).trace
    assert "broken" in trace["error"]
    assert ["broken" in str(branch["error"]) for branch in trace["branches"]] == [True, True, False]


class Page(HTMLParser):
    """The text of each span by class, and every address that the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, str]] = []
        self.titles: list[str] = []
        self.fetched: list[str] = []
        self.stack: list[str] = []
        self.current: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.fetched += [str(values[name]) for name in ("src", "href") if name in values]
        if tag not in ("meta", "link"):
            self.stack.append(tag)
        if tag == "span":
            self.current = values["class"]
            self.spans.append((str(self.current), ""))
            self.titles.append(str(values.get("title")))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag
        self.current = None

    def handle_data(self, data: str) -> None:
        if self.current is not None:
            self.spans[-1] = (self.spans[-1][0], self.spans[-1][1] + data)


def parsed(text: str) -> Page:
    reader = Page()
    reader.feed(text)
    reader.close()
    assert not reader.stack
    return reader


def test_the_page_stands_alone_and_runs_nothing_of_the_text(backend: FakeBackend) -> None:
    state = run(backend)
    whole = parsed(page([state.trace], "a <title>"))
    assert not whole.fetched and "script" not in page([], "x")
    shown = [(kind, text) for kind, text in whole.spans if text not in ORIGINS]
    assert ("sampled", "<i>gone</i>") in shown and ("constant", "Once <b>") in shown
    title = next(t for t, span in zip(whole.titles, whole.spans, strict=True) if span == ("selected", state["y"]))
    assert title.startswith("selected: y (test_lang_trace.py:") and f"{state.meta('y').scores[0]:.3f}" in title
    notebook = parsed(state._repr_html_())
    assert [span for span in notebook.spans if span in shown] == shown


def test_a_terminal_shows_text_tree_and_totals(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    state = run(backend)
    out = io.StringIO()
    show(state.trace, Console(file=out, width=100))
    text = out.getvalue()
    assert "Once <b><i>gone</i>Yes " in text and "[fork 2 of 2]  and 1<i>gone</i>" in text
    assert f"{state.usage.prompt_tokens} prompt tokens" in text
    state.show()
    assert "Once" in capsys.readouterr().out


def test_all_runs_of_a_block_are_recorded(backend: FakeBackend) -> None:
    @function
    def talk(s, word):
        s += user(word) + assistant(gen("x"))

    run(backend)
    with record_runs() as runs:
        talk.run(word="a", backend=backend)
        talk.run_batch([{"word": "b"}, {"word": "c"}], backend=backend)
    run(backend)
    traces: list[dict[str, Any]] = [trace_of(item) for item in runs]
    assert [trace["program"] for trace in traces] == ["talk"] * 3
    assert sorted(trace["branches"][0]["messages"][0]["content"] for trace in traces) == ["a", "b", "c"]


def test_a_trace_does_not_raise_what_the_body_raised(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a" + gen("x")
        raise ValueError("mine")

    (state,) = program.run_batch([{}], backend=backend)
    assert "mine" in state.trace["error"]
    with pytest.raises(ProgramError):
        state["y"]
