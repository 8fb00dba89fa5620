"""Checks what a user's predicate returns: for the operator, and for plans that filter batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.errors import OperatorError


def mask_of(answer: Any, rows: int) -> NDArray[np.bool_]:
    """One bool per row; null counts as false, as in SQL."""
    if isinstance(answer, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_boolean(answer.type):
            answer = pc.fill_null(answer, False)
        answer = answer.to_numpy(zero_copy_only=False) if isinstance(answer, pa.Array) else answer.to_numpy()
    mask = np.asarray(answer)
    if mask.shape != (rows,) or mask.dtype != np.bool_:
        raise OperatorError(
            f"the where function returned shape {mask.shape} of type {mask.dtype}, expected ({rows},) of type bool: "
            "wrong rows would be kept",
            hint="return an array with one bool per row: the function gets a whole record batch",
        )
    return mask
