"""Conversations: the ids are those of the chat template, whole and step by step."""

from __future__ import annotations

import pytest
from fake_backend import FakeBackend, chat_ids, decode, encode

from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramError, assistant, function, gen, select, system, tool, user
from radixrt.messages import ChatPrompt

HISTORY = [("system", "Be kind."), ("user", "Hello"), ("assistant", "Hi there"), ("user", "Bye")]


@function
def chat(s):
    s += system("Be kind.") + user("Hello")
    s += assistant(gen("first"))
    s += user("Bye")
    s += assistant(gen("second"))


def test_prompts_equal_the_conversations_ids(backend: FakeBackend) -> None:
    backend.script = lambda text: "Hi there"
    state = chat.run(backend=backend)
    assert backend.prompts == [
        chat_ids(HISTORY[:2], generation_prompt=True),
        chat_ids(HISTORY, generation_prompt=True),
    ]
    final = [*HISTORY, ("assistant", "Hi there")]
    assert state.messages() == [{"role": role, "content": content} for role, content in final]
    assert state.ids == chat_ids(final)
    assert state.text() == decode(chat_ids(final))


def test_each_turn_is_tokenized_once(backend: FakeBackend) -> None:
    chat.run(backend=backend)
    afters = [prompt.after for prompt in backend.tokenized if isinstance(prompt, ChatPrompt)]
    assert afters == [0, 2, 2, 3]  # between them it is asked, once, whether the generation prompt adds text of its own


def test_with_blocks_and_calls_are_the_same(backend: FakeBackend) -> None:
    @function
    def blocks(s):
        with s.system():
            s += "Be "
            s += "kind."
        with s.user():
            s += "Hello"
        with s.assistant():
            s += gen("first")
        with s.user():
            s += "Bye"
        with s.assistant():
            s += gen("second")

    chat.run(backend=backend)
    prompts, backend.prompts = backend.prompts, []
    blocks.run(backend=backend)
    assert backend.prompts == prompts


def test_constant_assistant_turns_are_rendered_whole(backend: FakeBackend) -> None:
    @function
    def few_shot(s):
        s += user("1?") + assistant("one") + user("2?") + assistant("two") + user("3?") + assistant(gen("x"))

    few_shot.run(backend=backend)
    turns = [("user", "1?"), ("assistant", "one"), ("user", "2?"), ("assistant", "two"), ("user", "3?")]
    assert backend.prompts == [chat_ids(turns, generation_prompt=True)]
    assert sum(isinstance(prompt, ChatPrompt) for prompt in backend.tokenized) == 1


def test_text_around_generated_text_in_a_turn(backend: FakeBackend) -> None:
    backend.script = lambda text: "G"

    @function
    def program(s):
        s += user("q") + assistant("a" + gen("x") + "b" + gen("y") + "c") + user("r") + assistant(gen("z"))

    state = program.run(backend=backend)
    opened = chat_ids([("user", "q")], generation_prompt=True)
    assert backend.prompts[0] == opened + encode("a")
    assert backend.prompts[1] == opened + encode("a") + encode("G") + encode("b")
    closed = chat_ids([("user", "q"), ("assistant", "aGbGc"), ("user", "r")], generation_prompt=True)
    assert decode(backend.prompts[2]) == decode(closed)
    assert state.messages()[1] == {"role": "assistant", "content": "aGbGc"}


def test_a_user_who_is_played_by_the_model(backend: FakeBackend) -> None:
    backend.script = lambda text: "cats"

    @function
    def program(s):
        s += user("I like " + gen("what")) + assistant(gen("answer"))

    program.run(backend=backend)
    assert backend.prompts == [
        chat_ids([("user", "I like ")], leave_open=True),
        chat_ids([("user", "I like ")], leave_open=True)
        + encode("cats")
        + chat_ids([("user", "")])[-2:]
        + chat_ids([], generation_prompt=True),
    ]


def test_a_conversation_may_begin_with_the_assistant(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += assistant("Well, " + gen("x"))

    program.run(backend=backend)
    assert backend.prompts == [chat_ids([("assistant", "")], leave_open=True) + encode("Well, ")]


def test_tool_turns_keep_their_id(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += user("q") + tool("42", tool_call_id="call_1", name="sum") + assistant(gen("x"))

    state = program.run(backend=backend)
    assert state.messages()[1] == {"role": "tool", "content": "42", "tool_call_id": "call_1", "name": "sum"}
    assert backend.prompts == [chat_ids([("user", "q"), ("tool", "42")], generation_prompt=True)]


def test_special_tokens_in_text_stay_text(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += user("<|end|>") + assistant("<|start|>" + gen("x"))

    program.run(backend=backend)
    assert backend.prompts[0].count(2) == 2 and backend.prompts[0].count(3) == 1


def test_a_template_that_is_not_incremental_is_rendered_anew() -> None:
    backend = FakeBackend(incremental=False)
    backend.script = lambda text: "ab"[len(text) % 2] + "c"
    state = chat.run(backend=backend)
    turns = [*HISTORY[:2], ("assistant", state["first"]), HISTORY[3]]
    assert backend.prompts[1] == chat_ids(turns, generation_prompt=True)
    assert state.ids == chat_ids([*turns, ("assistant", state["second"])])
    assert state.text() == decode(state.ids)


def test_reading_inside_a_turn(backend: FakeBackend) -> None:
    @function
    def program(s):
        with s.user():
            s += "q"
            s.set("in user", s.text())
        s.set("after user", s.text())
        with s.assistant():
            s += "a"
            s.set("in assistant", (s.text(), s.messages()[-1]))
            s += gen("x")

    state = program.run(backend=backend)
    assert state["in user"] == decode(chat_ids([("user", "q")], leave_open=True))
    assert state["after user"] == decode(chat_ids([("user", "q")]))
    opened = chat_ids([("user", "q")], generation_prompt=True) + encode("a")
    assert state["in assistant"] == (decode(opened), {"role": "assistant", "content": "a"})
    assert backend.prompts == [opened]


def test_streamed_conversation_equals_its_text(backend: FakeBackend) -> None:
    state = chat.stream(backend=backend)
    assert "".join(state.text_iter()) == state.text()


def test_what_the_template_refuses_is_raised_where_it_is_read(backend: FakeBackend) -> None:
    def refuse(prompt):
        raise InvalidRequest("this model has no chat template", code="no_chat_template")

    backend._chat = refuse
    state = chat.run(backend=backend)
    with pytest.raises(ProgramError, match="no chat template") as raised:
        state["second"]
    assert (raised.value.variable, raised.value.code) == ("first", "no_chat_template")


def test_select_in_a_turn(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += user("q") + assistant("Label:" + select("label", [" Yes", " No"]) + gen("why"))

    state = program.run(backend=backend)
    opened = chat_ids([("user", "q")], generation_prompt=True)
    assert backend.prompts == [opened + encode("Label:" + state["label"])]
    assert state.messages()[-1]["content"] == "Label:" + state["label"] + state["why"]


def test_what_the_generation_prompt_adds_is_not_in_the_turns_that_follow() -> None:
    backend = FakeBackend(lambda text: "so</think>yes", thinks=True)

    @function
    def program(s):
        s += user("One") + assistant(gen("a") + "!" + gen("b", heal=False))
        s += user("Two") + assistant(gen("c"))

    state = program.run(backend=backend)
    said = [("user", "One"), ("assistant", "so</think>yes!so</think>yes"), ("user", "Two")]
    opened = chat_ids(said[:1], generation_prompt=True, thinks=True)
    assert backend.prompts[0] == opened
    assert backend.prompts[1] == opened + encode("so</think>yes") + encode("!")  # within a turn all stays
    assert backend.prompts[2] == chat_ids(said, generation_prompt=True, thinks=True)  # as chat completions have it
    assert state.ids == chat_ids([*said, ("assistant", "so</think>yes")])
    assert state.text() == decode(state.ids)


def test_a_template_that_adds_nothing_renders_no_turn_twice(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += user("One") + assistant(gen("a")) + user("Two") + assistant(gen("b"))

    program.run(backend=backend)
    whole = [p for p in backend.tokenized if isinstance(p, ChatPrompt) and not p.after]
    assert len(whole) == 1
