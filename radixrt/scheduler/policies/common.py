"""How far two token sequences go together."""

from __future__ import annotations

import numpy as np

from radixrt.cache import Ids


def common_prefix(a: Ids, b: Ids, most: int) -> int:
    """How many of the first `most` tokens are the same in both; at most the shorter one's length. O(most), in C."""
    most = min(most, len(a), len(b))
    left, right = a[:most], b[:most]
    if left == right:
        return most
    return int((np.asarray(left, dtype=np.int32) != np.asarray(right, dtype=np.int32)).argmax())
