"""What has come of a program request's gens and selects, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.collect import Collector
from radixrt.errors import InvalidRequest
from radixrt.results import Selection
from radixrt.segments import Branched, Chosen, Gen, Kept, Opened, Part, ProgramEvent, ProgramItem, Select


@dataclass
class GenTrack:
    """What has come of one gen."""

    samples: int
    opened: Opened | None = None
    kept: Kept | None = None
    collector: Collector = field(init=False)

    def __post_init__(self) -> None:
        self.collector = Collector(self.samples)

    @property
    def done(self) -> bool:
        return self.collector.done and self.kept is not None


@dataclass
class SelectTrack:
    """What has come of one select."""

    opened: Opened | None = None
    selection: Selection | None = None

    @property
    def done(self) -> bool:
        return self.selection is not None


class Tracks:
    """What has come of a program's gens and selects, by index."""

    def __init__(self) -> None:
        self.gens: dict[int, GenTrack] = {}
        self.selects: dict[int, SelectTrack] = {}

    def __len__(self) -> int:
        return len(self.gens) + len(self.selects)

    def expect(self, item: ProgramItem) -> None:
        """What is to come of an item that is appended; InvalidRequest for an index that is taken."""
        if not isinstance(item, Gen | Select):
            return
        if item.index in self.gens or item.index in self.selects:
            raise InvalidRequest(f"the program has a gen or a select of index {item.index} already", param="index")
        if isinstance(item, Gen):
            self.gens[item.index] = GenTrack(item.sampling.n)
        else:
            self.selects[item.index] = SelectTrack()

    def note(self, event: ProgramEvent) -> None:
        if isinstance(event, Branched):
            return
        if isinstance(event, Chosen):
            self.selects[event.index].selection = event.selection
        elif isinstance(event, Opened):
            track = self.gens.get(event.index) or self.selects[event.index]
            track.opened = event
        elif isinstance(event, Part):
            self.gens[event.index].collector.add(event.delta)
        else:
            self.gens[event.index].kept = event

    @property
    def done(self) -> bool:
        return all(gen.done for gen in self.gens.values()) and all(select.done for select in self.selects.values())
