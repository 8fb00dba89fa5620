"""User-defined aggregates in Python: init / incr / final, with an optional merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from anabranch.aggregates import folds
from anabranch.aggregates.base import Aggregate, Bound, ColumnLike, Inputs, PythonState, State
from anabranch.aggregates.partial_state import Evaluate, StateFold
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.spark.arrow import arrow_type
from anabranch.spark.columns import can_be_sorted
from anabranch.spark.quirks import SPARK_ERRORS


@called_as('ab.user_aggregate("fare", init=list, incr=..., final=..., returns="double")')
def user_aggregate(
    *columns: ColumnLike,
    init: Callable[[], Any],
    incr: Callable[..., Any],
    final: Callable[[Any], Any],
    returns: str | DataType,
    merge: Callable[[Any, Any], Any] | None = None,
    state: str | DataType | None = None,
    name: str = "user_aggregate",
) -> Aggregate:
    """An aggregate of your own.

    ``init()`` makes a state, ``incr(state, *values)`` adds one row and returns the state, ``final(state)`` makes the
    result, of the Spark type ``returns``. Rows come in the order of time; nulls come as None, and timestamps as
    `datetime` in UTC.

    With ``merge(earlier, later)``, which returns the combined state, it can run on panes: each row is processed once,
    however many windows contain it. Without it, each window processes all its rows again, in batches or single windows.
    `incr` and `merge` may change their first argument; `init`, `incr`, `merge` and `final` must have no other effects.

    With ``state``, the Spark type of the state, an aggregate with a merge can be evaluated on several workers: each
    takes some rows of a key, and their states travel and are merged (see `Windowed.by`, `partition`). The order of rows
    must not matter then: rows and partial states come in any order. States are values that Arrow can hold: lists, dicts
    (for a map or struct), numbers, strings, None.

        >>> spread = user_aggregate("speed", init=list, incr=lambda s, v: [*s, v], merge=lambda a, b: a + b,
        ...                         final=lambda s: max(s) - min(s), returns="double")
    """
    for label, function in (("init", init), ("incr", incr), ("final", final), ("merge", merge or init)):
        if not callable(function):
            raise InvalidArgumentError(
                f"{label} of {name} is {function!r}, which is not a function", hint="pass a function"
            )
    if state is not None and merge is None:
        raise InvalidArgumentError(
            f"{name} has a state type but no merge, so partial states could not be combined",
            hint="give merge=..., or leave out state",
        )

    def bind(inputs: Inputs) -> Bound:
        result = _parse("returns", returns)
        for kind in inputs.types:
            if not can_be_sorted(kind):
                raise ColumnTypeError(
                    f"{name} cannot use a column of type {kind.simpleString()}: rows with the same time are sorted by "
                    "their values, and these cannot be sorted",
                    hint="extract the fields you need first, or use F.to_json(...)",
                )
        row = F.struct(inputs.time.alias("t"), *(c.alias(f"v{i}") for i, c in enumerate(inputs.columns)))
        rows = F.sort_array(F.collect_list(row))
        fold = folds.UserFold(init, incr, final, merge, arrow_type(result))
        in_python = None
        if state is not None and merge is not None:
            kind = _parse("state", state)
            arrow = arrow_type(kind)
            combine = StateFold(arrow, merge, final, arrow_type(result))
            in_python = PythonState(Evaluate(init, incr, arrow), combine, kind)
        return Bound((State(rows, fold, result=result, in_python=in_python),), lambda s: s[0], None)

    return Aggregate(name, columns, bind, mergeable=merge is not None, python=True)


def _parse(what: str, kind: str | DataType) -> DataType:
    if isinstance(kind, DataType):
        return kind
    wrong = f"{what}={kind!r} is not a Spark type"
    hint = 'write for example "double" or "array<bigint>"'
    if not isinstance(kind, str):
        raise InvalidArgumentError(wrong, hint=hint)
    try:
        return DataType.fromDDL(kind)
    except SPARK_ERRORS as error:
        raise InvalidArgumentError(wrong, hint=hint) from error
