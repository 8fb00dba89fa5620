"""Partial evaluation of user-defined aggregates: some rows of a key become a state, and its states become the result.

Unlike `folds.UserFold`, which gets all rows of a window, neither step needs the rows of a key in one place or in order.
The state has an Arrow type, so that it can travel.
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

from anabranch.aggregates.folds import Fold, Runs
from anabranch.aggregates.kernels import Ints
from anabranch.aggregates.objects import fold_objects
from anabranch.errors import OperatorError


@dataclass(frozen=True)
class Evaluate:
    """Partial evaluation: the rows of each group, which are adjacent, become one state per group."""

    init: Callable[[], Any]
    incr: Callable[..., Any]
    state: pa.DataType

    def states(self, columns: Sequence[pa.Array], offsets: Ints) -> list[Any]:
        """Group g has the rows offsets[g] to offsets[g+1]."""
        init, incr, states = self.init, self.incr, []
        lists = [column.to_pylist() for column in columns]
        # A single input is the usual case: it needs no tuple per row.
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
        """The states as they travel. A value that does not fit their type is an error: it would change the result."""
        try:
            made = pa.array(states, type=self.state)
            # Arrow cuts off what does not fit a type: fractions, digits, fields. These three types lose nothing.
            exact = self.state in (pa.float64(), pa.string(), pa.bool_())
            whole = exact or _same(untyped(made), list(states))
        except (ValueError, TypeError, OverflowError) as error:
            raise self._wrong(str(error)) from error
        if not whole:
            raise self._wrong(
                "a number would lose digits, a struct would lose fields, or a tuple or set would become a list"
            )
        return made

    def _wrong(self, why: str) -> OperatorError:
        return OperatorError(
            f"a state of the user-defined aggregate does not fit its declared type {self.state}: {why}",
            hint="declare as `state` the type that init, incr and merge return: lists, dicts, numbers, strings",
        )


def untyped(states: pa.Array) -> list[Any]:
    """States as Python values again, with maps as dicts."""
    values: list[Any] = states.to_pylist(maps_as_pydicts="strict")
    return values


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal; NaN is equal to itself."""
    if a == b or (a != a and b != b):
        return True
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(map(_same, a, b))
    return isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)


@dataclass(frozen=True)
class StateFold(Fold):
    """Combines such states and turns them into results."""

    state: pa.DataType
    merge: Callable[[Any, Any], Any]
    final: Callable[[Any], Any]
    returns: pa.DataType

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        # Times that went through Spark are in the session's zone; those that stayed are in UTC.
        values = untyped(states if states.type == self.state else states.cast(self.state))
        if (runs.lo[1:] >= runs.hi[:-1]).all():  # no state is needed twice: no copies and no stacks
            bounds = zip(runs.lo.tolist(), runs.hi.tolist(), strict=True)
            merged = [reduce(self.merge, values[lo:hi]) if hi - lo > 1 else values[lo] for lo, hi in bounds]
        else:
            merged = fold_objects(values, runs.lo, runs.hi, self.merge, deepcopy)
        return self.lowered(merged)

    def lowered(self, states: Sequence[Any]) -> pa.Array:
        """The results."""
        return pa.array([self.final(state) for state in states], type=self.returns)
