"""explain: what it says is what a run does, up to the first read; and nothing is asked for it."""

from __future__ import annotations

import pytest
from fake_backend import FakeBackend, chat_ids, encode

from radixrt.lang import UnknownVariable, assistant, function, gen, select, system, user


def line_of(program, offset: int) -> str:  # type: ignore[no-untyped-def]
    return f"test_lang_explain.py:{program.__wrapped__.__code__.co_firstlineno + offset}"


@function
def triage(s, ticket, seen):
    s += system("Sort.") + user(ticket)
    s += assistant(select("label", ["bug", "wish"]) + gen("why", max_tokens=5))
    forks = s.fork(2)
    forks += user("Title?") + assistant(gen("title", regex="[a-z]+", n=3))
    seen.append("before")
    if s["label"] == "bug":
        seen.append("after")
        s += user("more") + assistant(gen("more"))


def test_the_plan_of_a_program(backend: FakeBackend) -> None:
    seen: list[str] = []
    plan = triage.explain(ticket="It hangs.", seen=seen, backend=backend)
    assert seen == ["before"]  # the body ran to its first read, and not a step further
    assert not backend.prompts and not backend.selects and not backend.probes
    title, head, label = line_of(triage, 5), line_of(triage, 2), line_of(triage, 3)
    assert str(plan).splitlines() == [
        "program triage: 4 gens and selects are known, in 3 branches",
        f"constant prefix: 14 characters, {plan.prefix_tokens} tokens",
        "  system:",
        f"    text 'Sort.' ({head})",
        "  user:",
        f"    text 'It hangs.' ({head})",
        "  assistant:",
        f"    select label ({label}) of 2 choices",
        f"    gen why ({label}), at most 5 tokens",
        f"  fork ({line_of(triage, 4)}): 2 branches, which run at once and beside this one",
        "    fork 1 of 2:",
        "      user:",
        f"        text 'Title?' ({title})",
        "      assistant:",
        f"        gen title ({title}), 3 samples, held to regex",
        "    fork 2 of 2:",
        "      user:",
        f"        text 'Title?' ({title})",
        "      assistant:",
        f"        gen title ({title}), 3 samples, held to regex",
        "trunk: one program request, gens and selects that follow one another in it: 2",
        "fork 1 of 2: one program request, gens and selects that follow one another in it: 1",
        "fork 2 of 2: one program request, gens and selects that follow one another in it: 1",
        f"first read at {line_of(triage, 7)}, of 'label': the body waits there; what it does then depends on it",
    ]


@function
def whole(s, n):
    s.set("given", n)
    with s.var_scope("all"):
        s += system("Sort.") + user("It hangs.") + assistant(select("label", ["bug", "wish"]) + ", " + gen("why"))
    for i, fork in enumerate(s.fork(n)):
        fork += user(f"Title {i}?") + assistant(gen("title", max_tokens=4, append=True))
    s += user("So?") + assistant(gen("end", max_tokens=3))


def test_a_whole_plan_runs_by_its_nodes_alone(backend: FakeBackend) -> None:
    calls: list[int] = []

    @function
    def counted(s, n):
        calls.append(n)
        whole.inline(s, (n,), {})

    plan = counted.compile(n=2, backend=backend)
    assert plan.whole and [type(node).__name__ for node in plan.nodes] == [
        "ScopeNode",
        "ForkNode",
        "RoleNode",
        "RoleNode",
    ]
    state = plan.run(backend=backend)
    assert calls == [2]
    assert seen_of(state) == seen_of(whole.run(n=2, backend=backend)) and state["given"] == 2
    assert state.run.program == "counted" and state["all"].startswith("Sort.It hangs.")


def test_a_plan_with_reads_runs_with_its_body(backend: FakeBackend) -> None:
    seen: list[str] = []
    plan = triage.compile(ticket="It hangs.", seen=seen)
    state = plan.run(backend=backend, timeout=30)
    assert seen[:2] == ["before", "before"] and seen_of(state) == seen_of(
        triage.run(ticket="It hangs.", seen=[], backend=backend)
    )


def test_a_join_is_where_what_follows_is_planned_as_it_happens(backend: FakeBackend) -> None:
    @function
    def joins(s):
        s += "a"
        forks = s.fork(2)
        forks += gen("x")
        forks.join()
        s += gen("y")

    lines = str(joins.explain()).splitlines()
    assert f"  join ({line_of(joins, 5)}) of 2 branches" in lines
    assert lines[-1].startswith(f"first read at {line_of(joins, 5)}, of what its branches gather")


def seen_of(state):  # type: ignore[no-untyped-def]
    state.text()
    return [(b.context.ids, b.context.text, b.context.messages()) for b in state.run.branches]


def test_the_prefix_is_the_one_that_a_run_sends(backend: FakeBackend) -> None:
    plan = triage.explain(ticket="It hangs.", seen=[], backend=backend)
    triage.run(ticket="It hangs.", seen=[], backend=backend)
    sent = backend.selects[0][1]
    assert plan.prefix_tokens == len(sent)
    assert sent == chat_ids([("system", "Sort."), ("user", "It hangs.")], generation_prompt=True)


def test_without_reads_all_is_known_and_no_backend_is_needed() -> None:
    @function
    def program(s):
        s.set("given", 3)
        s += "One" * s["given"] + gen("x") + "two"  # a value that the program set itself is no read of the model's

    plan = program.explain()
    assert plan.whole and plan.stopped is None and plan.prefix_tokens is None
    assert plan.prefix_chars == 9 and len(plan.asked) == 1
    assert str(plan).endswith("this is all of it")


@pytest.mark.parametrize("read", ["text", "join", "stream", "meta", "messages", "usage"])
def test_every_kind_of_read_ends_the_plan(backend: FakeBackend, read: str) -> None:
    reached: list[str] = []

    @function
    def program(s):
        s += "a" + gen("x")
        fork = s.fork(1)
        try:
            if read == "text":
                s.text()
            elif read == "join":
                fork.join()
            elif read == "stream":
                list(s.text_iter("x"))
            elif read == "meta":
                s.meta("x")
            elif read == "messages":
                s.messages()
            else:
                _ = s.usage
        except Exception:  # noqa: BLE001 - a body that catches everything
            reached.append("caught")
        reached.append("went on")

    plan = program.explain(backend=backend)
    assert not plan.whole and not reached and plan.prefix_tokens == len(encode("a"))


def test_async_bodies_and_failing_ones(backend: FakeBackend) -> None:
    @function
    async def waits(s):
        s += "a" + gen("x")
        await s.aget("x")
        raise AssertionError("after the read")

    @function
    def wrong(s):
        s += "a" + gen("x")
        s["y"]

    plan = waits.explain(backend=backend)
    assert plan.stopped is not None and str(plan.stopped) == line_of(waits, 3)
    with pytest.raises(UnknownVariable, match="there are: x"):
        wrong.explain(backend=backend)
    with pytest.raises(TypeError):
        triage.explain(backend=backend)
