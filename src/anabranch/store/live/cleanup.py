"""Removing the live folders of queries that have ended for good, or have not run for days.

    anabranch-1000/<checkpoint>/<operator>/<group>/     <checkpoint> has an empty file `used`, touched now and then

A query that was stopped may be started again, and then finds its state. A folder that was not used for `KEPT_DAYS` is
removed by the next query of the same user in the same place, on each machine by its workers. This is safe: a group is
removed under its lease, and live state can always be rebuilt. Only files and folders with names that live state uses
are removed, and symbolic links are not followed.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from anabranch.errors import StateError
from anabranch.store.live.lease import LEASE_FILE, Lease
from anabranch.store.live.mapped import is_live_file
from anabranch.store.live.own_folder import OwnFolder, using

KEPT_DAYS = 7
USED = "used"
_MARK_EVERY = 3_600.0
"""seconds after which a process marks a folder as used again, and looks for old ones"""
_QUERY, _GROUP = re.compile(r"[0-9a-f]{32}"), re.compile(r"\d{5,}")

_last_use: dict[OwnFolder, float] = {}
"""When this process last marked the folder of a query as used."""


def mark_used(query: OwnFolder) -> bool:
    """Mark the folder of a query as used, and remove folders of other queries that have not been used for days.

    It does so at the first call of a process for that query, and then once an hour; returns whether it did.
    """
    if time.monotonic() - _last_use.get(query, -_MARK_EVERY) < _MARK_EVERY:
        return False
    _last_use[query] = time.monotonic()
    with using(query.path):
        folder = query.open()
        fd = folder.open(USED, os.O_WRONLY | os.O_CREAT)
        try:
            os.utime(fd)
        finally:
            os.close(fd)
    _remove_old(_above(query), besides=query.names[-1])
    return True


def remove(query: OwnFolder) -> None:
    """Remove the live state of a query on this machine; groups in use stay."""
    _last_use.pop(query, None)
    with suppress(OSError, StateError):
        folder = query.open(make=False)
        for node in folder.names():
            with suppress(OSError, StateError):
                _remove_node(query.sub(node))
                folder.remove(node)
        if set(folder.names()) <= {USED}:
            folder.unlink(USED)
            _above(query).open(make=False).remove(query.names[-1])


def _remove_old(place: OwnFolder, besides: str) -> None:
    oldest = time.time() - KEPT_DAYS * 86_400
    with suppress(OSError, StateError):
        for name in place.open(make=False).names():
            if name != besides and _QUERY.fullmatch(name):
                with suppress(OSError, StateError):
                    if place.sub(name).open(make=False).stat(USED).st_mtime < oldest:
                        remove(place.sub(name))


def _remove_node(node: OwnFolder) -> None:
    folder = node.open(make=False)
    for group in filter(_GROUP.fullmatch, folder.names()):
        lease = Lease(node.sub(group))
        if lease.try_take():
            try:
                files = node.sub(group).open(make=False)
                for name in filter(is_live_file, files.names()):
                    files.unlink(name)
                files.unlink(LEASE_FILE)
                folder.remove(group)
            finally:
                lease.release()


def _above(query: OwnFolder) -> OwnFolder:
    return OwnFolder(query.base, query.names[:-1])
