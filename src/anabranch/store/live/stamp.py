"""The stamp of a live state: which epoch its files show, and how to verify that they still do.

It has the epoch and the token of the epoch's decision: an epoch that was decided again, after a backup of the
checkpoint was restored, has the same number and another token. It also has the boot of the machine, since mapped pages
survive a process but not a power failure. And it describes the arrays: by their checksums or, where they are too large
to be summed in every epoch, by the identity and change time of their files.
"""

from __future__ import annotations

import functools
import json
import subprocess
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIVE_FORMAT = 2
"""State in another format is rebuilt."""


@dataclass(frozen=True)
class Entry:
    """An item of the state: its file and its content."""

    file: str
    length: int
    dtype: str | None = None
    """type of an array; None for a table"""
    crc32: int | None = None
    """checksum of a table, which never changes"""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a state at its commit, by name: either checksums or files."""

    sums: dict[str, int] | None = None
    """checksums"""
    files: dict[str, list[int]] | None = None
    """device, inode, size and change time of their files: every write changes the last"""


@dataclass(frozen=True)
class Stamp:
    """The content of a stamp."""

    epoch: int
    token: str
    """token of the epoch's decision"""
    run: str
    """run of the driver"""
    arrays: Arrays
    generation: int
    items: dict[str, Entry]


def layout(generation: int, items: dict[str, Entry]) -> bytes:
    """The part of a stamp that is the same as long as no item is added, resized or dropped."""
    plain = {
        name: {key: value for key, value in vars(each).items() if value is not None} for name, each in items.items()
    }
    content = {"format": LIVE_FORMAT, "boot": boot(), "generation": generation, "items": plain}
    return json.dumps(content).encode()[1:]  # the rest of the object that `write` begins


def write(epoch: int, token: str, run: str, arrays: Arrays, layout: bytes) -> bytes:
    """A stamp as bytes; each is unique."""
    described = {"sums": arrays.sums} if arrays.files is None else {"files": arrays.files}
    content = {"epoch": epoch, "token": token, "run": run, "commit": uuid.uuid4().hex, "arrays": described}
    text = json.dumps(content).encode()[:-1] + b", " + layout
    return b"%08x%s" % (zlib.crc32(text), text)


def read(stamp: bytes | None) -> Stamp | None:
    """The content of a stamp; None if it is torn, or from another boot or format."""
    if stamp is None or stamp[:8] != b"%08x" % zlib.crc32(stamp[8:]):
        return None
    content: dict[str, Any] = json.loads(stamp[8:])
    if content["format"] != LIVE_FORMAT or content["boot"] != boot():
        return None
    items = {name: Entry(**entry) for name, entry in content["items"].items()}
    arrays = Arrays(**content["arrays"])
    return Stamp(content["epoch"], content["token"], content["run"], arrays, content["generation"], items)


@functools.cache
def boot() -> str:
    """An id of the present boot of the machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        return subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True).stdout.strip()
    return ""
