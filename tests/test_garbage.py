"""What is put aside, and that what becomes garbage later is still found."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, weakref
from radixrt import garbage

class Ring:
    def __init__(self):
        self.me = self

def rings(n):
    return [weakref.ref(Ring()) for _ in range(n)]

garbage.postpone()
early = rings(5000)
print("not before", all(ref() is not None for ref in early))
stays = [Ring() for _ in range(100)]
gc.collect()
before = len(gc.get_objects())
tidy = garbage.Tidier(young=500)
print("put aside", gc.get_freeze_count() >= before - 50, len(gc.get_objects()) < 200)
few = rings(10)
tidy()
print("not for few", all(ref() is not None for ref in few))
many = rings(600)
print("not by itself", all(ref() is not None for ref in many))
tidy()
print("when called", all(ref() is None for ref in [*few, *many]))
old = [Ring() for _ in range(600)]
tidy()
gone = [weakref.ref(ring) for ring in old]
del old
calls = 0
while any(ref() is not None for ref in gone):
    rings(600)
    tidy()
    calls += 1
print("the older, too", garbage.OLDER <= calls <= 3 * garbage.OLDER ** 2)
garbage.spare_what_stays(700)
lost = rings(2000)
print("without calls", any(ref() is None for ref in lost), gc.isenabled())
print("stays", len(stays))
"""


def test_what_is_there_is_put_aside_and_what_comes_is_searched() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [
        "not before True",
        "put aside True True",
        "not for few True",
        "not by itself True",
        "when called True",
        "the older, too True",
        "without calls True True",
        "stays 100",
    ]
