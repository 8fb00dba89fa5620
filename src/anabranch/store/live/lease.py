"""A lock on a group's live folder (flock): two attempts of one task never use a group's state at the same time."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from anabranch.store.live.own_folder import OwnFolder, using

LEASE_FILE = "lock"


class Lease:
    """An exclusive lock on a live folder. Entering waits for the holder, and creates the folder.

    Not re-entrant: a second lease of one folder in the same thread waits indefinitely.
    """

    def __init__(self, folder: OwnFolder | str | Path) -> None:
        self._folder = OwnFolder.at(folder)
        self._fd = -1

    def __enter__(self) -> Lease:
        with using(self._folder.path):
            while not self._take(fcntl.LOCK_EX, make=True):
                pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def try_take(self) -> bool:
        """Take it if it is free. Does not create the folder: the lease of an absent folder cannot be taken."""
        with suppress(BlockingIOError, FileNotFoundError):
            return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB, make=False)
        return False

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # closing is not enough: a forked child has the descriptor too
        os.close(self._fd)

    def _take(self, how: int, *, make: bool) -> bool:
        """Lock the file; False if it was replaced while we waited: another process may have locked the new one."""
        folder = self._folder.open(make=make)
        fd = folder.open(LEASE_FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, how)
            with suppress(FileNotFoundError):
                if folder.in_place() and os.path.samestat(os.fstat(fd), folder.stat(LEASE_FILE)):
                    self._fd = fd
                    return True
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return False
