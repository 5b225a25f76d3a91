"""The runner's side of a tier: bytes out of the pool and into it, between steps; files and checksums in a thread.

The pool is only ever touched by the thread that runs the steps, in the order of the plans: chunks to be saved are
gathered when their turn comes, so that a later plan may write the slots, and handed to the thread; chunks to be loaded
are read by the thread, brought to where the pool is, and scattered a group at a time between two steps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch

from radixrt.messages import TierDone, TierState, TierWork
from radixrt.tiers import KEY_BYTES, Tier, TierError

log = logging.getLogger(__name__)

GROUP = 32
"""Chunks that are copied into the pool between two steps; more would be felt by the rows that decode."""
MOST_BROUGHT = 2
"""Groups that lie beside the pool at a time, waiting for their turn: on a GPU that is memory which others need."""
MOST_STAGED = 256 << 20
"""Bytes that wait to be stored; what comes on top is refused, since no step may wait for a disk."""
QUIET_S = 60.0
"""The same trouble is logged once in so long."""


@dataclass(eq=False)
class _Order:
    """One TierWork on its way through the thread."""

    work: TierWork
    began: float
    staged: np.ndarray | None = None
    """uint8[n, chunk_bytes], what is to be saved, once `ready` has returned."""
    ready: Callable[[], None] | None = None
    refused: int = 0
    loaded: list[bytearray] = field(default_factory=list)
    brought: deque[Any] = field(default_factory=deque)
    """Groups of what was loaded, as `Mover.bring` gave them."""
    wanted: int = 0
    """How many chunks are to be copied: all that were loaded, unless bringing them failed."""
    copied: int = 0
    stored: list[bytes] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)
    errors: int = 0


class Mover(Protocol):
    """Chunks out of the pool and into it."""

    def out(self, slots: np.ndarray) -> tuple[np.ndarray, Callable[[], None] | None]:
        """Chunks at slots int32[n, C] as they are now, uint8[n, bytes of a chunk], and what to wait for before they are
        read, if anything."""
        ...

    def bring(self, chunks: list[bytearray]) -> Any:
        """Chunks, as `out` gave them, to where the pool is, beside the steps; any thread may call it, and waits."""
        ...

    def into(self, slots: np.ndarray, brought: Any) -> None:
        """What `bring` gave into slots int32[n, C]."""
        ...


class HostMover:
    """For a pool in host memory."""

    def __init__(self, kv: torch.Tensor) -> None:
        self._kv = kv

    def out(self, slots: np.ndarray) -> tuple[np.ndarray, Callable[[], None] | None]:
        return copy_out(self._kv, slots), None

    def bring(self, chunks: list[bytearray]) -> list[bytearray]:
        return chunks

    def into(self, slots: np.ndarray, brought: list[bytearray]) -> None:
        copy_in(self._kv, slots, brought)


class TierWorker:
    """`take` and `advance` are for the thread that runs the steps, neither ever waits for the disk."""

    def __init__(self, tier: Tier, kv: torch.Tensor, mover: Mover | None = None) -> None:
        """kv: the pool, [layers, 2, kv_heads, slots, line], which `mover` moves chunks of; `tier` is the thread's
        alone from now on."""
        self._tier = tier
        self._mover = HostMover(kv) if mover is None else mover
        self._failed = 0
        self._staged = 0
        self._loads: deque[_Order] = deque()
        self._others: deque[_Order] = deque()
        self._work = threading.Condition()
        self._finished: deque[_Order] = deque()
        self._room = threading.Semaphore(MOST_BROUGHT)
        self._logged_at = float("-inf")
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when `advance` has something to do."""
        self.state = TierState(
            kind=tier.kind,
            keys=_key_array(tier.keys()),
            chunk_bytes=tier.chunk_bytes,
            capacity_bytes=tier.capacity_bytes,
            used_bytes=tier.used_bytes,
        )
        threading.Thread(target=self._run, daemon=True, name="tier").start()

    # --- the thread of the steps ----------------------------------------------------------------------------------

    def failed(self, step: int) -> None:
        """`step` raised: what its slots hold is not to be saved by anybody who does not know of it yet."""
        self._failed = step

    def take(self, work: TierWork) -> None:
        """The order's turn has come: every earlier plan has run, no later one has."""
        order = _Order(work, monotonic())
        wanted = len(work.save_keys)
        if wanted:
            size = wanted * self._tier.chunk_bytes
            if work.settled < self._failed or self._staged + size > MOST_STAGED:
                order.refused = wanted
            else:
                order.staged, order.ready = self._mover.out(work.save_slots)
                self._staged += size
        with self._work:
            (self._loads if len(work.load_keys) else self._others).append(order)
            self._work.notify()

    def advance(self, send: Callable[[TierDone], object]) -> bool:
        """Copy what has arrived into the pool, a group of chunks at most, and tell what is done; whether it did
        anything."""
        if not self._finished:
            return False
        with contextlib.suppress(BlockingIOError):  # it may have been read when an order before this one was seen
            os.eventfd_read(self.wake)
        order = self._finished[0]
        moved = bool(order.brought)
        if moved:
            group = order.brought.popleft()
            count = min(GROUP, len(order.loaded) - order.copied)
            self._mover.into(order.work.load_slots[order.copied : order.copied + count], group)
            self._room.release()
            order.copied += count
        if order.copied < order.wanted:
            return moved
        self._finished.popleft()
        if order.staged is not None:
            self._staged -= order.staged.nbytes
        send(
            TierDone(
                number=order.work.number,
                loaded=order.copied,
                load_s=monotonic() - order.began,
                stored=_key_array(order.stored),
                dropped=_key_array(order.dropped),
                refused=order.refused,
                errors=order.errors,
                used_bytes=self._tier.used_bytes,
            )
        )
        return True

    # --- the tier's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._work:
                while not (self._loads or self._others):
                    self._work.wait()
                order = self._loads.popleft() if self._loads else self._others.popleft()
            try:
                self._do(order)
            except Exception:  # whatever it is, no request may wait for an answer for ever
                log.exception("an order to the tier failed")
                order.errors += 1
            order.wanted = len(order.loaded)
            self._finished.append(order)
            os.eventfd_write(self.wake, 1)
            self._bring(order)

    def _bring(self, order: _Order) -> None:
        for begin in range(0, len(order.loaded), GROUP):
            self._room.acquire()
            try:
                order.brought.append(self._mover.bring(order.loaded[begin : begin + GROUP]))
            except Exception:  # on a GPU there may be no memory for it
                log.exception("chunks of a tier cannot be brought to the pool")
                self._room.release()
                order.errors += 1
                order.wanted = begin
            os.eventfd_write(self.wake, 1)
            if order.wanted <= begin:
                return

    def _do(self, order: _Order) -> None:
        tier, work = self._tier, order.work
        if order.staged is not None:
            if order.ready is not None:
                order.ready()
            for key, payload in zip(_keys(work.save_keys), order.staged, strict=True):
                self._put(order, key, memoryview(payload))
        wanted = _keys(work.load_keys)
        for key in wanted:
            payload = tier.get(key)
            if payload is None:
                order.errors += 1
                order.dropped.append(key)
                break
            order.loaded.append(payload)
        # A chunk is of no use without those before it, so it is dropped before them: the first one is used last.
        tier.touch(reversed(wanted[: len(order.loaded)]))
        tier.touch(_keys(work.used_keys))
        for key in _keys(work.drop_keys):
            tier.delete(key)
        if work.sync:
            try:
                tier.sync()
            except TierError as error:
                self._trouble(order, error)
        added, dropped = tier.news()
        order.stored.extend(added)
        order.dropped.extend(dropped)

    def _put(self, order: _Order, key: bytes, payload: memoryview) -> None:
        try:
            self._tier.put(key, payload)
        except TierError as error:
            order.refused += 1
            self._trouble(order, error)
        else:
            order.stored.append(key)

    def _trouble(self, order: _Order, error: TierError) -> None:
        order.errors += 1
        if monotonic() - self._logged_at >= QUIET_S:
            self._logged_at = monotonic()
            log.warning("%s; serving goes on without it", error)


def copy_out(kv: torch.Tensor, slots: np.ndarray) -> np.ndarray:
    """Chunks of the pool, uint8[n, bytes of a chunk]. kv [layers, 2, kv_heads, slots, line]; slots int32[n, C].

    A chunk is [layers, 2, kv_heads, C, line] in the pool's dtype.
    """
    parts, width = kv.shape[:3].numel(), kv.shape[4] * kv.itemsize
    chunks = np.empty((len(slots), parts, slots.shape[1], width), np.uint8)
    pool = _bytes(kv)
    for chunk, places in zip(chunks, slots, strict=True):
        for at, first, length in _runs(places):
            chunk[:, at : at + length] = _host(pool[:, first : first + length])
    return chunks.reshape(len(slots), -1)


def copy_in(kv: torch.Tensor, slots: np.ndarray, chunks: list[bytearray]) -> None:
    """Write `chunks`, as `copy_out` gave them, into slots int32[n, C] of the pool."""
    parts, width = kv.shape[:3].numel(), kv.shape[4] * kv.itemsize
    pool = _bytes(kv)
    for payload, places in zip(chunks, slots, strict=True):
        chunk = np.frombuffer(payload, np.uint8).reshape(parts, len(places), width)
        for at, first, length in _runs(places):
            piece = chunk[:, at : at + length]
            pool[:, first : first + length] = piece if isinstance(pool, np.ndarray) else torch.from_numpy(piece)


def _bytes(kv: torch.Tensor) -> Any:
    """The pool as bytes [parts, slots, bytes]: numpy's in host memory, where its copies need no team of threads that
    would wait for each other at every chunk; torch's on a device."""
    flat = kv.view(torch.uint8).view(kv.shape[:3].numel(), kv.shape[3], -1)
    return flat.numpy() if kv.device.type == "cpu" else flat


def _host(piece: Any) -> np.ndarray:
    return piece if isinstance(piece, np.ndarray) else piece.cpu().numpy()


def _runs(slots: np.ndarray) -> list[tuple[int, int, int]]:
    """(index, first slot, length) of each run of neighbours: slices are copied much faster than single slots."""
    edges = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    return [(a, int(slots[a]), b - a) for a, b in pairwise(edges)]


def _keys(array: np.ndarray) -> list[bytes]:
    joined = array.tobytes()
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


def _key_array(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
