"""Which rows guess, from which source, how much: the scheduler asks while it plans, and reports what came of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from radixrt.errors import RadixrtError
from radixrt.messages import StepResult
from radixrt.scheduler.batch import PlannedRow
from radixrt.scheduler.drafts.certain import foreword, needs_no_sample, take_certain
from radixrt.scheduler.drafts.cost import StepCost
from radixrt.scheduler.drafts.ending import Endings
from radixrt.scheduler.drafts.forced import ForcedSource
from radixrt.scheduler.drafts.guess import NOTHING, DraftSource, Guess
from radixrt.scheduler.drafts.model import ModelSource
from radixrt.scheduler.drafts.rates import best_length
from radixrt.scheduler.drafts.tree import BRANCH_TOKENS, MOST_TOKENS, TreeSource
from radixrt.scheduler.drafts.walk import useful, walk
from radixrt.scheduler.requests import Limits, Row

AHEAD = 0.08
"""What planning ahead saves, in steps: a guess must be expected to save more, or the next step is planned without."""


@dataclass(eq=False)
class Drafter:
    """The sources in order of preference: the first that has something for a row is taken."""

    limits: Limits
    sources: list[DraftSource] = field(default_factory=list)
    cost: StepCost = field(default_factory=StepCost)
    model: ModelSource | None = None
    tree: TreeSource | None = None
    endings: Endings = field(default_factory=Endings)
    _forced_at: int = -1
    proposed: dict[str, int] = field(default_factory=dict)
    """Tokens verified, by source."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Of these, tokens that held."""

    @classmethod
    def of(cls, limits: Limits, capacity: int) -> Drafter:
        """The sources that `limits` names; `capacity`: slots of the pool, and so of what the tree can hold."""
        drafter = cls(limits, cost=StepCost(measuring=limits.max_draft_rows is None))
        for name in limits.draft_sources if limits.max_drafts else ():
            if name == "forced":
                drafter.sources.append(ForcedSource())
            elif name == "tree":
                drafter.tree = TreeSource(min(MOST_TOKENS, max(capacity, 1024)))
                drafter.sources.append(drafter.tree)
            elif name == "model":
                drafter.model = ModelSource(drafter.cost)
                drafter.sources.append(drafter.model)
        names = [source.name for source in drafter.sources]
        drafter._forced_at = names.index("forced") if "forced" in names else -1
        drafter.proposed = {source.name: 0 for source in drafter.sources}
        drafter.accepted = dict(drafter.proposed)
        return drafter

    # --- planning -------------------------------------------------------------------------------------------------

    def holds(self, rows: list[Row]) -> bool:
        """No step is planned ahead: what the rows can guess once their tokens are known is expected to save more, or
        many of them are expected to end with those tokens: they would be in that step for nothing, and newcomers not.

        Nor while guesses are under way: their rows would miss the step.
        """
        if not self.sources or not rows:
            return False
        if any(row.drafting for row in rows):
            return True
        price, wide = self.cost.price(len(rows)), self._wide(len(rows))
        return sum(self._gain(row, price, wide) for row in rows) > AHEAD * len(rows)

    def _wide(self, rows: int) -> bool:
        """The step has too many rows for guesses; what is forced is guessed in any step, for it holds."""
        most = self.limits.max_draft_rows
        return rows > most if most is not None else self.cost.price(rows) > 0.95

    def _gain(self, row: Row, price: float, wide: bool) -> float:
        """What the row is expected to save where nothing is planned ahead, in steps."""
        if not row.pending:
            return 0.0  # what it can guess it can guess now
        ends = self.endings.odds(row)
        return ends * (AHEAD + price) + (1.0 - ends) * self._guess_gain(row, price, wide)

    def _guess_gain(self, row: Row, price: float, wide: bool) -> float:
        """Tokens that the row's next guess is expected to save, less what verifying it costs."""
        for source in self.sources:
            if wide and source.name != "forced":
                continue
            odds, most = source.expect(row)
            length = best_length(odds, price, min(most, self.limits.max_drafts))
            if length:
                saved = sum(odds**i for i in range(1, length + 1)) - length * price
                return saved if row.matcher is not None and source.name == "forced" else odds * saved
        return 0.0

    def propose(self, row: Row, most: int, rows: int) -> Guess:
        """At most `most` tokens that the row, whose tokens are all known, may sample next, in a step of about `rows`.

        Nothing where the verification would cost more than it is expected to save.
        """
        most = min(most, self.limits.max_drafts, row.left - 1)
        if most < 1 or row.pending:
            return NOTHING
        price, wide = self.cost.price(max(rows, 1)), self._wide(rows)
        if 1.0 - self.endings.odds(row) <= price:
            # Even a guess that holds would count only where the row goes on behind the sample that is due.
            return NOTHING
        for source in self.sources:
            if wide and source.name != "forced":
                continue
            guess = self._fitting(row, source.propose(row, most), most, price)
            if guess.chain:
                return guess
        return NOTHING

    def _fitting(self, row: Row, guess: Guess, most: int, price: float) -> Guess:
        """The guess as far as it pays, ends nowhere and is allowed."""
        if not guess.chain:
            return NOTHING
        jumps = self.jumps(row)
        if row.matcher is not None and guess.source != "forced":
            found = walk(row.matcher, self._open_ended(row, guess.chain), guess.odds, price, most, jumps=jumps)
            chain, own = found.chain, found.own
        else:
            chain = self._open_ended(row, guess.chain[: best_length(guess.odds, price, most)])
            if row.matcher is not None:
                chain = chain[: useful(row.matcher, chain, jumps=jumps)]
            own = len(chain)
        if not chain:
            return NOTHING
        branches = []
        for branch in guess.branches:
            length = 1 + best_length(guess.odds, price, BRANCH_TOKENS - 1)
            tokens = self._open_ended(row, branch.tokens[: min(length, row.left - 1 - branch.fork)])
            if branch.odds <= price or branch.fork >= own or not tokens:
                continue
            if row.matcher is not None:
                tokens = tokens[: useful(row.matcher, tokens, chain[: branch.fork], jumps=jumps)]
            if tokens:
                branches.append(replace(branch, tokens=tokens))
        return replace(guess, chain=chain, branches=tuple(branches)).cut(most)

    def _open_ended(self, row: Row, tokens: list[int]) -> list[int]:
        """The tokens before the first that may end the row: behind an end nothing counts."""
        ends = (*self.limits.eos_token_ids, *row.request.sampling.stop_token_ids)
        for i, token in enumerate(tokens):
            if token in ends:
                return tokens[:i]
        return tokens

    def wanted(self, row: Row, guess: Guess, rows: int) -> int:
        """How many tokens the draft model shall guess behind the row's step."""
        if self.model is None or self._wide(rows) or row.left - 1 - len(guess.chain) < 2:
            return 0
        for source in self.sources:
            if source is self.model:
                break
            if source.expect(row)[1]:
                return 0  # it is preferred
        return self.model.wanted(row, min(self.limits.max_drafts, row.left - 2), rows)

    # --- what is certain -------------------------------------------------------------------------------------------

    def jumps(self, row: Row) -> bool:
        """Tokens that the row's constraint leaves no choice about are taken without a step."""
        return self._forced_at >= 0 and row.matcher is not None and needs_no_sample(row.request.sampling)

    def certain(self, row: Row) -> list[int]:
        """Tokens that come next whatever is sampled, none where the row's tokens must be sampled; its matcher has moved
        behind them. Raises what the matcher raises where it gives up."""
        return self._jumped(row, take_certain(row, row.request.max_tokens - row.output)) if self.jumps(row) else []

    def begin(self, row: Row) -> None:
        """A row has its matcher: what is certain at its beginning becomes its foreword."""
        if not self.jumps(row):
            return
        with suppress(RadixrtError):  # a constraint that gave up: the row's first mask says so
            row.foreword = self._jumped(row, foreword(row))
            row.tokens.extend(row.foreword)
            row.kept += len(row.foreword)

    def _jumped(self, row: Row, tokens: list[int]) -> list[int]:
        name = self.sources[self._forced_at].name
        for counts in (self.proposed, self.accepted):
            counts[name] += len(tokens)
        row.request.draft_tokens += len(tokens)
        row.request.accepted_draft_tokens += len(tokens)
        return tokens

    # --- what came of it ------------------------------------------------------------------------------------------

    def admitted(self, row: Row) -> None:
        for source in self.sources:
            source.admitted(row)

    def learn(self, row: Row, token: int, *, certain: bool = False) -> None:
        """The row's next token is known, and among its tokens already; `certain`: its constraint left nothing else."""
        for source in self.sources:
            source.learn(row, token, certain=certain)

    def sampled(self, row: Row) -> None:
        """A sample of the row has come."""
        self.endings.sampled(row)

    def ended(self, row: Row) -> None:
        self.endings.ended(row)
        for source in self.sources:
            source.ended(row)

    def verified(self, row: Row, guess: Guess, accepted: int) -> None:
        """Of a guess `accepted` tokens held, on the chain or on a branch."""
        self.proposed[guess.source] += guess.size
        self.accepted[guess.source] += accepted
        row.request.draft_tokens += guess.size
        row.request.accepted_draft_tokens += accepted
        for source in self.sources:
            if source.name == guess.source:
                source.verified(row, len(guess.chain), min(accepted, len(guess.chain)))

    def receive(self, asked: list[PlannedRow], result: StepResult) -> None:
        """The draft model's guesses for the entries of a step that asked, in their order; -1 fills a line up. They
        stand behind the row's tokens, but for a token that was foretold: then the row has gone on since."""
        if self.model is None or result.proposals is None:
            return
        self.cost.drafted(result.draft_passes, result.draft_s)
        for item, line in zip(asked, result.proposals.tolist(), strict=True):
            if isinstance(item.row, Row):
                self.model.receive(item.row, [token for token in line if token >= 0 and item.foretold < 0])

    def forget(self, where: Callable[[Hashable], bool] | None = None) -> None:
        """The tree was flushed, in the namespaces that `where` accepts: forget what it held."""
        if self.tree is not None:
            self.tree.forget(where)
