"""The files of a live state, mapped into memory: one per array or table.

An array file may be changed in place and has room to grow. A table file never changes.
"""

from __future__ import annotations

import mmap
import os
import re
import zlib
from dataclasses import dataclass

import pyarrow as pa

from anabranch.operators.state import Item
from anabranch.store.live.own_folder import OpenFolder

PAGE = 4096
"""bytes of the smallest file: an empty one cannot be mapped"""
_OWN_NAMES = re.compile(r"\d{8,}-[0-9a-f]{8}\.(array|table)|\.?stamp")


def is_live_file(name: str) -> bool:
    """Whether a name is one that live state gives to its files: no others are ever deleted."""
    return _OWN_NAMES.fullmatch(name) is not None


@dataclass
class MappedItem:
    """An array or a table, and the mapped file that holds it."""

    file: str
    item: Item
    map: mmap.mmap
    inode: tuple[int, int]
    """device and inode of the mapped file: by now the name may belong to another file"""
    crc32: int = 0
    """checksum of a table"""
    checked: int | None = None
    """the change time of a table's file when its content was last compared"""

    @property
    def is_table(self) -> bool:
        return isinstance(self.item, pa.Table)

    @property
    def content(self) -> memoryview:
        """The bytes of the item; for an array, without the room to grow."""
        return memoryview(self.map)[: len(self.map) if self.is_table else self.item.nbytes]


def map_array(folder: OpenFolder, file: str, capacity: int = 0) -> tuple[mmap.mmap, tuple[int, int]]:
    """Map the file of an array, creating it with that capacity if one is given; the map, and device and inode."""
    fd = folder.open(file, os.O_RDWR | (os.O_CREAT | os.O_EXCL if capacity else 0))
    try:
        if capacity and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, capacity)  # on a full disk this fails; writing to the map would kill the process
        elif capacity:
            os.ftruncate(fd, capacity)
        info = os.fstat(fd)
        return mmap.mmap(fd, 0), (info.st_dev, info.st_ino)
    finally:
        os.close(fd)


def map_table(folder: OpenFolder, file: str, crc32: int | None = None) -> MappedItem:
    """Map the file of a table; ValueError if it does not match the checksum."""
    fd = folder.open(file, os.O_RDONLY)
    try:
        info = os.fstat(fd)
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    found = zlib.crc32(mapped)
    if crc32 not in (None, found):  # compared before Arrow reads it
        raise ValueError(f"{file} does not match its checksum")
    table = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
    return MappedItem(file, table, mapped, (info.st_dev, info.st_ino), found, info.st_ctime_ns)


def file_identity(info: os.stat_result) -> list[int]:
    """Values that change when a process writes to a file or replaces it."""
    return [info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns]


def capacity_for(needed: int) -> int:
    """Whole pages; large arrays get up to an eighth more than needed, so that growing a little is cheap."""
    step = max(PAGE, 1 << needed.bit_length() >> 4)
    return max(1, -(-needed // step)) * step
