"""Folds: how pane states become window states.

A fold takes the states of all panes (one Arrow array, panes of many groups end to end) and the runs of windows, and
returns one value per run. This is the *combine* of lift / combine / lower, for all windows at once. A fold that can
subtract (`invertible`) does so; the others use two stacks or a queue. Either way the work per pane does not depend on
how many windows overlap.

A null state is the state of no rows (all values were null): it changes nothing, and a window that has only null states
has a null result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, ClassVar

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.aggregates import kernels
from anabranch.aggregates.arrays import (
    canonical,
    flat_lists,
    is_valid,
    micros_of_times,
    numbers_of,
    order_keys,
    spark_order,
    take,
)
from anabranch.aggregates.kernels import Ints
from anabranch.aggregates.objects import fold_objects
from anabranch.errors import ArithmeticOverflowError


@dataclass(frozen=True)
class Runs:
    """For every run of windows with the same content, its panes [lo, hi). Both only increase."""

    lo: Ints
    hi: Ints

    def any_valid(self, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each run has a state that is not null."""
        counts = np.concatenate(([0], np.cumsum(valid)))
        result: NDArray[np.bool_] = counts[self.hi] > counts[self.lo]
        return result


class Fold(ABC):
    """Combines pane states over runs of windows."""

    invertible: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        """One value per run."""

    def settle(self, states: pa.Array, pieces: Runs) -> pa.Array:
        """Put the pieces of a pane in order: on a stream a pane may come in several, one per epoch that brought rows.

        Most folds ignore this, because their combine is commutative. Those that depend on the order of rows gather the
        pieces [lo, hi) of a pane into the first one and leave the others empty, so that the number of states stays.
        """
        return states


class Sum(Fold):
    """Sums. Integers subtract what leaves, exactly; floats use two stacks, because subtracting leaves a rounding error
    (and infinity or NaN would never go away)."""

    invertible = True

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        valid = is_valid(states)
        if pa.types.is_decimal(states.type):
            return self._decimals(states, runs, valid)
        values = numbers_of(states)
        if pa.types.is_floating(states.type):
            sums = kernels.two_stacks(kernels.SUM, values.astype(np.float64)[:, None], runs.lo, runs.hi)[:, 0]
        else:
            sums = self._integers(values.astype(np.int64), runs)
        return pa.array(sums, type=states.type, mask=~runs.any_valid(valid))

    def _integers(self, values: Ints, runs: Runs) -> Ints:
        total = np.concatenate(([0], np.cumsum(values)))
        sums: Ints = total[runs.hi] - total[runs.lo]
        # Integers wrap around; the difference of two wrapped totals is right unless the sum itself does not fit. Check
        # only if that is possible at all.
        largest = float(np.abs(values.astype(np.float64)).max(initial=0))
        if largest * float((runs.hi - runs.lo).max(initial=0)) >= 2.0**63:
            approximate = np.concatenate(([0.0], np.cumsum(values.astype(np.longdouble))))
            if np.abs((approximate[runs.hi] - approximate[runs.lo]) - sums).max() > 2.0**62:
                raise ArithmeticOverflowError(
                    "the sum of a window does not fit a 64-bit integer, so it would wrap around to a wrong value",
                    hint="cast the column to double or decimal before the sum",
                )
        return sums

    def _decimals(self, states: pa.Array, runs: Runs, valid: NDArray[np.bool_]) -> pa.Array:
        values = [Decimal(0) if v is None else v for v in states.to_pylist()]
        sums = fold_objects(values, runs.lo, runs.hi, _EXACT.add)
        known = runs.any_valid(valid).tolist()
        return _decimal_array([s if k else None for s, k in zip(sums, known, strict=True)], states.type, "sum")


@dataclass(frozen=True)
class DecimalMean(Fold):
    """The mean of decimals from (sum, count), as a decimal with that many places."""

    precision: int
    scale: int
    invertible = True

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        sums, counts = (Sum()(states.field(i), runs).to_pylist() for i in range(2))
        means = [None if total is None else self._divided(total, n) for total, n in zip(sums, counts, strict=True)]
        return _decimal_array(means, pa.decimal128(self.precision, self.scale), "mean")

    def _divided(self, total: Decimal, n: int) -> Decimal:
        # Half up, first to 39 places: exactly as Spark rounds its averages.
        exact = _EXACT.divide(total, Decimal(n)).quantize(Decimal(1).scaleb(-39), context=_EXACT)
        return exact.quantize(Decimal(1).scaleb(-self.scale), context=_EXACT)


@dataclass(frozen=True)
class Extreme(Fold):
    """The smallest or largest state, for any type that Arrow can order. NaN is above every number, as in Spark."""

    greatest: bool

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        order = order_keys(states)
        winners = kernels.least(~order if self.greatest else order, is_valid(states), runs.lo, runs.hi)
        return take(states, winners)


@dataclass(frozen=True)
class Edge(Fold):
    """The first or last state that is not null: panes are in the order of time, and states are (time, value).

    Panes of count windows may share a time; then the value decides, as within a pane.
    """

    last: bool

    def settle(self, states: pa.Array, pieces: Runs) -> pa.Array:
        pick = max if self.last else min
        return _settled(states, pieces, lambda found: pick(found, key=spark_order), None)

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        valid = is_valid(states)
        at = np.flatnonzero(valid)
        times = micros_of_times(states.field(0))[at]
        if _share_a_time(at, times, times, runs):
            order = np.zeros(len(states), np.int64)
            order[at] = _ranks(states.take(pa.array(at)))
            return take(states, kernels.least(~order if self.last else order, valid, runs.lo, runs.hi))
        if self.last:
            place = np.searchsorted(at, runs.hi) - 1
            found = np.where(place >= 0, at[np.maximum(place, 0)] if len(at) else -1, -1)
            return take(states, np.where(found >= runs.lo, found, -1))
        place = np.searchsorted(at, runs.lo)
        found = np.append(at, np.iinfo(np.int64).max)[place]
        return take(states, np.where(found < runs.hi, found, -1))


class Moments(Fold):
    """(count, mean, sum of squared deviations) as a struct of three doubles, by Chan's formula."""

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        fields = [numbers_of(states.field(i)).astype(np.float64) for i in range(3)]
        folded = kernels.two_stacks(kernels.MOMENTS, np.stack(fields, axis=1), runs.lo, runs.hi)
        return pa.StructArray.from_arrays([pa.array(folded[:, i]) for i in range(3)], fields=list(states.type))


class DistinctCount(Fold):
    """The exact number of distinct values, from the set of each pane. Counts how many panes contain each value."""

    invertible = True

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        starts, values = flat_lists(states)
        encoded = canonical(values).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        return pa.array(kernels.distinct(starts, codes, len(encoded.dictionary), runs.lo, runs.hi))


@dataclass(frozen=True)
class MostFrequent(Fold):
    """The k most frequent values with their counts, exactly; ties go to the smaller value."""

    k: int
    invertible = True

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        starts, entries = flat_lists(states)
        values, counts = entries.field(0), entries.field(1).to_numpy().astype(np.int64)
        encoded = canonical(values).dictionary_encode()
        # Codes in the order of the values, so that ties are broken by value and not by order of arrival.
        by_value = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(by_value), np.int64)
        rank[by_value] = np.arange(len(by_value))
        codes = rank[encoded.indices.to_numpy().astype(np.int64)]
        ends, top, weights = kernels.most_frequent(starts, codes, counts, len(rank), runs.lo, runs.hi, self.k)
        top_values = encoded.dictionary.take(pa.array(by_value[top]))
        items = pa.StructArray.from_arrays([top_values, pa.array(weights)], fields=list(entries.type))
        # The type of the states, not a new one: it says which fields may be null, and Spark compares that.
        return pa.ListArray.from_arrays(pa.array(np.concatenate(([0], ends)), pa.int32()), items, type=states.type)


class Concatenate(Fold):
    """All elements, pane after pane: in the order of time if each pane's list is. Elements are (time, value).

    Panes of count windows may share a time; their elements with that time are sorted by value.
    """

    def settle(self, states: pa.Array, pieces: Runs) -> pa.Array:
        return _settled(states, pieces, _in_order, [])

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        starts, values = flat_lists(states)
        begin, lengths = starts[runs.lo], starts[runs.hi] - starts[runs.lo]
        ends = np.cumsum(lengths)
        index = np.repeat(begin - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
        at, times = np.flatnonzero(np.diff(starts)), micros_of_times(values.field(0))
        if _share_a_time(at, times[starts[at]], times[starts[at + 1] - 1], runs):
            index = index[np.lexsort((_ranks(values)[index], np.repeat(np.arange(len(lengths)), lengths)))]
        offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
        return pa.ListArray.from_arrays(offsets, values.take(pa.array(index)), type=states.type)


class HllEstimate(Fold):
    """Estimated distinct count of the union of HyperLogLog sketches, as Spark's `hll_sketch_agg` writes them."""

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        sketches = [datasketches.hll_sketch.deserialize(state) for state in states.to_pylist()]
        merged = fold_objects(sketches, runs.lo, runs.hi, self._union)
        return pa.array([round(sketch.get_estimate()) for sketch in merged], pa.int64())

    @staticmethod
    def _union(a: Any, b: Any) -> Any:
        union = datasketches.hll_union(max(a.lg_config_k, b.lg_config_k))
        union.update(a)
        union.update(b)
        return union.get_result(datasketches.tgt_hll_type.HLL_8)


@dataclass(frozen=True)
class KllQuantiles(Fold):
    """Quantiles from the union of KLL sketches, as Spark's `kll_sketch_agg_double` writes them."""

    ranks: tuple[float, ...]

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        sketches = [datasketches.kll_doubles_sketch.deserialize(state) for state in states.to_pylist()]
        merged = fold_objects(sketches, runs.lo, runs.hi, self._union)
        rows = [None if s.is_empty() else [s.get_quantile(rank, True) for rank in self.ranks] for s in merged]
        return pa.array(rows, pa.list_(pa.float64()))

    @staticmethod
    def _union(a: Any, b: Any) -> Any:
        union = datasketches.kll_doubles_sketch(max(a.k, b.k))
        union.merge(a)
        union.merge(b)
        return union


@dataclass(frozen=True)
class UserFold(Fold):
    """A user-defined aggregate over the rows of each pane.

    With `merge`, each row is processed once, and panes are merged with two stacks; without, each window starts afresh.
    """

    init: Callable[[], Any]
    incr: Callable[..., Any]
    final: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any] | None
    returns: pa.DataType

    def settle(self, states: pa.Array, pieces: Runs) -> pa.Array:
        return _settled(states, pieces, _in_order, [])

    def __call__(self, states: pa.Array, runs: Runs) -> pa.Array:
        starts, rows = flat_lists(states)
        # The first field is the time that the rows are sorted by; the others are the aggregate's inputs.
        columns = [rows.field(i).to_pylist() for i in range(1, rows.type.num_fields)]
        values = list(zip(*columns, strict=True)) if columns else [()] * len(rows)
        if self.merge is None:
            bounds = zip(starts[runs.lo].tolist(), starts[runs.hi].tolist(), strict=True)
            results = [self._run(values[begin:end]) for begin, end in bounds]
        else:
            # None for a piece without rows (see `settle`), not init(): merging with it might change a state.
            spans = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
            panes = [self._run(values[begin:end]) if end > begin else None for begin, end in spans]
            merged = fold_objects(panes, runs.lo, runs.hi, self._merge_known, deepcopy)
            results = [self.init() if state is None else state for state in merged]
        return pa.array([self.final(state) for state in results], type=self.returns)

    def _merge_known(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        assert self.merge is not None
        return self.merge(a, b)

    def _run(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        state = self.init()
        for row in rows:
            state = self.incr(state, *row)
        return state


_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)
"""By default Python rounds decimals to 28 digits; Spark's have up to 38, before and after the point."""


def _decimal_array(values: list[Decimal | None], kind: pa.DataType, what: str) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except pa.ArrowInvalid as error:
        raise ArithmeticOverflowError(
            f"the {what} of a window does not fit {kind}", hint="cast the column to a wider decimal or to double"
        ) from error


def _in_order(lists: list[list[Any]]) -> list[Any]:
    return sorted((row for each in lists for row in each), key=spark_order)


def _settled(states: pa.Array, pieces: Runs, gather: Callable[[list[Any]], Any], empty: Any) -> pa.Array:
    """The states, with the pieces of each pane gathered into its first piece."""
    if not len(pieces.lo):
        return states
    at = np.concatenate([np.arange(lo, hi) for lo, hi in zip(pieces.lo, pieces.hi, strict=True)])
    values: list[Any] = []
    for lo, hi in zip(pieces.lo.tolist(), pieces.hi.tolist(), strict=True):
        known = [value for value in states.slice(lo, hi - lo).to_pylist() if value is not None]
        values += [gather(known) if known else empty, *([empty] * (hi - lo - 1))]
    order = np.arange(len(states))
    order[at] = len(states) + np.arange(len(at))
    both = pa.concat_arrays([states, pa.array(values, type=states.type)])
    return both.take(pa.array(order))


def _share_a_time(at: Ints, first: Ints, last: Ints, runs: Runs) -> bool:
    """Whether in some run a pane begins with the time at which the one before it ends.

    `at` are the panes that have rows, `first` and `last` the first and last time of each.
    """
    tied = np.flatnonzero(last[:-1] == first[1:])
    if not len(tied) or not len(runs.lo):
        return False
    # Of the runs that begin at or before the first of the two panes, the last one reaches furthest.
    run = np.searchsorted(runs.lo, at[tied], side="right") - 1
    return bool(((run >= 0) & (runs.hi[run] > at[tied + 1])).any())


def _ranks(states: pa.Array) -> Ints:
    """The ranks of (time, value) in Spark's order: by time, then by value, null first."""
    times, values = states.field(0), states.field(1)
    ranks = np.empty(len(states), np.int64)
    ranks[np.lexsort((order_keys(values), is_valid(values), micros_of_times(times)))] = np.arange(len(states))
    return ranks
