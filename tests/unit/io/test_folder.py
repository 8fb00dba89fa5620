"""Durable files: whole or not at all, and they tell when they are not what was written."""

from __future__ import annotations

import errno
import io
import os
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs
from pyspark import cloudpickle

from anabranch.errors import CheckpointError, InvalidArgumentError, StateError
from anabranch.io import folder
from anabranch.io.folder import ALIGNMENT, FILE_FORMAT, OLDEST_FORMAT, Folder
from tests.conftest import s3_at

RESERVED = {"kind", "crc32", "length", "name", "payload", "self"}


@pytest.fixture
def local(tmp_path: Path) -> Folder:
    folder = Folder.at(tmp_path / "there")
    folder.create()
    return folder


# ---- the same on a disk and on an object store


def test_reads_what_was_written(folder: Folder) -> None:
    folder.create()
    size = folder.write(
        "a", "thing", [b"one", memoryview(b"two"), pa.py_buffer(b"three")], query="q", more=[1, {"x": 2}]
    )
    header, payload = folder.read("a", "thing")
    assert payload.to_pybytes() == b"onetwothree"
    assert header["query"] == "q" and header["more"] == [1, {"x": 2}] and header["kind"] == "thing"
    assert size == folder.nbytes == folder.filesystem.get_file_info(f"{folder.path}/a").size


def test_the_same_name_again_overwrites(folder: Folder) -> None:
    folder.create()
    folder.write("a", "thing", b"first")
    folder.write("a", "thing", b"second")
    assert folder.read("a", "thing")[1].to_pybytes() == b"second"
    assert folder.files() == ["a"]


@pytest.mark.parametrize("payload", [b"", [], [b"", b""], pa.py_buffer(b"")], ids=["bytes", "none", "some", "buffer"])
def test_an_empty_payload(folder: Folder, payload: Any) -> None:
    folder.create()
    folder.write("a", "thing", payload)
    assert folder.read("a", "thing")[1].size == 0


def test_a_payload_of_many_parts(folder: Folder) -> None:
    folder.create()
    content = bytes(range(256)) * (6 << 12)  # above the size from which S3 takes a file in parts
    folder.write("big", "thing", [content, content])
    assert folder.read("big", "thing")[1].to_pybytes() == content * 2


def test_what_is_listed(folder: Folder) -> None:
    assert folder.files() == folder.folders() == [] and folder.nbytes == 0
    folder.create()
    for name in ("b", "a"):
        folder.sub("below").create()
        folder.sub("below").write("x", "thing", b"")
        folder.write(name, "thing", b"")
    assert folder.files() == ["a", "b"]
    assert folder.folders() == ["below"]
    assert folder.exists("a") and not folder.exists("c") and not folder.exists("below")
    folder.delete("a")
    folder.delete("a")
    assert folder.files() == ["b"]
    folder.remove()
    folder.remove()
    assert folder.files() == folder.folders() == []


def test_a_missing_file(folder: Folder) -> None:
    with pytest.raises(StateError, match="is missing"):
        folder.read("a", "thing")
    folder.create()
    with pytest.raises(StateError, match="is missing"):
        folder.read("a", "thing")


def test_another_kind_and_another_query(folder: Folder) -> None:
    folder.create()
    folder.write("a", "thing", b"x", query="q")
    with pytest.raises(StateError, match="is a thing, not a plan"):
        folder.read("a", "plan")
    with pytest.raises(CheckpointError, match="another query"):
        folder.read("a", "thing", "other")


def test_travels_to_tasks(folder: Folder) -> None:
    folder.create()
    folder.write("a", "thing", b"x")
    there = cloudpickle.loads(cloudpickle.dumps(folder))
    assert there == folder and str(there) == folder.path
    assert there.read("a", "thing")[1].to_pybytes() == b"x"


# ---- names


def test_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where in ("x", Path("x"), tmp_path / "x", f"file://{tmp_path}/x", (fs.LocalFileSystem(), f"{tmp_path}/x/")):
        assert Folder.at(where).path == str(tmp_path / "x")
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        Folder.at("nowhere://x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_names_of_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Folder.at(tmp_path).sub(name)


@pytest.mark.parametrize(
    ("name", "is_object_store"),
    [("s3", True), ("gcs", True), ("abfs", True), ("fsspec+s3", True), ("fsspec+('s3', 's3a')", True), ("hdfs", False)],
)
def test_object_stores_are_known_by_name(name: str, is_object_store: bool) -> None:
    assert Folder(fs.PyFileSystem(Fake(name)), "x").is_object_store is is_object_store
    assert Folder(fs.SubTreeFileSystem("y", fs.PyFileSystem(Fake(name))), "x").is_object_store is is_object_store


# ---- damage


def test_torn_at_every_byte(local: Folder) -> None:
    local.write("a", "thing", b"0123456789" * 5, query="q")
    path = Path(local.path, "a")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="torn or damaged"):
            local.read("a", "thing")
    path.write_bytes(whole + b"x")
    with pytest.raises(StateError, match="torn or damaged"):
        local.read("a", "thing")


def test_any_flipped_bit(local: Folder) -> None:
    local.write("a", "thing", b"0123456789" * 5, query="q")
    path = Path(local.path, "a")
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
            with pytest.raises(StateError):  # never a CheckpointError: damage is not a newer release
                local.read("a", "thing")


def test_a_newer_format(local: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "FILE_FORMAT", FILE_FORMAT + 1)
    local.write("a", "thing", b"x")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"format {FILE_FORMAT + 1}"):
        local.read("a", "thing")


def test_an_older_format_than_is_supported(local: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "FILE_FORMAT", OLDEST_FORMAT - 1)
    local.write("a", "thing", b"x")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"has format {OLDEST_FORMAT - 1}, .* reads is {OLDEST_FORMAT}"):
        local.read("a", "thing")


def test_layout(local: Folder) -> None:
    """Other languages read the files too: this is what they find."""
    local.write("a", "thing", b"payload", query="q")
    raw = Path(local.path, "a").read_bytes()
    magic, version, length, header_crc, prefix_crc = struct.unpack_from("<8sIIII", raw)
    assert (magic, version) == (b"ANABRNCH", FILE_FORMAT)
    assert prefix_crc == zlib.crc32(raw[:20]) and header_crc == zlib.crc32(raw[24 : 24 + length])
    assert (24 + length) % ALIGNMENT == 0 and raw[24 + length :] == b"payload"


@given(st.binary(max_size=200), st.dictionaries(st.text(max_size=5).filter(lambda k: k not in RESERVED), st.integers()))
def test_any_payload_and_header(tmp_path_factory: pytest.TempPathFactory, payload: bytes, more: dict[str, int]) -> None:
    folder = Folder.at(tmp_path_factory.getbasetemp() / "any")
    folder.create()
    folder.write("a", "thing", payload, **more)
    header, read = folder.read("a", "thing")
    assert read.to_pybytes() == payload
    assert {key: header[key] for key in more} == more


# ---- writes that fail


class Fake(fs.FileSystemHandler):
    """Files in a dictionary, on a disk that takes `room` bytes; a stream that is closed publishes what it got."""

    def __init__(self, name: str, room: int = 1 << 30) -> None:
        self.name, self.room = name, room
        self.kept: dict[str, bytes] = {}

    def get_type_name(self) -> str:
        return self.name

    def normalize_path(self, path: str) -> str:
        return path

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Stream(self, path), "w")

    def move(self, source: str, target: str) -> None:
        self.kept[target] = self.kept.pop(source)

    def delete_file(self, path: str) -> None:
        if self.kept.pop(path, None) is None:
            raise FileNotFoundError(path)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(p, fs.FileType.File if p in self.kept else fs.FileType.Directory) for p in paths]

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _unused
    get_file_info_selector = open_append_stream = open_input_file = open_input_stream = _unused


class _Stream(io.RawIOBase):
    def __init__(self, disk: Fake, path: str) -> None:
        self._disk, self._path, self._got = disk, path, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(self._got) + len(data) > self._disk.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._got += bytes(data)
        return len(data)

    def close(self) -> None:
        if not self.closed and self._got:
            self._disk.kept[self._path] = self._got
        super().close()


@pytest.mark.parametrize("kind", ["hdfs", "s3"])
def test_a_full_disk_leaves_what_was_there(kind: str) -> None:
    disk = Fake(kind)
    folder = Folder(fs.PyFileSystem(disk), "x")
    folder.write("a", "thing", b"old")
    before = dict(disk.kept)
    disk.room = 200  # the header fits, the payload does not
    with pytest.raises(StateError, match=r"x/a cannot be written: No space left on device. Nothing was lost"):
        folder.write("a", "thing", [b"new", b"x" * 1000])
    assert disk.kept == before and list(before) == ["x/a"]


def test_a_write_that_is_interrupted_leaves_no_draft(local: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.write("a", "thing", b"x")
    assert os.listdir(local.path) == []


@pytest.fixture
def failing(s3: fs.S3FileSystem) -> Iterator[fs.S3FileSystem]:
    """The same S3, by a way that fails for the second part of a file."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    whole = DomainDispatcherApplication(create_backend_app)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if "partNumber=2" not in environ["QUERY_STRING"]:
            return whole(environ, start_response)
        while environ["wsgi.input"].read(1 << 20):
            pass
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return [b""]

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield s3_at(f"127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_an_object_store_that_fails_halfway_keeps_the_old_file(s3: fs.S3FileSystem, failing: fs.S3FileSystem) -> None:
    folder = Folder.at((failing, "bucket/halfway"))
    folder.write("a", "thing", b"old")
    for name in ("a", "b"):
        with pytest.raises(StateError, match=f"bucket/halfway/{name} cannot be written"):
            folder.write(name, "thing", [b"x" * (15 << 20), b"y" * (15 << 20)])
    there = Folder.at((s3, "bucket/halfway"))
    assert there.files() == ["a"]
    assert there.read("a", "thing")[1].to_pybytes() == b"old"


def test_an_object_store_that_is_not_there() -> None:
    with socket.socket() as taken:  # a port that nobody listens at
        taken.bind(("127.0.0.1", 0))
        folder = Folder.at((s3_at(f"127.0.0.1:{taken.getsockname()[1]}"), "bucket/x"))
        for act in (
            lambda: folder.write("a", "thing", b"x"),
            lambda: folder.read("a", "thing"),
            lambda: folder.files(),
            lambda: folder.exists("a"),
            lambda: folder.delete("a"),
            lambda: folder.nbytes,
        ):
            with pytest.raises(StateError, match="cannot be"):
                act()


def test_a_folder_that_vanished_is_not_made_again(local: Folder) -> None:
    local.write("a", "thing", b"x")
    local.remove()
    with pytest.raises(StateError, match="No such file or directory"):
        local.write("a", "thing", b"x")
    assert not os.path.exists(local.path)
    with pytest.raises(StateError):
        local.sub("deeper").create(parents=False)
    below = Folder(fs.SubTreeFileSystem(local.path, fs.LocalFileSystem()), "y")  # as on HDFS: no local path
    with pytest.raises(StateError, match="No such file or directory"):
        below.write("a", "thing", b"x")


def test_what_a_crash_left_is_not_listed_and_goes_with_the_folder(local: Folder) -> None:
    code = f"""
import os
from anabranch.io.folder import Folder
Folder._put = lambda self, path, pieces: (open(path, "wb").write(b"half"), os._exit(9))
Folder.at({local.path!r}).write("a", "thing", b"x")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert len(os.listdir(local.path)) == 1
    assert local.files() == [] and not local.exists("a")
    local.remove()
    assert not os.path.exists(local.path)


def test_a_map_outlives_its_file(local: Folder) -> None:
    local.write("a", "thing", b"first")
    _, first = local.read("a", "thing")
    local.write("a", "thing", b"other")
    local.delete("a")
    assert first.to_pybytes() == b"first"
