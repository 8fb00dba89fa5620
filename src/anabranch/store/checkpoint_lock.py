"""One driver per checkpoint: a lock that `start` takes before anything runs, and that says who holds it.

On a local disk it is a file lock (flock), which the kernel releases when the process dies: a second driver is refused,
and after a crash the next one starts at once.

Other file systems have no locks. There a file names the holder, which increments a count in it every `BEAT` seconds. A
driver that finds such a file waits `DEAD_AFTER` seconds for the count to change; if it does not, the holder is dead.
Clocks are not compared. Two drivers that start at the same moment may both believe that they have the lock, and a
driver that was suspended for long has lost it. So the holder checks again before it publishes an epoch, and before it
records that one is done: of two drivers, one ends with an error. Between that check and the publishing there is a short
time without a guarantee.

A second query in the same process is refused too. Spark would silently stop the first one.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from anabranch.errors import CheckpointError, StateError, cannot_write
from anabranch.io.folder import Folder
from anabranch.store.live.stamp import boot

LOCK = ".lock"
BEAT = 10.0
"""seconds between two updates of the count"""
DEAD_AFTER = 35.0
"""seconds without an update after which the holder is taken to be dead"""

LOCK_VERSION = 1
"""Version of the holder in the file. One without a version is older, and is read as well."""

_HINT = "stop that query, or give this one its own checkpoint folder"


@dataclass(frozen=True)
class Holder:
    """Who holds a checkpoint."""

    query: str | None = None
    user: str = ""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(" ", "seconds"))
    processes: str = field(default_factory=lambda: _processes())
    """the process namespace in which `pid` is valid: containers have their own"""
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def me(cls, query: str | None) -> Holder:
        user = str(os.geteuid())
        with suppress(KeyError, OSError):  # in a container a user may have no name
            user = getpass.getuser()
        return cls(query, user)

    def to_json(self) -> dict[str, Any]:
        return {"version": LOCK_VERSION, **vars(self)}

    @classmethod
    def from_json(cls, known: Any) -> Holder | None:
        """The holder; None if this is none, or one of a later release, which may mean something else."""
        with suppress(AttributeError, LookupError, TypeError):
            if known.get("version", 0) <= LOCK_VERSION and isinstance(known["pid"], int):
                return cls(**{name: known[name] for name in cls.__dataclass_fields__})
        return None

    def __str__(self) -> str:
        named = f"the query {self.query!r}" if self.query else "a query without a name"
        return f"{named} in process {self.pid} of user {self.user} on {self.host}, since {self.since}"

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to have ended."""
        if self.processes != _processes():
            return False
        try:
            with suppress(PermissionError):  # it belongs to another user, and is alive
                os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        return False


class _Lock(Protocol):
    folder: Folder

    def take(self) -> None: ...
    def check(self) -> bool:
        """Whether it is still ours."""
        ...

    def release(self) -> None: ...


class CheckpointLock:
    """The lock on a query's checkpoint folders; `with` releases it if the start of the query fails."""

    def __init__(self, query: str | None, *folders: Folder) -> None:
        self._holder = Holder.me(query)
        self._locks = {_key(folder): _lock(folder, self._holder) for folder in folders}
        self._is_active: Callable[[], bool] = lambda: True

    def __enter__(self) -> CheckpointLock:
        with _guard:
            for key, lock in self._locks.items():
                other = _taken.get(key)
                if other is not None and other._is_active():
                    raise held(lock.folder, other._holder)
                if other is not None:  # its query has ended without releasing it
                    other.release()
            _taken.update(dict.fromkeys(self._locks, self))
        done: list[_Lock] = []
        try:
            for lock in self._locks.values():
                lock.take()
                done.append(lock)
        except BaseException:
            self._forget()
            _release(done)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.release()

    def belongs_to(self, is_active: Callable[[], bool]) -> None:
        """Set how to find out whether the query that holds the lock is still running. The function must not raise."""
        self._is_active = is_active

    def check(self) -> None:
        """Raise if the lock is no longer ours: another driver may be running."""
        for key, lock in self._locks.items():
            if _taken.get(key) is not self or not lock.check():
                raise CheckpointError(
                    f"{lock.folder} is no longer locked by this query: another driver may have taken it over, and both "
                    "would publish the same epoch",
                    hint="check whether another driver is running; if none is, start the query again",
                )

    def release(self) -> None:
        """Release the checkpoint; calling it again does nothing."""
        if self._forget():
            _release(self._locks.values())

    def _forget(self) -> bool:
        with _guard:
            mine = [key for key in self._locks if _taken.get(key) is self]
            for key in mine:
                del _taken[key]
            return bool(mine)


def _key(folder: Folder) -> str:
    return os.path.realpath(folder.path) if folder.is_local else f"{folder.filesystem.type_name}:{folder.path}"


def _lock(folder: Folder, holder: Holder) -> _Lock:
    return _FileLock(folder, holder) if folder.is_local else _Heartbeat(folder, holder)


def _release(locks: Iterable[_Lock]) -> None:
    for lock in locks:
        with suppress(OSError, StateError):  # the file system is not available; the lock is free when this process ends
            lock.release()


_taken: dict[str, CheckpointLock] = {}
"""the locks that this process holds"""
_guard = threading.RLock()


def held(folder: Folder, holder: Holder | None) -> CheckpointError:
    """The error for a checkpoint that is in use."""
    who = holder or "another query"
    return CheckpointError(
        f"{folder} is in use by {who}: two drivers on one checkpoint would publish some epochs twice and lose others",
        hint=_HINT,
    )


class _FileLock:
    """A lock by flock, on a local disk."""

    def __init__(self, folder: Folder, holder: Holder) -> None:
        self.folder, self._holder = folder, holder
        self._path = Path(folder.path, LOCK)
        self._fd = -1

    def take(self) -> None:
        self.folder.create()
        try:
            while not self._try():
                pass
        except OSError as error:
            raise cannot_write(str(self._path), error) from error

    def check(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        return False

    def release(self) -> None:
        _inherited.discard(self._fd)
        if self.check():
            self._path.unlink()
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def _try(self) -> bool:
        """Lock the file; False if its holder removed it at that moment."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fd = fd
            if not self.check():
                os.close(fd)
                return False
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(self._holder.to_json()).encode(), 0)
            _inherited.add(fd)
            return True
        except BlockingIOError:
            content = os.pread(fd, 65_536, 0)
            os.close(fd)
            raise held(self.folder, _holder_in(content)) from None
        except BaseException:
            os.close(fd)
            raise


_inherited: set[int] = set()


def _close_inherited() -> None:
    """In a forked child: it must not keep the locks of its parent after the parent dies."""
    for fd in _inherited:
        os.close(fd)
    _inherited.clear()
    _taken.clear()


os.register_at_fork(after_in_child=_close_inherited)


class _Heartbeat:
    """A lock by a file that is rewritten periodically, where the file system has no locks."""

    def __init__(self, folder: Folder, holder: Holder) -> None:
        self.folder, self._holder = folder, holder
        self._ended = threading.Event()

    def take(self) -> None:
        found, deadline = self._read(), time.monotonic() + DEAD_AFTER
        while found is not None and not _is_dead(found[0]) and time.monotonic() < deadline:
            time.sleep(min(1.0, BEAT / 10))
            now = self._read()
            if now is not None and now != found:
                raise held(self.folder, now[0])
            found = now
        self.folder.create()
        self._write(0)
        if not self.check():
            raise held(self.folder, None)
        threading.Thread(target=self._beat, name="anabranch-checkpoint-lock", daemon=True).start()

    def check(self) -> bool:
        found = self._read()
        return found is not None and found[0] == self._holder

    def release(self) -> None:
        self._ended.set()
        if self.check():
            self.folder.delete(LOCK)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT):
            count += 1
            with suppress(
                StateError
            ):  # a file system that is unavailable for a moment; `check` finds out whether it matters
                if not self.check():
                    return
                self._write(count)

    def _read(self) -> tuple[Holder | None, bytes] | None:
        """The holder, None if that cannot be read, and the whole content, which changes with each beat."""
        if not self.folder.exists(LOCK):
            return None
        try:
            _, payload = self.folder.read(LOCK, "lock")
        except StateError:
            return None  # it was just released
        content = payload.to_pybytes()
        with suppress(LookupError, TypeError, ValueError):
            return Holder.from_json(json.loads(content)["holder"]), content
        return None, content

    def _write(self, beats: int) -> None:
        content = json.dumps({"holder": self._holder.to_json(), "beats": beats})
        self.folder.write(LOCK, "lock", content.encode())


def _holder_in(content: bytes) -> Holder | None:
    with suppress(ValueError):  # its holder is about to write it
        return Holder.from_json(json.loads(content))
    return None


def _is_dead(holder: Holder | None) -> bool:
    return holder is not None and holder.is_dead


def _processes() -> str:
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {boot()} {space}"
