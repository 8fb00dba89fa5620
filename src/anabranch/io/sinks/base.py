"""The interface of sinks, and what they publish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from anabranch.io.folder import Folder
from anabranch.io.frames import read_files


@dataclass(frozen=True)
class Published:
    """The rows of an epoch, ready to be published: files in a folder, and their columns."""

    epoch: int
    query: str
    folder: Folder
    files: tuple[str, ...]
    schema: pa.Schema
    session: SparkSession
    rows: int

    def table(self) -> pa.Table:
        """The rows, loaded on the driver."""
        tables = [
            pq.read_table(f"{self.folder.path}/{name}", filesystem=self.folder.filesystem, schema=self.schema)
            for name in self.files
        ]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def frame(self) -> DataFrame:
        """The rows as a DataFrame."""
        return read_files(self.session, self.folder, self.files, self.schema)


@dataclass(frozen=True)
class SinkPlace:
    """Where a sink is, in the ledger: `anabranch repair` must know who may have results."""

    sink: str
    """the name of its class"""
    path: str | None = None
    """the folder, of a `FileSink`"""
    flat: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"sink": self.sink, **({} if self.path is None else {"path": self.path, "flat": self.flat})}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> SinkPlace:
        return cls(known.get("sink", "an unknown sink"), known.get("path"), known.get("flat", False))


class Sink(ABC):
    """Where results go."""

    guarantee: ClassVar[str]
    keeps: ClassVar[bool] = True
    """False if rows need not be written at all."""

    def staging(self, epoch: int, default: Folder) -> Folder:
        """Where tasks write an epoch before it is published."""
        return default

    @abstractmethod
    def publish(self, result: Published) -> None:
        """Make an epoch visible. Called again for the same epoch after a crash."""

    @property
    def place(self) -> SinkPlace:
        """Where it is, for the ledger."""
        return SinkPlace(type(self).__name__)

    def open(self, session: SparkSession) -> None:  # noqa: B027  # optional
        """Called once, before the first epoch: check that the sink is writable."""
