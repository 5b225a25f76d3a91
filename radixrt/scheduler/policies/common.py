"""How far two token sequences go together."""

from __future__ import annotations

import numpy as np

from radixrt.cache import Ids


def common_prefix(a: Ids, b: Ids, most: int) -> int:
    """How many of the first `most` tokens are the same in both; at most the shorter one's length. O(most), in C."""
    most = min(most, len(a), len(b))
    if most <= 0:
        return 0
    differ = np.frombuffer(a, dtype=np.int32, count=most) != np.frombuffer(b, dtype=np.int32, count=most)
    first = int(differ.argmax())
    return first if differ[first] else most
