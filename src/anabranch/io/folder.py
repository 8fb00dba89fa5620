"""Durable files: each appears complete or not at all, and its checksums show whether it is intact.

A file is a prefix (magic, format version, length and crc32 of the header, crc32 of the prefix itself), a JSON header
(kind, query, crc32 and length of the payload, and more), and the payload, which starts at a multiple of 64 bytes so
that Arrow and numpy can read it in place. The prefix has its own checksum so that a flipped bit is not taken for a
newer version; its layout is the same in all versions.

On a disk a file is written under a hidden name and renamed. An object store has no rename; there the whole file is
sent in one piece, because closing a stream after half of the pieces would publish that half.

There is no fsync per file: files survive the death of processes. If a machine loses power, the last files may be lost
or incomplete, and the checksums show it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import fs

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError, cannot_write, cause_of

FILE_FORMAT = 2
"""1: columns have the types of the session that wrote them. 2: those of `spark.arrow`."""
OLDEST_FORMAT = 1
"""The oldest format that this release still reads."""
ALIGNMENT = 64

Piece: TypeAlias = "pa.Buffer | bytes | memoryview"

_MAGIC = b"ANABRNCH"
_PREFIX = struct.Struct("<8sIIII")  # magic, format, header length, header crc32, crc32 of what is before
_OBJECT_STORE = re.compile(r"\b(s3|s3a|gcs|gs|abfs|abfss|az)\b")  # in "s3", "gcs", "py::fsspec+('s3', 's3a')"
TORN_HINT = (
    "restore the file from a copy, or start with a new checkpoint folder. `anabranch repair CHECKPOINT` reports the "
    "state of the checkpoint, and can go back to the last complete epoch if the ledger lost its last entries"
)


@dataclass(frozen=True)
class Folder:
    """A folder on any pyarrow file system; used on the driver and in tasks."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, where: str | os.PathLike[str] | tuple[fs.FileSystem, str]) -> Folder:
        """The folder of a local path, a URI (file://, s3://, hdfs://), or a file system and a path in it."""
        if isinstance(where, tuple):
            return cls(where[0], where[1].rstrip("/"))
        text = os.fspath(where)
        if "://" in text:
            try:
                filesystem, path = fs.FileSystem.from_uri(text)
            except pa.ArrowInvalid as error:
                raise InvalidArgumentError(
                    f"{text!r} is not a folder that can be written to: {error}",
                    hint="give a local path, a URI such as s3://bucket/folder, or a pyarrow file system and a path",
                ) from error
            return cls(filesystem, path.rstrip("/"))
        return cls(fs.LocalFileSystem(), os.path.abspath(text))

    def sub(self, *names: str) -> Folder:
        """A folder below this one."""
        for name in names:
            if not name or "/" in name or name in (".", ".."):
                raise InvalidArgumentError(f"{name!r} is not a folder name", hint="give plain names, one per level")
        return Folder(self.filesystem, "/".join([self.path, *names]))

    def create(self, *, parents: bool = True) -> None:
        """Create the folder if it does not exist. Nothing else creates folders, so that a vanished one is noticed."""
        if not self.is_object_store:
            with _writing(self.path):
                self.filesystem.create_dir(self.path, recursive=parents)

    def write(self, name: str, kind: str, payload: Piece | Sequence[Piece], **header: Any) -> int:
        """Write a file, completely or not at all, overwriting one of that name. Returns its size."""
        pieces = [payload] if isinstance(payload, bytes | memoryview | pa.Buffer) else list(payload)
        crc = length = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            length += memoryview(piece).nbytes
        head = _head({**header, "kind": kind, "crc32": crc, "length": length})
        with _writing(self._file(name)):
            if self.is_object_store:
                self._put(self._file(name), [b"".join([head, *pieces])])
            else:
                self._put_and_rename(name, [head, *pieces])
        return len(head) + length

    def read(self, name: str, kind: str, query: str | None = None) -> tuple[dict[str, Any], pa.Buffer]:
        """The checked header and payload of a file; memory-mapped on a local disk."""
        opened = self.open(name, kind, query)
        return opened.header, opened.payload()

    def open(self, name: str, kind: str, query: str | None = None) -> Opened:
        """A file with its header read and checked, but not yet its payload."""
        path = self._file(name)
        with _reading(path):
            file = pa.memory_map(path) if self.is_local else self.filesystem.open_input_file(path)
            return _open(file, path, kind, query)

    def files(self) -> list[str]:
        """Names of the files, sorted, without those that a crash left incomplete."""
        return self._names(fs.FileType.File)

    def folders(self) -> list[str]:
        """Names of the folders, sorted."""
        return self._names(fs.FileType.Directory)

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        with _reading(self._file(name)):
            return bool(self.filesystem.get_file_info(self._file(name)).type == fs.FileType.File)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        with _writing(self._file(name)), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._file(name))

    def remove(self) -> None:
        """Delete the folder and everything in it, if it exists."""
        with _writing(self.path), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path)

    @property
    def nbytes(self) -> int:
        """Size of all files here and below."""
        with _reading(self.path):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True, recursive=True))
        return sum(info.size or 0 for info in found)

    def __str__(self) -> str:
        return self.path

    @property
    def is_object_store(self) -> bool:
        """Whether puts are atomic here, and there are no renames and no folders."""
        base = self.filesystem
        while isinstance(base, fs.SubTreeFileSystem):
            base = base.base_fs
        return _OBJECT_STORE.search(base.type_name) is not None

    @property
    def is_local(self) -> bool:
        """Whether this is a local disk, with memory maps and file locks."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def _put(self, path: str, pieces: Sequence[Piece]) -> None:
        with self.filesystem.open_output_stream(path) as stream:
            for piece in pieces:
                stream.write(piece)

    def _put_and_rename(self, name: str, pieces: Sequence[Piece]) -> None:
        if not self.is_local and self.filesystem.get_file_info(self.path).type != fs.FileType.Directory:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)  # HDFS would create it
        temporary = self._file(f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            self._put(temporary, pieces)
            self.filesystem.move(temporary, self._file(name))
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _names(self, kind: fs.FileType) -> list[str]:
        with _reading(self.path):
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == kind and not info.base_name.startswith("."))


@dataclass(frozen=True)
class Opened:
    """A file whose header is checked; parts of the payload are checked when they are read."""

    file: Any
    path: str
    header: dict[str, Any]
    start: int
    format: int

    def payload(self) -> pa.Buffer:
        """The whole payload."""
        return self.part(0, self.header["length"], self.header["crc32"])

    def part(self, offset: int, length: int, crc32: int) -> pa.Buffer:
        """A part of the payload."""
        with _reading(self.path):
            self.file.seek(self.start + offset)
            buffer: pa.Buffer = self.file.read_buffer(length)
        if zlib.crc32(buffer) != crc32:
            raise _torn(self.path, "its content does not match its checksum")
        return buffer


def _head(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % ALIGNMENT)
    fixed = _PREFIX.pack(_MAGIC, FILE_FORMAT, len(text), zlib.crc32(text), 0)[:-4]
    return fixed + struct.pack("<I", zlib.crc32(fixed)) + text


def _open(file: Any, path: str, kind: str, query: str | None) -> Opened:
    size = file.size()
    if size < _PREFIX.size:
        raise _torn(path, f"it has only {size} bytes")
    prefix = bytes(file.read_at(_PREFIX.size, 0))
    magic, version, length, header_crc, prefix_crc = _PREFIX.unpack(prefix)
    if magic != _MAGIC or zlib.crc32(prefix[:-4]) != prefix_crc:
        raise _torn(path, "it does not start with a valid prefix")
    if version > FILE_FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this release reads up to {FILE_FORMAT}: it would misread the state",
            hint="run the release that wrote it or a newer one, or use another checkpoint folder",
        )
    if version < OLDEST_FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and the oldest that this release reads is {OLDEST_FORMAT}: it would misread "
            "the state",
            hint="run a release that reads both formats first, or use another checkpoint folder",
        )
    text = bytes(file.read_at(length, _PREFIX.size)) if size >= _PREFIX.size + length else b""
    if len(text) != length or zlib.crc32(text) != header_crc:
        raise _torn(path, "its header does not match its checksum")
    header = json.loads(text)
    start = _PREFIX.size + length
    if size != start + header["length"]:
        raise _torn(path, f"it has {size} bytes instead of {start + header['length']}")
    if header["kind"] != kind:
        raise StateError(f"{path} is a {header['kind']}, not a {kind}", hint=TORN_HINT)
    if query is not None and header.get("query") != query:
        raise CheckpointError(
            f"{path} was written by another query: its content would give wrong results",
            hint="use another checkpoint folder, or run the query that wrote this one",
        )
    return Opened(file, path, header, start, version)


def _torn(path: str, why: str) -> StateError:
    return StateError(f"the file {path} is torn or damaged: {why}, so nothing in it can be trusted", hint=TORN_HINT)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(
            f"{path} is missing: without it the state of the query cannot be rebuilt", hint=TORN_HINT
        ) from error
    except OSError as error:
        raise StateError(
            f"{path} cannot be read: {cause_of(error)}", hint="check the file system, then start the query again"
        ) from error


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
