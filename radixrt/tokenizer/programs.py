"""Programs in the tokenizer process: items become segments over ids, tokens become text, and the next item follows.

A program's conversation is grown here, in the one way that `radixrt.conversation` has. A gen is sent to the scheduler
with the text before it. What follows it is sent ahead where it is certain: text is tokenized alike whatever the gen
will write, so the scheduler goes on by itself. It is not certain behind a gen with stop strings (they are found here,
and the row is cut back to before them) and where a turn ends (its template may look at what was written): then the next
segment leaves when the gen has ended, one hop inside the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from radixrt.backend import Tokens
from radixrt.calls import checked_tools
from radixrt.checkpoint import Vocabulary
from radixrt.conversation import Turn, at_once, tokenize_text
from radixrt.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded, RadixrtError
from radixrt.messages import (
    AppendProgram,
    Cancel,
    Failed,
    Namespace,
    OpenProgram,
    ProgramNews,
    RunSegments,
    SelectScores,
    ToClient,
    TokenDelta,
    ToScheduler,
)
from radixrt.segments import (
    MAX_CHILDREN,
    BeginTurn,
    Branch,
    Branched,
    EndTurn,
    Gen,
    Heal,
    ProgramItem,
    Segment,
    Select,
    Start,
    Text,
)
from radixrt.tokenizer.detokenize import adds_space
from radixrt.tokenizer.encode import PromptEncoder, all_special
from radixrt.tokenizer.healing import Healer
from radixrt.tokenizer.program import LocalTokens, Program, Running, Story, check_items, common, opened, turn_of
from radixrt.tokenizer.program_output import ProgramOutput
from radixrt.tokenizer.program_select import ProgramSelects
from radixrt.tokenizer.requests import RequestTable
from radixrt.tokenizer.sample import Sample

log = logging.getLogger(__name__)

MAX_PROGRAMS = 16_384
"""Open programs of all clients, those that wait for their parents included."""


class ProgramTable:
    """All open programs; messages in, messages out."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PromptEncoder,
        requests: RequestTable,
        send_client: Callable[[bytes, ToClient], None],
        send_scheduler: Callable[[ToScheduler], bool],
        model_name: str,
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._requests = requests
        self._send_client = send_client
        self._send_scheduler = send_scheduler
        self._model_name = model_name
        self._local = LocalTokens(encoder, vocabulary)
        self._healer = Healer(vocabulary)
        self._output = ProgramOutput(vocabulary, self._local, self._healer, send_scheduler, self._forget)
        self._selects = ProgramSelects(vocabulary, encoder, self._local, requests.next_id, send_scheduler)
        self._adds_space = adds_space(vocabulary)
        self._programs: dict[int, Program] = {}
        self._by_client: dict[tuple[bytes, int], Program] = {}
        self._by_number: dict[int, Program] = {}

    def __len__(self) -> int:
        return len(self._programs)

    # --- from clients ------------------------------------------------------------------------------------------------

    def open(self, peer: bytes, message: OpenProgram) -> None:
        """Raises RadixrtError for a program that cannot begin."""
        if (peer, message.request_id) in self._by_client:
            raise InvalidRequest(f"request_id {message.request_id} is already open", param="request_id")
        self._requests.check_new(peer, message.request_id)
        if len(self._programs) >= MAX_PROGRAMS:
            raise Overloaded(f"there are {MAX_PROGRAMS} open programs: try again later")
        parent = None
        if message.parent is not None:
            parent = self._by_client.get((peer, message.parent))
            if parent is None:
                raise Aborted("the program that this one begins from has ended", code="cancelled")
        check_items(message.items, 0)
        program = Program(
            id=self._requests.next_id(),
            peer=peer,
            client_id=message.request_id,
            namespace=Namespace(model=self._model_name, tenant=message.tenant, salt=message.cache_salt),
            priority=message.priority,
            stream=message.stream,
            closed=message.closed,
            waits=parent is not None,
            items=deque(message.items),
        )
        self._programs[program.id] = self._by_client[peer, program.client_id] = program
        if parent is not None:
            parent.children.add(program.client_id)
            return
        self._go_on(program)

    def append(self, peer: bytes, message: AppendProgram) -> None:
        program = self._by_client.get((peer, message.request_id))
        if program is None:
            return
        with self._failing(program):
            if program.closed and message.items:
                raise InvalidRequest("nothing can be appended to a program that was closed")
            check_items(message.items, len(program.items))
            program.items.extend(message.items)
            program.closed = program.closed or message.closed
        self._go_on(program)

    def abort(self, peer: bytes, client_id: int) -> None:
        """End a program that nobody waits for; one that is not open is ignored."""
        program = self._by_client.get((peer, client_id))
        if program is not None:
            self._end(program)

    def drop(self, peer: bytes) -> None:
        """The client is gone."""
        for program in [p for p in self._programs.values() if p.peer == peer]:
            self._end(program)

    # --- from the scheduler ------------------------------------------------------------------------------------------

    def of_number(self, number: int) -> Program | None:
        """The program of a gen's or a select's request id."""
        return self._by_number.get(number)

    def tokens(self, program: Program, item: TokenDelta) -> None:
        """New tokens of one of its gens; `tell` must follow."""
        with self._failing(program):
            self._output.take(program, item)
        self._go_on(program, tell=False)

    def scored(self, program: Program, scores: SelectScores) -> None:
        """One of its selects can be decided."""
        choosing = program.choosing
        self._forget(program, scores.request_id)
        if choosing is not None and choosing.request.id == scores.request_id:
            with self._failing(program):
                self._selects.take(program, choosing, scores)
            self._go_on(program)

    def rejected(self, program: Program, error: RadixrtError) -> None:
        """One of its gens or selects failed, and so does all that would follow."""
        self._fail(program, error)

    def tell(self, programs: Sequence[Program]) -> None:
        """Send what there is to say of programs."""
        for program in programs:
            if program.events:
                events, program.events = program.events, []
                self._send_client(program.peer, ProgramNews(request_id=program.client_id, events=events))

    # --- going on ----------------------------------------------------------------------------------------------------

    def _go_on(self, program: Program, *, tell: bool = True) -> None:
        """Do the items up to the next gen, and send what is certain beyond it."""
        if program.id not in self._programs:
            return
        with self._failing(program):
            while program.items and not program.held:
                self._do(program, program.items.popleft())
            self._send_ahead(program)
        if tell:
            self.tell([program])
        if program.done and program.id in self._programs:
            self.tell([program])
            self._end(program)

    def _do(self, program: Program, item: ProgramItem) -> None:
        story = program.story
        match item:
            case Start():
                self._restart(program, item)
            case Text(text=text):
                story.add_text(text)
            case BeginTurn(role=role, name=name, tool_call_id=call):
                if story.turn is not None:
                    raise InvalidRequest(
                        f"a turn of {role} begins inside a turn of {story.turn.role}: turns do not nest"
                    )
                story.open_turn(Turn(role, name, call))
            case EndTurn():
                story.close_turn()
            case Branch(children=children):
                self._branch(program, children)
            case Gen():
                self._generate(program, item)
            case Select():
                number = self._selects.begin(program, item)
                program.numbers.add(number)
                self._by_number[number] = program

    def _restart(self, program: Program, start: Start) -> None:
        turn = start.turn
        program.story = Story(
            ids=self._encoder.checked(start.ids),
            pending=start.pending,
            turns=[turn_of(said).message() for said in start.turns],
            rendered=start.rendered,
            unclosed=start.unclosed,
            prompt_adds_text=start.prompt_adds_text,
            prompted=start.prompted,
            tools=checked_tools(start.tools),
            turn=None if turn is None else turn_of(turn),
        )
        if not 0 <= start.rendered <= len(start.turns):
            raise InvalidRequest(f"rendered must be between 0 and {len(start.turns)}", param="rendered")

    def _branch(self, program: Program, numbers: list[int]) -> None:
        if len(numbers) > MAX_CHILDREN:
            raise InvalidRequest(f"a program branches into at most {MAX_CHILDREN}, not {len(numbers)}")
        program.events.append(Branched(index=-1, children=numbers))
        self.tell([program])  # so that nobody hears of a child before
        for number in numbers:
            child = self._by_client.get((program.peer, number))
            if child is None:
                continue  # it was aborted before it began
            if not child.waits or number not in program.children:
                raise InvalidRequest(f"request {number} is not a program that waits for this one", param="children")
            program.children.discard(number)
            child.waits, child.story, child.parent = False, program.story.copy(), program.id
            child.sent = list(program.sent)
            if program.known:  # at once, while what it shares is locked
                self._run(child, len(child.sent), [], like=program.id)
            self._go_on(child)

    def _generate(self, program: Program, gen: Gen) -> None:
        story = program.story
        self._encoder.check_sampling(gen.sampling)
        whole = list(story.ids)
        story.told, story.anew = [], None
        if gen.tools:
            story.show_tools(checked_tools(gen.tools))
        text = at_once(story.flush(self._local))
        if not story.ids:
            raise InvalidRequest("there is no text to go on from, and the model has no BOS token", param="prompt")
        program.events.append(opened(story, gen.index, whole))
        if program.ahead and program.ahead[0][0] is gen:
            _, segment = program.ahead.popleft()
            program.sent = list(story.ids)
        else:
            heal = self._healer.heal(self._requests.next_id(), story.ids, text, gen)
            stands = common(program.sent, story.ids)
            if heal is not None:
                stands = min(stands, len(story.ids) - 1)
            segment = self._segment(gen, story.ids[stands:], heal)
            self._run(program, stands, [segment])
        self._begin(program, gen, segment, text)

    def _begin(self, program: Program, gen: Gen, segment: Segment, text: Tokens | None) -> None:
        story = program.story
        strip = self._adds_space and all_special(self._vocabulary, np.asarray(story.ids, dtype=np.int32))
        count = range(gen.sampling.n)
        program.running = Running(
            gen=gen,
            segment=segment,
            samples=[Sample(i, self._vocabulary, gen.sampling, strip_space=strip) for i in count],
            base=len(story.ids),
            piece=text.pieces[-1] if text is not None and segment.heal is not None else b"",
        )

    def _segment(self, gen: Gen, ids: Sequence[int], heal: Heal | None) -> Segment:
        return Segment(
            request_id=self._requests.next_id(),
            ids=np.asarray(ids, dtype=np.int32),
            sampling=gen.sampling,
            constraint=gen.constraint,
            heal=heal,
        )

    def _send_ahead(self, program: Program) -> None:
        """Segments whose text is certain, behind the gen that runs."""
        last = program.ahead[-1][0] if program.ahead else program.running.gen if program.running is not None else None
        if last is None:
            return
        found: list[Segment] = []
        text, skip = "", bool(program.ahead)
        for item in program.items:
            if skip:
                skip = item is not last
                continue
            if last.sampling.stop or last.sampling.stop_regex or last.sampling.n > 1:
                break
            if isinstance(item, Text):
                text += item.text
            elif isinstance(item, Gen) and not item.tools:
                self._encoder.check_sampling(item.sampling)
                tokens = at_once(tokenize_text(self._local, text, first=False)) if text else None
                ids = list(tokens.ids) if tokens is not None else []
                # Something stands before the text, whatever the gen writes: that is all that healing asks of it.
                heal = self._healer.heal(self._requests.next_id(), [0, *ids], tokens, item)
                segment = self._segment(item, ids, heal)
                found.append(segment)
                program.ahead.append((item, segment))
                text, last = "", item
            else:
                break
        if found:
            self._run(program, -1, found)

    def _run(self, program: Program, keep: int, segments: list[Segment], like: int | None = None) -> None:
        """Send segments; what the scheduler has afterwards is `sent`, when the first of them begins."""
        for segment in segments:
            for number in (segment.request_id, segment.heal.request_id if segment.heal is not None else None):
                if number is not None:
                    program.numbers.add(number)
                    self._by_number[number] = program
        if not program.known and keep > 0 and like is None:
            keep = 0
        message = RunSegments(
            program_id=program.id,
            keep=keep,
            segments=segments,
            like=like,
            namespace=program.namespace,
            priority=program.priority,
        )
        if not self._send_scheduler(message):
            raise Overloaded("the engine does not take requests at the moment: try again later")
        program.known = True
        if keep >= 0 and segments:
            program.sent = list(program.story.ids)

    # --- ends --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _failing(self, program: Program) -> Iterator[None]:
        """What goes wrong in a program ends it alone."""
        try:
            yield
        except RadixrtError as error:
            self._fail(program, error)
        except Exception:
            log.exception("a program failed")
            self._fail(program, GenerationFailed("the tokenizer failed on this program; the server's log says why"))

    def _fail(self, program: Program, error: RadixrtError) -> None:
        if program.id not in self._programs:
            return
        self.tell([program])
        self._send_client(program.peer, Failed(request_id=program.client_id, error=error.info()))
        self._end(program)

    def _forget(self, program: Program, number: int) -> None:
        program.numbers.discard(number)
        self._by_number.pop(number, None)

    def _end(self, program: Program) -> None:
        """Forget it; who waited for it fails. Once more is harmless."""
        if self._programs.pop(program.id, None) is None:
            return
        del self._by_client[program.peer, program.client_id]
        for number in list(program.numbers):
            self._forget(program, number)
        if program.choosing is not None:
            self._send_scheduler(Cancel(request_id=program.choosing.request.id))
        if program.known:
            self._send_scheduler(Cancel(request_id=program.id))
        for number in program.children:
            child = self._by_client.get((program.peer, number))
            if child is not None and child.waits:
                self._fail(child, Aborted("the program that this one begins from has ended", code="cancelled"))
