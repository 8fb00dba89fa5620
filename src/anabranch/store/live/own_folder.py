"""Folders that only this user can read and change, below one that the user named or the system's temporary folder.

Everybody can write to the system's temporary folder: others can create a folder there before we do, or a symbolic link
to files of ours. So each folder on the way down is created with mode 0700, opened relative to the one above it, never
through a symbolic link, and must belong to this user. Everything done in it afterwards uses its descriptor.

This happens on the machine that uses the folder: on a cluster, the worker's.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from anabranch.errors import StateError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in the place of a file must not block us


@dataclass(frozen=True)
class OwnFolder:
    """The location of a folder; sent to tasks."""

    base: str | None
    """named by the user and not checked; None: a folder per user in the system's temporary folder"""
    names: tuple[str, ...] = ()
    """the folders below it, which must belong to this user"""

    @classmethod
    def at(cls, where: OwnFolder | str | Path) -> OwnFolder:
        """The folder at a path, which must belong to this user; folders above it need not."""
        if isinstance(where, OwnFolder):
            return where
        path = Path(os.path.abspath(where))
        return cls(str(path.parent), (path.name,))

    def sub(self, *names: str) -> OwnFolder:
        """A folder below this one."""
        return OwnFolder(self.base, (*self.names, *names))

    @property
    def path(self) -> Path:
        """The path on this machine, for this user."""
        base, names = self._place()
        return Path(base, *names)

    def open(self, *, make: bool = True) -> OpenFolder:
        """Open the folder, creating it if absent; with `make=False`, FileNotFoundError."""
        base, names = self._place()
        if make:
            os.makedirs(base, exist_ok=True)
        path = Path(base)
        fd = os.open(base, _DIRECTORY)
        try:
            for name in names:
                path /= name
                below = _descend(fd, name, path, make)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return OpenFolder(path, fd)

    def _place(self) -> tuple[str, tuple[str, ...]]:
        if self.base is None:
            return tempfile.gettempdir(), (f"anabranch-{os.geteuid()}", *self.names)
        return self.base, self.names


class OpenFolder:
    """An open folder. File names are relative to its descriptor; symbolic links are not followed."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._info = os.fstat(fd)

    def __del__(self) -> None:
        os.close(self._fd)

    def in_place(self) -> bool:
        """Whether this is still the folder at that path."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(self._info, os.stat(self.path, follow_symlinks=False))
        return False

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file; a new file is for this user only."""
        return os.open(name, flags | _FILE, 0o600, dir_fd=self._fd)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def replace(self, old: str, new: str) -> None:
        os.replace(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a file, or a symbolic link itself; an absent one is fine."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove an empty folder; one that is not empty stays."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._fd)

    def names(self) -> list[str]:
        return sorted(os.listdir(self._fd))


def _descend(fd: int, name: str, path: Path, make: bool) -> int:
    """The descriptor of a folder below, which must belong to this user."""
    try:
        try:
            below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
            below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM):
            raise
        raise _foreign(path, os.stat(name, dir_fd=fd, follow_symlinks=False)) from error
    info = os.fstat(below)
    try:
        if info.st_uid != os.geteuid():
            raise _foreign(path, info)
        if stat.S_IMODE(info.st_mode) & 0o077:
            os.fchmod(below, 0o700)
    except BaseException:
        os.close(below)
        raise
    return below


def _foreign(path: Path, info: os.stat_result) -> StateError:
    if stat.S_ISLNK(info.st_mode):
        why = "it is a symbolic link, which could lead to files of others"
    elif not stat.S_ISDIR(info.st_mode):
        why = "it is not a folder"
    elif info.st_uid != os.geteuid():
        why = f"it belongs to {_user(info.st_uid)}, who could read the state of this query and replace it"
    else:
        why = "this user has no permission to read it"
    return StateError(
        f"{path} cannot be used for live state: {why}",
        hint="remove it, or choose a folder of your own with live=...",
    )


def _user(uid: int) -> str:
    with suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name}"
    return f"user {uid}"


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a StateError."""
    try:
        yield
    except OSError as error:
        raise StateError(
            f"the live state in {path} cannot be used: {error.strerror or error}. Nothing was lost: it is rebuilt "
            "from the epoch store",
            hint="free space on the worker's disk, restore write permission there, or remove that folder; then start "
            "the query again",
        ) from error
