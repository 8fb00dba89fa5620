"""Results as Parquet files."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from anabranch.calls import made_as
from anabranch.errors import CheckpointError, InvalidArgumentError, StateError, cannot_write
from anabranch.io.folder import Folder
from anabranch.io.sinks.base import Published, Sink, SinkPlace

_OWNER = "_owner"
"""Says which checkpoint the epochs of a folder belong to; readers ignore it."""


@made_as('ab.FileSink("results/")')
class FileSink(Sink):
    """Parquet files in a folder `epoch=N` per epoch with rows; ``spark.read.parquet(path)`` reads them all.

    To a reader such folders are partitions, which add a column `epoch`. With ``flat=True`` the files are in the folder
    itself and have only the columns of the query, but the files of an epoch appear one after another.
    """

    guarantee = "exactly once: a folder per epoch, which appears in one step and never changes"

    def __init__(self, path: str | Path, *, flat: bool = False) -> None:
        self.folder = Folder.at(path)
        self.flat = flat
        self._path = str(path) if "://" in str(path) else self.folder.path
        self._claimed: str | None = None
        if self.folder.is_object_store:
            raise InvalidArgumentError(
                f"{path} is on an object store, which cannot rename folders: readers could see half an epoch",
                hint="write to a local or HDFS path, or into a Delta table (DeltaSink)",
            )

    @property
    def place(self) -> SinkPlace:
        return SinkPlace(type(self).__name__, self._path, self.flat)

    def epochs(self) -> list[int]:
        """The epochs whose results are published."""
        names = self.folder.files() if self.flat else self.folder.folders()
        found = (re.fullmatch(r"epoch-(\d+)-.*" if self.flat else r"epoch=(\d+)", name) for name in names)
        return sorted({int(each[1]) for each in found if each})

    def open(self, session: SparkSession) -> None:
        self.folder.create()

    def staging(self, epoch: int, default: Folder) -> Folder:
        # In the same folder, so that publishing is a rename; readers ignore names that begin with an underscore.
        return self.folder.sub("_staging", f"epoch={epoch}")

    def publish(self, result: Published) -> None:
        self._claim(result.query)
        if self.flat:
            self._publish_files(result)
            return
        target = self.folder.sub(f"epoch={result.epoch}")
        if not result.files or f"epoch={result.epoch}" in self.folder.folders():
            # No rows, or already published before a crash: the same rows, since an epoch is deterministic.
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
            if target in known:  # already published before a crash: the same rows
                continue
            try:
                result.folder.filesystem.move(f"{result.folder.path}/{name}", f"{self.folder.path}/{target}")
            except OSError as error:
                raise cannot_write(f"{self.folder.path}/{target}", error) from error
        result.folder.remove()

    def _claim(self, query: str) -> None:
        """Claim the folder for this checkpoint: the epochs of another have the same names, and would be mixed up."""
        if self.folder.exists(_OWNER):
            if self._claimed != query:
                self._check_owner(query)
        elif self._claimed == query:
            raise StateError(
                f"{self.folder} disappeared while the query ran, with the results of all earlier epochs",
                hint="restore the folder, then start the query again; without the folder it continues with this epoch",
            )
        elif any(name.startswith("epoch") for name in [*self.folder.folders(), *self.folder.files()]):
            raise CheckpointError(
                f"{self.folder} contains epochs of an unknown query: new epochs with the same numbers would be skipped "
                "as already published",
                hint="use an empty folder, or one that does not exist yet",
            )
        else:
            self.folder.write(_OWNER, "owner", b"", query=query)
        self._claimed = query

    def _check_owner(self, query: str) -> None:
        another = "use a separate folder for these results: FileSink(...) with one that is empty or does not exist yet"
        try:
            header, _ = self.folder.read(_OWNER, "owner")
        except StateError as error:
            raise StateError(error.message, hint=f"restore the file from a copy, or {another}") from error
        if header.get("query") != query:
            raise CheckpointError(
                f"{self.folder} contains the results of another query, or of this one with another checkpoint: new "
                "epochs with the same numbers would be skipped as already published",
                hint=f"{another}; or start with the checkpoint that these results belong to",
            )

    def __repr__(self) -> str:
        return f"FileSink({str(self.folder)!r}{', flat=True' if self.flat else ''})"
