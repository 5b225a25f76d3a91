"""Running programs: values, ids, composing, binding, backends."""

from __future__ import annotations

import asyncio

import pytest
from fake_backend import BOS, FakeBackend, decode, encode

from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramError, ProgramState, function, gen, select, set_default_backend


@function
def question(s: ProgramState, topic: str, tail: str = "."):
    s += "Tell me about " + topic + ": " + gen("answer") + tail


def test_text_values_and_ids(backend: FakeBackend) -> None:
    backend.script = lambda text: "it is red"
    state = question.run(topic="cars", backend=backend)
    assert state["answer"] == "it is red"
    assert state.text() == "Tell me about cars: it is red." == str(state)
    assert state.ids == encode("Tell me about cars: ") + encode("it is red") + encode(".")
    assert backend.prompts == [encode("Tell me about cars: ")]
    assert state.messages() == []


def test_constants_written_apart_are_tokenized_together(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a"
        s += "b"
        s += "c" + gen("x")

    program.run(backend=backend)
    assert backend.prompts == [encode("abc")]
    assert len(backend.prompts[0]) == 1


def test_generated_ids_are_never_retokenized(backend: FakeBackend) -> None:
    backend.script = lambda text: "a"

    @function
    def program(s):
        s += "." + gen("x") + "b" + gen("y")

    state = program.run(backend=backend)
    assert backend.prompts[1] == encode(".") + encode("a") + encode("b")  # "ab" is one token when written at once
    assert backend.prompts[1] != encode(".ab")
    assert state.text() == ".aba"


def test_bos_only_at_the_very_beginning() -> None:
    backend = FakeBackend(bos=True)

    @function
    def program(s):
        s += "a" + gen("x") + "b" + gen("y")

    program.run(backend=backend)
    assert [prompt.count(BOS) for prompt in backend.prompts] == [1, 1]
    assert all(prompt[0] == BOS for prompt in backend.prompts)


def test_an_empty_program_starts_from_bos_or_is_refused(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += gen("x")

    with_bos = FakeBackend(bos=True)
    program.run(backend=with_bos)
    assert with_bos.prompts == [[BOS]]
    state = program.run(backend=backend)
    with pytest.raises(ProgramError, match="no text to go on from") as raised:
        state["x"]
    assert raised.value.param == "prompt"


def test_python_decides_on_values(backend: FakeBackend) -> None:
    backend.script = lambda text: "yes" if text.endswith("?") else "because"

    @function
    def program(s):
        s += "Really?" + gen("answer")
        if s["answer"] == "yes":
            s += " Why:" + gen("reason")

    state = program.run(backend=backend)
    assert state["reason"] == "because"
    assert "answer" in state and "other" not in state


def test_loops_rebind_a_name(backend: FakeBackend) -> None:
    counter = iter("123")
    backend.script = lambda text: next(counter)

    @function
    def program(s):
        seen = []
        for _ in range(3):
            s += "," + gen("x")
            seen.append(s["x"])
        s.set("seen", seen)

    state = program.run(backend=backend)
    assert state["seen"] == ["1", "2", "3"]
    assert state["x"] == "3"
    assert state.text() == ",1,2,3"


def test_composing_as_expression_and_as_call(backend: FakeBackend) -> None:
    @function
    def part(s, name):
        s += f"[{name}:" + gen(name) + "]"
        return len(s[name])

    @function
    def whole(s):
        s += "begin" + part("a") + "middle" + part(name="b")
        s.set("size", part(s, "c"))

    backend.script = lambda text: "xy"
    state = whole.run(backend=backend)
    assert state.text() == "begin[a:xy]middle[b:xy][c:xy]"
    assert state["size"] == 2
    assert [decode(prompt) for prompt in backend.prompts] == [
        "begin[a:", "begin[a:xy]middle[b:", "begin[a:xy]middle[b:xy][c:",
    ]  # fmt: skip


def test_call_arguments_beat_bound_ones(backend: FakeBackend) -> None:
    bound = question.bind(topic="cars", tail="!")
    backend.script = lambda text: "-"
    assert bound.run(backend=backend).text() == "Tell me about cars: -!"
    assert bound.run(topic="dogs", backend=backend).text() == "Tell me about dogs: -!"
    assert bound.run("cats", backend=backend).text() == "Tell me about cats: -!"
    assert bound.bind(tail="?").run(backend=backend).text() == "Tell me about cars: -?"
    with pytest.raises(InvalidRequest, match="no parameter called 'tpoic'"):
        question.bind(tpoic="cars")


def test_default_backend(backend: FakeBackend) -> None:
    with pytest.raises(InvalidRequest, match="no backend"):
        question.run(topic="x")
    set_default_backend(backend)
    try:
        question.run(topic="x")
    finally:
        set_default_backend(None)
    assert len(backend.prompts) == 1


def test_a_parameter_cannot_be_called_backend() -> None:
    with pytest.raises(InvalidRequest, match="backend"):

        @function
        def program(s, backend):
            pass


def test_wrong_arguments_are_pythons_type_error(backend: FakeBackend) -> None:
    with pytest.raises(TypeError, match="topic"):
        question.run(backend=backend)
    with pytest.raises(TypeError, match="colour"):
        question(topic="a", colour="b")


def test_var_scope_and_set(backend: FakeBackend) -> None:
    backend.script = lambda text: "G"

    @function
    def program(s):
        s += "a"
        with s.var_scope("middle"):
            s += "b" + gen("x") + select("y", ["Yes"])
        s += "c"
        s.set("number", 7)

    state = program.run(backend=backend)
    assert state["middle"] == "bGYes"
    assert state["number"] == 7
    assert state.text() == "abGYesc"


def test_usage_is_summed(backend: FakeBackend) -> None:
    backend.script = lambda text: "four"

    @function
    def program(s):
        s += "ab" + gen("x") + "." + gen("y")
        forks = s.fork(2)
        forks += "!" + gen("z")
        forks.join()

    state = program.run(backend=backend)
    expected = [1, 1 + 4 + 1, 11, 11]
    assert [len(prompt) for prompt in backend.prompts] == expected
    assert state.usage.prompt_tokens == sum(expected)
    assert state.usage.completion_tokens == 16


def test_n_samples(backend: FakeBackend) -> None:
    backend.script = lambda text: "s"

    @function
    def program(s):
        s += "a" + gen("x", n=3) + "!"

    state = program.run(backend=backend)
    assert state["x"] == ["s", "s#1", "s#2"]
    assert state.text() == "as!"
    assert [choice.text for choice in state.meta("x").samples] == state["x"]


def test_stop_string_is_not_in_the_state(backend: FakeBackend) -> None:
    backend.script = lambda text: "Yes!\nmore"

    @function
    def program(s):
        s += "Q" + gen("x", stop="\n") + "\n" + gen("y", max_tokens=1)

    state = program.run(backend=backend)
    # "!\n" is one token: the part that was kept is tokenized by itself, and the stop string comes from the constant.
    assert backend.prompts[1] == encode("Q") + encode("Yes") + encode("!") + encode("\n")
    assert state["x"] == "Yes!"
    assert state.meta("x").stop_reason == "\n"
    assert state.text() == "QYes!\nYes"
    assert decode(state.ids) == state.text()


def test_stop_string_inside_a_character_token(backend: FakeBackend) -> None:
    # The last token holds the second byte of "é" and the stop string.
    backend.script = lambda text: "é\nmore"

    @function
    def program(s):
        s += "Q" + gen("x", stop="\n") + "!" + gen("y", max_tokens=1)

    state = program.run(backend=backend)
    assert state["x"] == "é"
    assert decode(backend.prompts[1]) == "Qé!"


def test_streamed_text(backend: FakeBackend) -> None:
    backend.script = lambda text: "red"

    @function
    def program(s):
        s += "a " + gen("x") + " b" + gen("y") + "."

    state = program.stream(backend=backend)
    assert list(state.text_iter("x")) == ["r", "e", "d"]
    assert "".join(state.text_iter()) == "a red bred." == state.text()
    assert list(state.text_iter("y")) == ["r", "e", "d"]
    assert state.ids == question_ids("a ", "red", " b", "red", ".")


def question_ids(*pieces: str) -> list[int]:
    return [id_ for piece in pieces for id_ in encode(piece)]


def test_reading_the_growing_text_in_the_body(backend: FakeBackend) -> None:
    backend.script = lambda text: "G"

    @function
    def program(s):
        s += "a" + gen("x")
        s.set("so far", "".join(s.text_iter()))
        s += "b"

    assert program.run(backend=backend)["so far"] == "aG"
    assert program.stream(backend=backend)["so far"] == "aG"


def test_ids_and_text_do_not_change_what_comes_next(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a"
        s.set("early", (s.ids, s.text()))
        s += "b" + gen("x")

    state = program.run(backend=backend)
    assert state["early"] == (encode("a"), "a")
    assert backend.prompts == [encode("ab")]


def test_async_twins(backend: FakeBackend) -> None:
    backend.script = lambda text: "v"

    @function
    async def deep(s, word):
        s += word + gen("x")
        forks = s.fork(3)
        forks += gen("y")
        await forks.ajoin()
        s.set("seen", (await s.aget("x"), await s.aget("y"), await s.atext()))

    async def main() -> None:
        plain = await question.arun(topic="t", backend=backend)
        assert await plain.aget("answer") == "v"
        state = await deep.arun(word="w", backend=backend)
        assert await state.aget("seen") == ("v", ["v", "v", "v"], "wv")
        streamed = question.stream(topic="t", backend=backend)
        assert "".join([piece async for piece in streamed.atext_iter()]) == "Tell me about t: v."
        states = await deep.arun_batch([{"word": str(i)} for i in range(20)], backend=backend, num_threads=3)
        assert [await state.atext() for state in states] == [f"{i}v" for i in range(20)]
        with pytest.raises(InvalidRequest, match="arun"):
            deep.run(word="w", backend=backend)

    asyncio.run(main())
    assert deep.run(word="w", backend=backend)["seen"] == ("v", ["v", "v", "v"], "wv")


def test_async_programs_are_not_appended(backend: FakeBackend) -> None:
    @function
    async def deep(s):
        s += gen("x")

    @function
    def program(s):
        s += deep()

    with pytest.raises(InvalidRequest, match="await deep"):
        program.run(backend=backend)


def test_unused_requests_finish_before_run_returns(backend: FakeBackend) -> None:
    backend.pause = True

    @function
    def program(s):
        s += "a" + gen("x")
        s.fork(4).__iadd__(gen("y"))

    program.run(backend=backend)
    assert len(backend.prompts) == 5 and backend.active == 0
