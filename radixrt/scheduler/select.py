"""Selects: options scored over a prompt, each request in one step where it fits.

A select samples nothing, so nothing of it waits for a result: its tokens are all known, enter the prefix tree as they
are planned, and its locks are gone with its last planned token. It is planned after the running rows and before new
ones; what does not fit the step goes into the next.

    add --> waiting: a trie and a stack of segments --plan--> all planned --settle--> SelectScores

Under pressure it is cheap to interrupt: it gives back its locks (`relieve`), keeps the scores it has, and makes a new
trie of what is still wanted. It never takes slots from rows; but while the first select waits for slots, no new row is
let in, so it gets them when those that run are done.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.cache import Ids, Miss, Node, PrefixCache, explain
from radixrt.errors import RadixrtError
from radixrt.messages import EnqueueSelect, FromScheduler, Rejected, Score, ScoreSpec, SelectScores
from radixrt.results import Usage
from radixrt.scheduler.admission import check_select
from radixrt.scheduler.batch import PlannedRow
from radixrt.scheduler.memory import report_of
from radixrt.scheduler.requests import Alone, Limits, State
from radixrt.scheduler.stats import Stats
from radixrt.scheduler.trie import Path, Segment, Taker, build_trie, ids


@dataclass(eq=False)
class Group:
    """Options behind one head: the prompt, or what stands before them when the prompt is left out."""

    head: Ids
    options: list[Ids]
    logprobs: list[list[float]] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    """How many tokens of each option have their score planned."""
    stack: list[Segment] = field(default_factory=list)
    """Segments to plan, the next one last; each one's parent holds its lock."""
    reached: int = 0
    """How far the head has been planned, before any restart."""

    def __post_init__(self) -> None:
        self.logprobs = [[0.0] * len(option) for option in self.options]
        self.planned = [0] * len(self.options)

    @property
    def over(self) -> bool:
        return all(count == len(option) for count, option in zip(self.planned, self.options, strict=True))

    def start(self) -> None:
        """A trie of what is still to be scored."""
        left = [
            Path(i, option, self.planned[i]) for i, option in enumerate(self.options) if self.planned[i] < len(option)
        ]
        self.stack = [build_trie(self.head, left)]


@dataclass(eq=False)
class Select:
    """One request: its groups in the order in which they are planned."""

    id: int
    namespace: Hashable
    priority: int
    arrived: float
    groups: list[Group]
    prompt_tokens: int
    missing: int
    """Scores that have not arrived."""
    cached_tokens: int = 0
    started: float | None = None
    report: bool = False
    """It wants to know why not more of its prompt was cached."""
    miss: Miss | None = None
    over: bool = False
    held: list[Segment] = field(default_factory=list)
    """Segments that hold a lock."""
    step: int = -1
    """The last step that it is in."""

    @property
    def all_planned(self) -> bool:
        return all(group.over for group in self.groups)


@dataclass(eq=False)
class Piece:
    """What stands for a row in a step: a run of one segment, without a number, since nothing is sampled for it."""

    select: Select
    group: Group
    node: Node
    takers: list[list[Taker]]
    """Who gets each of the step's scores for this piece."""
    id: int = -1

    @property
    def state(self) -> State:
        return State.FINISHED if self.select.over else State.RUNNING

    def take(self, score: Score) -> None:
        """Scores that have arrived, to all that share them."""
        for value, takers in zip(score.logprobs.tolist(), self.takers, strict=True):
            for index, j in takers:
                self.group.logprobs[index][j] = value
            self.select.missing -= len(takers)


@dataclass(eq=False)
class Selects:
    """The selects that wait or are under way. One method an event, as in `core.Scheduler`."""

    cache: PrefixCache
    limits: Limits
    clock: Callable[[], float]
    stats: Stats
    outbox: list[FromScheduler]
    prefix_cache: bool = True
    open: dict[int, Select] = field(default_factory=dict)
    waiting: list[Select] = field(default_factory=list)
    """Those with something to plan, by priority and arrival."""
    blocked: bool = False
    """The first one found no slot in the last plan: nobody new may take any."""
    relief: Callable[[], bool] = lambda: False
    """Asks everybody who locks what is not in the step being planned to give it up; whether anybody did."""
    rows_run: Callable[[], bool] = lambda: False
    """Whether a row runs, and so will give back what it holds."""
    _ending: list[tuple[Select, Segment]] = field(default_factory=list)
    _step: int = 0

    def __len__(self) -> int:
        return len(self.open)

    @property
    def started(self) -> int:
        return sum(select.started is not None for select in self.open.values())

    @property
    def unstarted(self) -> int:
        return len(self.open) - self.started

    def add(self, message: EnqueueSelect) -> None:
        """Queue a select, or answer Rejected."""
        try:
            check_select(message, self.limits, self.cache.capacity)
        except RadixrtError as error:
            self.outbox.append(Rejected(request_id=message.request_id, error=error.info()))
            return
        options = [ids(option) for option in message.options]
        groups = [Group(ids(message.prompt.tolist()), options)]
        if message.base.size:
            groups.append(Group(ids(message.base.tolist()), options))
        wanted = sum(len(option) for option in options)
        select = Select(
            id=message.request_id,
            namespace=message.namespace if self.prefix_cache else Alone(message.request_id),
            priority=message.priority,
            arrived=self.clock(),
            groups=groups,
            prompt_tokens=sum(len(group.head) for group in groups) + wanted * len(groups),
            missing=wanted * len(groups),
            report=message.return_cache_report,
        )
        self.open[select.id] = select
        bisect.insort(self.waiting, select, key=lambda one: (one.priority, one.arrived))

    def cancel(self, request_id: int) -> None:
        """Drop a select; an unknown id is ignored."""
        select = self.open.get(request_id)
        if select is not None:
            self._end(select, "abort")

    def plan(self, step: int, budget: int, *, shared: bool, leftover: list[int]) -> list[PlannedRow]:
        """The pieces that go into this step, `budget` tokens at most; half of that where it is `shared` with rows that
        wait. `leftover`: slots that turn out to be duplicates, to be released when the step is planned."""
        pieces: list[PlannedRow] = []
        budget = max(budget // 2, 1) if shared and budget else budget
        self.blocked, self._step = False, step
        for select in list(self.waiting):
            if not budget or self.blocked:
                break
            budget -= self._plan_select(select, budget, pieces, leftover)
        return pieces

    def end_of_plan(self) -> None:
        """The step is laid out: what is read in it need not be kept any more, as steps run in order."""
        for select, segment in self._ending:
            self._release(select, segment)
        self._ending.clear()

    def relieve(self) -> bool:
        """Give back the locks of all selects that are not in the step being planned; whether there were any."""
        held = [select for select in self.waiting if select.held and select.step != self._step]
        for select in held:
            self._restart(select)
        return bool(held)

    def settle(self, piece: Piece, score: Score | None) -> None:
        """A piece has been computed."""
        select = piece.select
        if select.over:
            return
        if score is not None:
            piece.take(score)
        if not select.missing:
            usage = self._end(select, "stop")
            first, *others = select.groups
            bare = others[0].logprobs if others else []
            self.outbox.append(
                SelectScores(request_id=select.id, logprobs=first.logprobs, unconditional=bare, usage=usage)
            )

    def fail(self, error: RadixrtError) -> None:
        """Everything that was computed is lost: all selects that have begun fail."""
        for select in [one for one in self.open.values() if one.started is not None]:
            self._end(select, "error")
            self.outbox.append(Rejected(request_id=select.id, error=error.info()))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _plan_select(self, select: Select, budget: int, pieces: list[PlannedRow], leftover: list[int]) -> int:
        """Plan as much of one select as fits; how many tokens."""
        used = 0
        for group in select.groups:
            if group.over:
                continue
            if not group.stack:
                group.start()
            while group.stack and used < budget:
                piece = self._plan_piece(select, group, budget - used, leftover)
                if piece is None:
                    self.blocked = True
                    return used
                used += piece.slots.size
                pieces.append(piece)
            if group.stack:
                return used
        self.waiting.remove(select)
        return used

    def _plan_piece(self, select: Select, group: Group, budget: int, leftover: list[int]) -> PlannedRow | None:
        """The next tokens of the segment on top of the stack; None where there is no slot for any."""
        segment = group.stack[-1]
        select.step = self._step
        node = self._locate(select, group, segment)
        start = segment.start + segment.planned
        slots = self._slots(min(len(segment.tokens) - segment.planned, budget), node)
        if slots is None:
            return None
        if select.started is None:
            select.started = self.clock()
        end = start + slots.size
        tokens = segment.tokens[segment.planned : segment.planned + slots.size].tolist()
        segment.node, duplicates = self.cache.tree.extend(node, tokens, slots.tolist())
        leftover.extend(slots[:duplicates].tolist())
        segment.planned += slots.size
        if segment.parent is None:
            group.reached = max(group.reached, end)
        targets = segment.take(start, end)
        for takers in targets.values():
            for index, j in takers:
                group.planned[index] = j + 1
        if segment.planned == len(segment.tokens):
            group.stack.pop()
            group.stack.extend(reversed(segment.children))
            if not segment.unstarted:
                self._ending.append((select, segment))
        return PlannedRow(
            row=Piece(select, group, segment.node, list(targets.values())),
            start=start,
            in_tree=start,
            own=np.empty(0, dtype=np.int32),
            tokens=tokens,
            slots=slots,
            sample=False,
            score=_spec(targets, start) if targets else None,
        )

    def _locate(self, select: Select, group: Group, segment: Segment) -> Node:
        """Where the segment goes on in the tree, locked for it. Of a head the longest prefix that is there by now is
        taken, which others may have computed since the last step."""
        tree = self.cache.tree
        if segment.node is None and segment.parent is not None:
            above = segment.parent
            if above.node is None:
                raise RuntimeError("a segment is planned after the one above it")
            segment.node = above.node
            tree.lock(segment.node)
            select.held.append(segment)
            above.unstarted -= 1
            if not above.unstarted:
                self._release(select, above)
        elif segment.parent is None:
            limit = min(segment.first_target, len(segment.tokens) - 1)
            if segment.node is None or tree.probe(select.namespace, segment.tokens, limit) > segment.planned:
                node, length = tree.match(select.namespace, segment.tokens, limit)
                if select.report and select.started is None and length < limit and group is select.groups[0]:
                    select.miss = explain(node, segment.tokens, length)
                tree.lock(node)
                tree.hit(node, select.priority)
                if segment.node is None:
                    self.cache.count_hits(node)
                    select.held.append(segment)
                else:
                    tree.unlock(segment.node)
                select.cached_tokens += max(length - group.reached, 0)
                group.reached = max(group.reached, length)
                segment.node, segment.planned = node, length
        if segment.node is None:
            raise RuntimeError("a segment has no place in the tree")
        return segment.node

    def _slots(self, count: int, node: Node) -> np.ndarray | None:
        """`count` slots, or as many as there are; None if there are none, even without the locks of other selects."""
        after = node.slots[-1] if node.slots else None
        while count > self.cache.available and self.relief():
            pass
        if not self.cache.available and not self.rows_run():
            self.cache.pins.give_way(count)  # nobody is there to wait for
        count = min(count, self.cache.available)
        return self.cache.allocate(count, after) if count else None

    def _restart(self, select: Select) -> None:
        """Back to waiting, without locks; the scores that are planned stay planned."""
        for segment in list(select.held):
            self._release(select, segment)
        for group in select.groups:
            group.stack = []

    def _release(self, select: Select, segment: Segment) -> None:
        select.held.remove(segment)
        self._unlock(segment)

    def _unlock(self, segment: Segment) -> None:
        if segment.node is not None:
            self.cache.tree.unlock(segment.node)
            segment.node = None

    def _end(self, select: Select, outcome: str) -> Usage:
        """Take it out; what it held is free. Steps under way may still compute for it: they come before any later
        step that is given its slots."""
        if select in self.waiting:
            self.waiting.remove(select)
        self._restart(select)
        select.over = True
        del self.open[select.id]
        now = self.clock()
        usage = Usage(
            prompt_tokens=select.prompt_tokens,
            cached_tokens=select.cached_tokens,
            queue_s=(select.started if select.started is not None else now) - select.arrived,
            ttft_s=now - select.arrived,
            total_s=now - select.arrived,
            cache=report_of(select.prompt_tokens, select.cached_tokens, select.miss) if select.report else None,
        )
        self.stats.finished_request(usage, outcome)
        return usage


def _spec(targets: dict[tuple[int, int], list[Taker]], start: int) -> ScoreSpec:
    """What the runner is asked for a piece that begins at depth `start`."""
    depths: Sequence[int] = [depth - start for depth, _ in targets]
    return ScoreSpec(
        row_index=0,
        first=0,
        targets=np.array([token for _, token in targets], dtype=np.int32),
        at=np.array(depths, dtype=np.int32),
    )
