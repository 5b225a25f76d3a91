"""Program requests on a whole engine: the same tokens as by hand, no round trips, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt import Constraint, Engine, SamplingParams
from radixrt.errors import Aborted, EngineDead, InvalidRequest, RadixrtError
from radixrt.messages import AppendProgram, ChatMessage, ChatPrompt, OpenProgram, TextPrompt
from radixrt.params import ChoicesMethod
from radixrt.programs import Program
from radixrt.segments import Gen, Select, Text
from tests.waiting import until


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), check=True, dtype="float32", max_num_seqs=16) as engine:
        yield engine


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **fields)  # type: ignore[arg-type]


def assert_idle(engine: Engine) -> None:
    """Nothing runs or waits any more, and no node is locked."""

    def idle() -> bool:
        stats = engine.stats()
        return not (stats.running or stats.waiting or sum(node.locks for node in engine.tree()))

    until(idle, "something is left")


def ids_of(engine: Engine, text: str, *, first: bool) -> list[int]:
    return list(engine.tokenize(TextPrompt(text=text, add_special_tokens=first)).ids)


@pytest.mark.parametrize("flush", [False, True])
def test_a_program_gives_the_tokens_that_calls_by_hand_give(tiny: Engine, flush: bool) -> None:
    texts = ["One fish", " two fish", " red", " blue fish, and", " many", " more", " end"]
    kinds = [
        {"sampling_params": greedy(5)},
        {"sampling_params": SamplingParams(max_tokens=6, seed=7, temperature=1.3, top_k=50)},
        {"sampling_params": greedy(9), "constraint": Constraint(kind="regex", value="[a-z]{3,6}")},
        {"sampling_params": greedy(4, logprobs=2, repetition_penalty=1.3)},
        {"sampling_params": SamplingParams(max_tokens=4, n=3, seed=1)},
        {"sampling_params": greedy(3)},
    ]
    with tiny.program() as program:
        program.text(texts[0])
        for i, (kind, text) in enumerate(zip(kinds, texts[1:], strict=True)):
            program.gen(f"g{i}", heal=False, **kind).text(text)  # type: ignore[arg-type]
        results = [program[f"g{i}"] for i in range(len(kinds))]
    ids = ids_of(tiny, texts[0], first=True)
    for i, kind in enumerate(kinds):
        if flush:
            tiny.flush()
        by_hand = tiny.generate(ids, **kind)  # type: ignore[arg-type]
        assert [c.token_ids for c in results[i].choices] == [c.token_ids for c in by_hand.choices]
        assert [c.text for c in results[i].choices] == [c.text for c in by_hand.choices]
        assert [c.finish_reason for c in results[i].choices] == [c.finish_reason for c in by_hand.choices]
        assert results[i].usage.prompt_tokens == len(ids)
        assert results[i].usage.completion_tokens == by_hand.usage.completion_tokens
        assert (results[i].choices[0].logprobs is None) == (by_hand.choices[0].logprobs is None)
        ids += [*by_hand.token_ids, *ids_of(tiny, texts[i + 1], first=False)]
    assert_idle(tiny)


def test_a_stop_string_is_not_in_the_state(tiny: Engine) -> None:
    whole = tiny.generate("One fish", greedy(12))
    stop = whole.text[5:8]
    cut = whole.text.index(stop)
    with tiny.program() as program:
        program.text("One fish").gen("a", greedy(12, stop=(stop,)), heal=False)
        program.text(" and").gen("b", greedy(6), heal=False)
        a, b = program["a"], program["b"]
        opened = program.track(1).opened
    assert (a.text, a.choices[0].stop_reason) == (whole.text[:cut], stop)
    assert opened is not None
    ids = ids_of(tiny, "One fish", first=True)
    kept = opened.ids.tolist()
    stands = program.track(0).kept
    assert stands is not None and stands.keep == len(ids)
    prompt = [*ids, *stands.ids.tolist(), *kept]
    assert tiny.detokenize(prompt, skip_special_tokens=True) == "One fish" + a.text + " and"
    assert b.token_ids == tiny.generate(prompt, greedy(6)).token_ids
    assert_idle(tiny)


def test_turns_have_the_ids_of_a_chat(tiny: Engine) -> None:
    with tiny.program() as program:
        program.begin("system").text("Be ").text("brief.").end().begin("user").text("Hi").end()
        program.begin("assistant").gen("a", greedy(5)).end()
        program.begin("user").text("More").end().begin("assistant").text("So: ").gen("b", greedy(4), heal=False)
        a, b = program["a"], program["b"]
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi"),
        ChatMessage(role="assistant", content=a.text),
        ChatMessage(role="user", content="More"),
    ]
    first = tiny.tokenize(ChatPrompt(messages=messages[:2])).ids
    assert a.token_ids == tiny.generate(list(first), greedy(5)).token_ids
    rest = tiny.tokenize(ChatPrompt(messages=messages, after=3, after_open=True)).ids
    prompt = [*first, *a.token_ids, *rest, *ids_of(tiny, "So: ", first=False)]
    assert b.token_ids == tiny.generate(prompt, greedy(4)).token_ids
    assert b.usage.cached_tokens >= len(first) + len(a.token_ids) - 1


def test_six_gens_and_seven_texts_are_one_message(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    send = tiny._connection.send
    monkeypatch.setattr(tiny._connection, "send", lambda message: (sent.append(message), send(message))[1])
    with tiny.program() as program:
        for i in range(6):
            program.text(f"Line {i}:").gen(f"g{i}", greedy(4))
        program.text("The end.").send(closed=True)
        results = [program[f"g{i}"] for i in range(6)]
        assert program.over
    assert all(len(result.token_ids) == 4 for result in results)
    (message,) = sent
    assert isinstance(message, OpenProgram) and message.closed and len(message.items) == 13
    assert_idle(tiny)


@pytest.mark.parametrize(
    "method", ["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
)
def test_a_select_is_one_more_item_of_the_request(
    tiny: Engine, monkeypatch: pytest.MonkeyPatch, method: ChoicesMethod
) -> None:
    """Between a gen and a gen, with nothing asked of the client, and chosen and scored as a select by hand."""
    sent: list[object] = []
    send = tiny._connection.send
    monkeypatch.setattr(tiny._connection, "send", lambda message: (sent.append(message), send(message))[1])
    options = ["yes", " no", " none", "\U0001f642", "ye"]
    with tiny.program() as program:
        program.text("One fish").gen("a", greedy(4), heal=False).text(" So: ").select("b", options, method=method)
        program.text(" then").gen("c", greedy(3), heal=False).send(closed=True)
        first, chosen, last = program["a"], program.selection("b"), program["c"]
        with pytest.raises(InvalidRequest, match="no gen called 'b'; there are: a, c"):
            _ = program["b"]
    assert [type(message) for message in sent] == [OpenProgram]
    head = [*ids_of(tiny, "One fish", first=True), *first.token_ids]
    by_hand = tiny.select(head, options, method=method, text=" So: ")
    assert (chosen.index, chosen.choice, chosen.written) == (by_hand.index, by_hand.choice, by_hand.written)
    assert chosen.scores == pytest.approx(by_hand.scores, abs=1e-4) and chosen.token_ids == by_hand.token_ids
    assert (chosen.unconditional is None) == (by_hand.unconditional is None)
    rest = tiny.generate([*head, *chosen.written, *ids_of(tiny, " then", first=False)], greedy(3))
    assert last.token_ids == rest.token_ids
    assert last.usage.cached_tokens >= len(head)
    assert_idle(tiny)


def test_a_program_that_ends_while_it_selects_leaves_nothing(tiny: Engine) -> None:
    with tiny.program() as program:
        program.text("word " * 1500).select("a", ["x", "y"]).send()
    assert_idle(tiny)
    with pytest.raises(InvalidRequest, match="options"):
        tiny.program().text("a").select("a", [])
    with tiny.program() as program:
        program.text("word " * 3000).select("a", ["x", "y"])
        with pytest.raises(InvalidRequest, match="context"):
            program.selection("a")
    with tiny.program() as program:
        program.text("a").append(Select(index=0, options=["x", ""]))
        program._names["b"] = 0
        with pytest.raises(InvalidRequest, match="option"):
            program.selection("b")
    assert_idle(tiny)


def test_an_open_program_takes_more_while_it_runs(tiny: Engine) -> None:
    async def body() -> list[tuple[int, ...]]:
        async with tiny.aprogram() as program:
            program.text("One").gen("a", greedy(30), heal=False).send()
            while not program.track(0).collector.generation().token_ids:
                await program.receive()
            program.text(" two").gen("b", greedy(3), heal=False).text(" three").send()
            assert not program.track(0).done
            b = await program.get("b")
            program.gen("c", greedy(2), heal=False)
            c = await program.get("c")
            return [(await program.get("a")).token_ids, b.token_ids, c.token_ids]

    a, b, c = asyncio.run(body())
    ids = ids_of(tiny, "One", first=True)
    assert a == tiny.generate(ids, greedy(30)).token_ids
    ids += [*a, *ids_of(tiny, " two", first=False)]
    assert b == tiny.generate(ids, greedy(3)).token_ids
    ids += [*b, *ids_of(tiny, " three", first=False)]
    assert c == tiny.generate(ids, greedy(2)).token_ids
    assert_idle(tiny)


def test_branches_share_their_parents_text_and_run_at_once(tiny: Engine) -> None:
    with tiny.program() as program:
        program.text("A long beginning that is computed once, whatever comes after it.").gen("a", greedy(4))
        children: list[Program] = program.branch(3)
        for i, child in enumerate(children):
            child.text(f" Branch {i} says").gen("x", greedy(4), heal=False)
            grandchildren = child.branch(2)
            grandchildren[1].text("!").gen("y", greedy(2), heal=False)
            y = grandchildren[1]["y"]
            assert y.usage.cached_tokens >= child["x"].usage.prompt_tokens
            for grandchild in grandchildren:
                grandchild.cancel()
        stands = program["a"].usage.prompt_tokens + 4
        for child in children:
            assert child["x"].usage.cached_tokens >= stands - 1
            child.cancel()
    assert_idle(tiny)


@pytest.mark.parametrize("when", ["before", "during"])
def test_what_goes_wrong_ends_the_program_alone(tiny: Engine, when: str) -> None:
    bad = Constraint(kind="regex", value="(")
    with tiny.program() as other, tiny.program() as program:
        other.text("Other").gen("o", greedy(10)).send()
        if when == "during":
            program.text("A").gen("a", greedy(3))
        program.text("B").gen("b", greedy(3), constraint=bad).text("C").gen("c", greedy(3))
        child = program.branch(1)[0]
        child.text("D").gen("d", greedy(1))
        if when == "during":
            assert len(program["a"].token_ids) == 3
        with pytest.raises(InvalidRequest, match="regex"):
            program["b"]
        with pytest.raises(RadixrtError):
            program["c"]
        with pytest.raises(Aborted, match="has ended"):
            child["d"]
        assert len(other["o"].token_ids) == 10
    assert_idle(tiny)


def test_sizes_and_names_are_checked(tiny: Engine) -> None:
    with tiny.program() as program:
        program.text("A").gen("a", greedy(1))
        with pytest.raises(InvalidRequest, match="already"):
            program.gen("a", greedy(1))
        with pytest.raises(InvalidRequest, match="no gen called 'z'"):
            program["z"]
    for items, words in (
        ([Text(text="a")] * 5000, "4096 items"),
        ([Text(text="a" * 5_000_000)], "characters"),
        ([Text(text="a"), Gen(index=0, sampling=SamplingParams(max_tokens=100_000))], "context"),
        ([Gen(index=0, sampling=SamplingParams(logit_bias={999_999: 1.0}))], "logit_bias"),
    ):
        with tiny.program() as program:
            program.append(*items)
            with pytest.raises(RadixrtError, match=words):
                list(program)
    assert_idle(tiny)


def test_a_timeout_a_cancelled_task_and_leaving_early_stop_the_work(tiny: Engine) -> None:
    long = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0)
    with tiny.program(timeout=0.2) as program:
        program.text("A").gen("a", long).text("B").gen("b", long)
        with pytest.raises(Aborted, match="took longer") as error:
            program["b"]
        assert error.value.code == "timeout"
    assert_idle(tiny)

    async def cancelled() -> None:
        program = tiny.aprogram()
        program.text("A").gen("a", long)
        task = asyncio.create_task(program.get("a"))
        while not program.track(0).collector.generation().token_ids:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert_idle(tiny)
    with tiny.program() as program:
        program.text("A").gen("a", long)
        next(program)
        children = program.branch(2)
    with pytest.raises(Aborted):
        children[0].text("x").gen("x", greedy(1))["x"]
    assert_idle(tiny)


def test_a_closed_program_takes_nothing_more(tiny: Engine) -> None:
    with tiny.program() as program:
        program.text("A").gen("a", greedy(1)).send(closed=True)
        with pytest.raises(InvalidRequest, match="was closed"):
            program.text("B")
        number = program.number
        assert program["a"]
    tiny._connection.send(AppendProgram(request_id=number, items=[Text(text="late")]))  # ignored: it has ended
    assert_idle(tiny)


def test_a_dead_engine_answers_programs(tiny_path: Path) -> None:
    engine = Engine(str(tiny_path))
    program = engine.program()
    program.text("A").gen("a", SamplingParams(max_tokens=1500, ignore_eos=True)).send()
    next(program)
    engine._trio.processes["scheduler"].kill()
    with pytest.raises(EngineDead):
        program["a"]
    with pytest.raises(EngineDead):
        engine.program()
    engine.close()
