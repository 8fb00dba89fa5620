"""User-defined aggregates in parts: some rows of a key become a state, and states of one key become its result.

Unlike `folds.UserFold`, which gets all rows of a window, neither side needs the rows of a key in one place or in order;
the state has a type that Arrow knows, so that it can travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from itertools import islice, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.errors import OperatorError
from anabranch.operators.folds import Fold, Runs
from anabranch.operators.kernels import Ints
from anabranch.operators.objects import fold_objects


@dataclass(frozen=True)
class Evaluate:
    """Partial evaluation: the rows of each group, which lie together, into one state per group."""

    init: Callable[[], Any]
    incr: Callable[..., Any]
    state: pa.DataType

    def states(self, columns: Sequence[pa.Array], offsets: Ints) -> list[Any]:
        """Group g has the rows offsets[g] to offsets[g+1]."""
        init, incr, states = self.init, self.incr, []
        lists = [column.to_pylist() for column in columns]
        # One input is the usual case: no tuple per row then.
        rows = iter(lists[0]) if len(lists) == 1 else zip(*lists, strict=True) if lists else repeat(())
        single = len(lists) == 1
        for size in np.diff(offsets).tolist():
            state = init()
            if single:
                for value in islice(rows, size):
                    state = incr(state, value)
            else:
                for row in islice(rows, size):
                    state = incr(state, *row)
            states.append(state)
        return states

    def typed(self, states: Sequence[Any]) -> pa.Array:
        """The states as they travel."""
        try:
            return pa.array(states, type=self.state)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise OperatorError(
                f"a state of the user-defined aggregate is not of its declared type {self.state}, and cannot travel: "
                f"{error}",
                hint="make `state` the type of what init, incr and merge return",
            ) from error


@dataclass(frozen=True)
class StateFold(Fold):
    """Combines such states, and lowers them."""

    merge: Callable[[Any, Any], Any]
    final: Callable[[Any], Any]
    returns: pa.DataType

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        values = states.to_pylist()
        if (runs.lo[1:] >= runs.hi[:-1]).all():  # no state is needed twice: nothing to copy, nothing to stack
            bounds = zip(runs.lo.tolist(), runs.hi.tolist(), strict=True)
            merged = [reduce(self.merge, values[lo:hi]) if hi - lo > 1 else values[lo] for lo, hi in bounds]
        else:
            merged = fold_objects(values, runs.lo, runs.hi, self.merge, deepcopy)
        return self.lowered(merged)

    def lowered(self, states: Sequence[Any]) -> pa.Array:
        """The results."""
        return pa.array([self.final(state) for state in states], type=self.returns)
