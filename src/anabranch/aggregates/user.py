"""User-defined aggregates in Python: init / incr / final (paper 4), with an optional merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, CalendarIntervalType, DataType, MapType, StructType, VariantType

from anabranch.aggregates.base import Aggregate, Bound, ColumnLike, Inputs, State
from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.operators import folds


def user_aggregate(
    *columns: ColumnLike,
    init: Callable[[], Any],
    incr: Callable[..., Any],
    final: Callable[[Any], Any],
    returns: str | DataType,
    merge: Callable[[Any, Any], Any] | None = None,
    name: str = "user_aggregate",
) -> Aggregate:
    """An aggregate of your own.

    ``init()`` makes a state, ``incr(state, *values)`` takes one row and returns the state, ``final(state)`` makes the
    result, of the Spark type ``returns``. Rows come in the order of time; nulls come as None.

    With ``merge(earlier, later)``, which returns the state of both, it may run on panes: each row is seen once, however
    many windows it is in. Without it, each window takes all its rows anew, in batches or single windows. `incr` and
    `merge` may change their first argument; `init`, `incr`, `merge` and `final` must have no other effect.

        >>> spread = user_aggregate("speed", init=list, incr=lambda s, v: [*s, v], merge=lambda a, b: a + b,
        ...                         final=lambda s: max(s) - min(s), returns="double")
    """
    for label, function in (("init", init), ("incr", incr), ("final", final), ("merge", merge or init)):
        if not callable(function):
            raise InvalidArgumentError(f"{label} of {name} is {function!r}, not a function", hint="pass a function")

    def bind(inputs: Inputs) -> Bound:
        result = _parse(returns)
        for kind in inputs.types:
            if not _can_be_sorted(kind):
                raise ColumnTypeError(
                    f"{name} cannot take a column of type {kind.simpleString()}: rows at the same time are ordered by "
                    "their values, and these have no order",
                    hint="take the parts that are needed out of it first, or F.to_json(...)",
                )
        row = F.struct(inputs.time.alias("t"), *(c.alias(f"v{i}") for i, c in enumerate(inputs.columns)))
        rows = F.sort_array(F.collect_list(row))
        fold = folds.UserFold(init, incr, final, merge, to_arrow_type(result, timezone="UTC"))
        return Bound((State(rows, fold, result=result),), lambda s: s[0], None)

    return Aggregate(name, columns, bind, mergeable=merge is not None, python=True)


def _can_be_sorted(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _can_be_sorted(kind.elementType)
    if isinstance(kind, StructType):
        return all(_can_be_sorted(field.dataType) for field in kind)
    return not isinstance(kind, (MapType, VariantType, CalendarIntervalType))


def _parse(returns: str | DataType) -> DataType:
    if isinstance(returns, DataType):
        return returns
    try:
        return DataType.fromDDL(returns)
    except Exception as error:
        raise InvalidArgumentError(
            f"returns={returns!r} is not a Spark type", hint='write for example "double" or "array<bigint>"'
        ) from error
