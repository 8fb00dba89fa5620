"""What an index needs to know about new rows: the hashes of their keys, and their times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Probing:
    """New rows of a stream, in order."""

    hashes: NDArray[np.uint64]
    """mixed key hashes"""
    times: NDArray[np.int64]
    keyed: NDArray[np.bool_]
    """false if a key is null: such a row joins nothing"""

    def row(self, number: int) -> Probing:
        """One of the rows."""
        one = slice(number, number + 1)
        return Probing(self.hashes[one], self.times[one], self.keyed[one])
