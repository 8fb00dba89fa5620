"""Sinks: where results go, and what each guarantees.

Tasks write the results of an epoch as Parquet files into a folder that nobody sees yet; when all operators of the epoch
have run, the driver *publishes* it. A crash before that leaves nothing to see; a crash after it, before the ledger has
the epoch as done, runs the epoch again, and the sink must recognise that it has it already.

| sink | guarantee |
|---|---|
| `FileSink` | exactly once: a folder `epoch=N` per epoch that appears at once and is never changed |
| `FileSink(flat=True)` | exactly once: files that never change; those of an epoch appear one after the other |
| `DeltaSink` | exactly once: one transaction per epoch, which Delta recognises by its number |
| `MemorySink` | exactly once while the process lives; empty after a restart |
| `NoopSink` | none: nothing is kept |
| `CallSink` | at least once: the function may see an epoch again after a crash, the same rows under the same number |
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from anabranch.calls import made_as
from anabranch.errors import CheckpointError, InvalidArgumentError, StateError, cannot_write
from anabranch.io.folder import Folder
from anabranch.io.frames import read_files

_OWNER = "_owner"
"""Says which checkpoint the epochs of a folder belong to; readers pass over it."""


@dataclass(frozen=True)
class Published:
    """The rows of an epoch, ready to be published: the files in a folder, and their columns."""

    epoch: int
    query: str
    folder: Folder
    files: tuple[str, ...]
    schema: pa.Schema
    session: SparkSession
    rows: int

    def table(self) -> pa.Table:
        """The rows, on the driver."""
        tables = [
            pq.read_table(f"{self.folder.path}/{name}", filesystem=self.folder.filesystem, schema=self.schema)
            for name in self.files
        ]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def frame(self) -> DataFrame:
        """The rows as a DataFrame."""
        return read_files(self.session, self.folder, self.files, self.schema)


class Sink(ABC):
    """Where results go."""

    guarantee: ClassVar[str]
    keeps: ClassVar[bool] = True
    """false: rows need not be written at all"""

    def staging(self, epoch: int, default: Folder) -> Folder:
        """Where tasks write an epoch before it is published."""
        return default

    @abstractmethod
    def publish(self, result: Published) -> None:
        """Make an epoch visible. Called again for the same epoch after a crash."""

    @property
    def place(self) -> dict[str, Any]:
        """Which sink this is, in plain JSON, for the ledger: `anabranch repair` must know who may have results."""
        return {"sink": type(self).__name__}

    def open(self, session: SparkSession) -> None:  # noqa: B027  # most sinks have nothing to open
        """Called once, before the first epoch: check that the sink can be written."""


@made_as('ab.FileSink("results/")')
class FileSink(Sink):
    """Parquet files, a folder `epoch=N` per epoch that brought rows; ``spark.read.parquet(path)`` reads them all.

    Such folders are partitions to a reader, and give it a column `epoch`. With ``flat=True`` the files are in the
    folder itself, and have the columns of the query only; but the files of an epoch appear one after the other.
    """

    guarantee = "exactly once: a folder per epoch, which appears at once and is never changed"

    def __init__(self, path: str | Path, *, flat: bool = False) -> None:
        self.folder = Folder.at(path)
        self.flat = flat
        self._path = str(path) if "://" in str(path) else self.folder.path
        self._claimed: str | None = None
        if self.folder.is_object_store:
            raise InvalidArgumentError(
                f"{path} is on an object store, which cannot rename a folder: an epoch could be seen half written",
                hint="write to a local or HDFS path, or into a Delta table (DeltaSink)",
            )

    @property
    def place(self) -> dict[str, Any]:
        return {**super().place, "path": self._path, "flat": self.flat}

    def epochs(self) -> list[int]:
        """The epochs whose results are there."""
        names = self.folder.files() if self.flat else self.folder.folders()
        found = (re.fullmatch(r"epoch-(\d+)-.*" if self.flat else r"epoch=(\d+)", name) for name in names)
        return sorted({int(each[1]) for each in found if each})

    def open(self, session: SparkSession) -> None:
        self.folder.create()

    def staging(self, epoch: int, default: Folder) -> Folder:
        # In the same folder, so that publishing is a rename; readers pass over names that begin with an underscore.
        return self.folder.sub("_staging", f"epoch={epoch}")

    def publish(self, result: Published) -> None:
        self._claim(result.query)
        if self.flat:
            self._publish_files(result)
            return
        target = self.folder.sub(f"epoch={result.epoch}")
        if not result.files or f"epoch={result.epoch}" in self.folder.folders():
            # Nothing to show, or shown already before a crash: the same rows, since an epoch is deterministic.
            result.folder.remove()
            return
        try:
            result.folder.filesystem.move(result.folder.path, target.path)
        except OSError as error:
            raise cannot_write(target.path, error) from error

    def _publish_files(self, result: Published) -> None:
        known = set(self.folder.files())
        for name in result.files:
            target = f"epoch-{result.epoch:06d}-{name}"
            if target in known:  # shown already before a crash: the same rows
                continue
            try:
                result.folder.filesystem.move(f"{result.folder.path}/{name}", f"{self.folder.path}/{target}")
            except OSError as error:
                raise cannot_write(f"{self.folder.path}/{target}", error) from error
        result.folder.remove()

    def _claim(self, query: str) -> None:
        """Make the folder that checkpoint's own: the epochs of another have the same names and would pass for these."""
        if self.folder.exists(_OWNER):
            if self._claimed != query:
                self._check_owner(query)
        elif self._claimed == query:
            raise StateError(
                f"{self.folder} has vanished while the query ran, with all results before this epoch",
                hint="bring the folder back, then start the query again; without it, it goes on with this epoch",
            )
        elif any(name.startswith("epoch") for name in [*self.folder.folders(), *self.folder.files()]):
            raise CheckpointError(
                f"{self.folder} has epochs already, and does not say of which query: those of this one would be taken "
                "for published, and lost",
                hint="give an empty folder, or one that does not exist yet",
            )
        else:
            self.folder.write(_OWNER, "owner", b"", query=query)
        self._claimed = query

    def _check_owner(self, query: str) -> None:
        another = "give the results a folder of their own, FileSink(...) with one that is empty or not there yet"
        try:
            header, _ = self.folder.read(_OWNER, "owner")
        except StateError as error:
            raise StateError(error.message, hint=f"restore the file from a copy, or {another}") from error
        if header.get("query") != query:
            raise CheckpointError(
                f"the folder for results {self.folder} has those of another query, or of this one with another "
                "checkpoint: epochs of the same number would be taken for published, and lost",
                hint=f"{another}; or start with the checkpoint that these results belong to",
            )

    def __repr__(self) -> str:
        return f"FileSink({str(self.folder)!r}{', flat=True' if self.flat else ''})"


@made_as('ab.DeltaSink("tables/results")')
class DeltaSink(Sink):
    """A Delta table. Needs the Delta connector in the session (package delta-spark)."""

    guarantee = "exactly once: one transaction per epoch, which Delta recognises by its number"

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def open(self, session: SparkSession) -> None:
        try:
            session.read.format("delta").load(self.path)
        except Exception as error:  # a Java error as it is: PySpark has no name for it
            # Any other complaint, such as that there is no table yet, comes from Delta itself.
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                raise InvalidArgumentError(
                    "the session has no Delta connector, so nothing could be written to a Delta table",
                    hint="install delta-spark and start the session with it, or use FileSink",
                ) from error

    def publish(self, result: Published) -> None:
        if not result.files:
            return
        writer = result.frame().write.format("delta").mode("append")
        # Delta skips a transaction of this application that it has seen.
        writer = writer.option("txnAppId", f"anabranch-{result.query}").option("txnVersion", str(result.epoch))
        writer.save(self.path)

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r})"


@made_as("ab.MemorySink()")
class MemorySink(Sink):
    """Arrow tables in the driver's memory: for notebooks and tests, where results are few."""

    guarantee = "exactly once while the process lives; empty after a restart"

    def __init__(self) -> None:
        self.epochs: dict[int, pa.Table] = {}

    def publish(self, result: Published) -> None:
        if result.files:
            self.epochs[result.epoch] = result.table()

    def table(self) -> pa.Table | None:
        """All rows so far, in the order of epochs; None before the first."""
        tables = [self.epochs[epoch] for epoch in sorted(self.epochs)]
        return pa.concat_tables(tables) if tables else None

    def rows(self) -> list[dict[str, object]]:
        """All rows so far as dictionaries."""
        table = self.table()
        return [] if table is None else table.to_pylist()

    def __repr__(self) -> str:
        return f"MemorySink({sum(table.num_rows for table in self.epochs.values())} rows)"


class NoopSink(Sink):
    """Takes everything and keeps nothing, as Spark's "noop": rows are made and counted. For measurements."""

    guarantee = "nothing is kept"
    keeps = False

    def publish(self, result: Published) -> None:
        """Nothing is to be done."""

    def __repr__(self) -> str:
        return "NoopSink()"


@made_as("ab.CallSink(lambda rows, epoch: ...)")
class CallSink(Sink):
    """Calls a function with the DataFrame of each epoch's rows and the epoch's number, as Spark's `foreachBatch`."""

    guarantee = "at least once: the function may see an epoch again, with the same rows and the same number"

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        if not callable(function):
            raise InvalidArgumentError(f"{function!r} is no function", hint="give a function of (DataFrame, epoch)")
        self.function = function

    def publish(self, result: Published) -> None:
        if result.files:
            self.function(result.frame(), result.epoch)

    def __repr__(self) -> str:
        return f"CallSink({getattr(self.function, '__qualname__', self.function)!r})"
