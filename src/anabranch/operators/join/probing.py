"""What an index needs to know of new rows: their keys' hashes and their times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Probing:
    """New rows of a stream, in order."""

    hashes: NDArray[np.uint64]
    """mixed"""
    times: NDArray[np.int64]
    keyed: NDArray[np.bool_]
    """false where a key is null: such a row joins nothing"""

    def row(self, number: int) -> Probing:
        """One of them."""
        one = slice(number, number + 1)
        return Probing(self.hashes[one], self.times[one], self.keyed[one])
