"""DataFrames of rows that are stored in files or blocks.

The workers read them with pyarrow, from any file system; Spark moves only names and blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.io.blocks import Packed, payloads, referenced
from anabranch.io.folder import Folder
from anabranch.spark.arrow import map_in_arrow


@dataclass(frozen=True)
class _ReadFiles:
    folder: Folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                with self.folder.filesystem.open_input_file(f"{self.folder.path}/{name}") as file:
                    yield from pq.ParquetFile(file).iter_batches(65_536)


def read_files(session: SparkSession, folder: Folder, files: Sequence[str], schema: pa.Schema) -> DataFrame:
    """The rows of Parquet files as a DataFrame."""
    types = from_arrow_schema(schema)
    if not files:
        return session.createDataFrame([], types)
    names = session.createDataFrame([(name,) for name in files], "name string")
    return map_in_arrow(names, _ReadFiles(folder), types)


@dataclass(frozen=True)
class _Unpack:
    packed: Packed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            column = self.packed.column
            yield from referenced(batch) if column is None else payloads(batch.column(column))


def unpacked(frame: DataFrame, packed: Packed) -> DataFrame:
    """The tuples of a DataFrame of blocks, as rows."""
    return map_in_arrow(frame, _Unpack(packed), from_arrow_schema(packed.schema))
