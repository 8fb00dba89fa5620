"""The query network of Linear Road, on the public API of Anabranch: what a user would write.

    reports and queries ──▶ split by expressway ──▶ Expressways ──▶ toll, accident, expenditure, traveltime, rejected
                            balance queries to all              └─▶ parts of balances ──▶ combine ──▶ balance

The split is parasplit: a tuple goes to the group of its expressway. A balance query goes to all groups, since a car may
have paid on any expressway, and the aggregation tree sums the partial balances. No tuple is omitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.operator import REJECT_REASON, Road
from anabranch.linearroad.schema import ANSWERS, INPUT, Kind
from anabranch.recordings import columns_of
from anabranch.types import Delivery, Stream

REJECTED = "rejected"
"""The output for tuples that are neither reports nor queries; they are kept."""

_OUTPUTS = {
    **ANSWERS,
    REJECTED: ", ".join(f"{name} bigint" for name in INPUT.names) + f", {REJECT_REASON} string",
}


def group_of_expressway(block: pa.RecordBatch, q: int) -> NDArray[Any]:
    """The route: the group of a tuple's expressway. A tuple without one goes to group 0, which rejects it."""
    xway: NDArray[Any] = np.asarray(block.column("XWay").fill_null(0))
    group: NDArray[Any] = np.maximum(xway, 0) % q
    return group


def is_balance_query(block: pa.RecordBatch) -> NDArray[Any]:
    """The broadcast: only all expressways together know what a car has paid."""
    kinds: NDArray[Any] = np.asarray(block.column("Type").fill_null(-1))
    asked: NDArray[Any] = kinds == Kind.BALANCE
    return asked


def check_columns(path: str | Path) -> pa.Schema:
    """The columns of a recording, if it is an input of Linear Road."""
    schema = columns_of(path)
    missing = [name for name in INPUT.names if name not in schema.names]
    if missing:
        raise InvalidArgumentError(
            f"{path} has no column {missing[0]}, so it is not an input of Linear Road",
            hint=f"it needs {', '.join(INPUT.names)}",
        )
    return schema


def recorded(
    spark: SparkSession,
    path: str | Path,
    *,
    pace: float | None = None,
    pace_from: int | None = None,
    rows_per_epoch: int | None = None,
) -> Stream:
    """Recorded tuples as a stream: Parquet or Arrow files with the columns `schema.INPUT`, sorted by Time.

    `pace_from` is a second of the simulation: tuples before it are replayed as fast as possible. An epoch has only
    whole seconds, since a balance query comes after all reports of its second.
    """
    schema = check_columns(path)
    source = ab.replay(
        spark,
        path,
        time="Time",
        pace=pace,
        rows_per_epoch=rows_per_epoch,
        pace_from=None if pace_from is None else pace_from * 1_000_000,
        blocks=True,
        whole_instants=True,
    )
    return ab.block_stream(source, time="Time", watermark="0 seconds", schema=schema)


def linear_road(
    reports: Stream,
    road: Road,
    output: str | Path,
    *,
    splitters: int | None = None,
    window_bytes: int | None = None,
) -> list[Delivery]:
    """All answers of Linear Road, with a folder for each kind; give them to `anabranch.start`.

    By default, `splitters` and `window_bytes` (p and W of parasplit) are tuned while the query runs.
    """
    lanes = reports.split(
        road.groups,
        route=group_of_expressway,
        broadcast=is_balance_query,
        splitters=splitters,
        window_bytes=window_bytes,
    )
    answers = lanes.process(road, outputs=_OUTPUTS)
    balance = answers.combine("balance", by=("Time", "QID"), sums="Balance", maxima="ResultTime")
    # Flat: a data set has only the columns of its answers, not one for the epoch.
    direct = {name: ab.FileSink(Path(output, name), flat=True) for name in _OUTPUTS if name != "balance"}
    return [answers.to(direct), balance.to(ab.FileSink(Path(output, "balance"), flat=True))]


def answer_files(output: str | Path, kind: str, epoch: int | None = None) -> list[Path]:
    """The files with one kind of answers, from one epoch or all."""
    return sorted(Path(output, kind).glob(f"epoch-{'*' if epoch is None else f'{epoch:06d}'}-*.parquet"))
