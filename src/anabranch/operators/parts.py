"""User-defined aggregates in parts: some rows of a key become a state, and states of one key become its result.

Unlike `folds.UserFold`, which gets all rows of a window, neither side needs the rows of a key in one place or in order;
the state has a type that Arrow knows, so that it can travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

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

    def __call__(self, columns: Sequence[pa.Array], offsets: Ints) -> pa.Array:
        """Group g has the rows offsets[g] to offsets[g+1]."""
        init, incr, states = self.init, self.incr, []
        bounds = offsets.tolist()
        lists = [column.to_pylist() for column in columns]
        if len(lists) == 1:  # the usual case, without a tuple per row
            values = lists[0]
            for begin, end in itertools.pairwise(bounds):
                state = init()
                for value in values[begin:end]:
                    state = incr(state, value)
                states.append(state)
        else:
            rows = list(zip(*lists, strict=True)) if lists else [()] * bounds[-1]
            for begin, end in itertools.pairwise(bounds):
                state = init()
                for row in rows[begin:end]:
                    state = incr(state, *row)
                states.append(state)
        return _typed(states, self.state)


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
        return pa.array([self.final(state) for state in merged], type=self.returns)


def _typed(states: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(states, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise OperatorError(
            f"a state of the user-defined aggregate is not of its declared type {kind}, and could not travel: {error}",
            hint="make `state` the type of what init, incr and merge return",
        ) from error
