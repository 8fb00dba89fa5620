"""Remove the folders that a failed start has made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyarrow import fs

from anabranch.io.folder import Folder


def local_path(folder: Folder) -> Path | None:
    """The path of a folder on a local disk; None for others."""
    return Path(folder.path) if isinstance(folder.filesystem, fs.LocalFileSystem) else None


class NewFolders:
    """Remembers which folders did not exist, so that they can be removed again.

    `own` folders are removed with their contents; `shared` ones only if they are empty, since others may write there.
    """

    def __init__(self, own: Iterable[Path], shared: Iterable[Path]) -> None:
        self._own = [path for path in own if not path.exists()]
        new = {above for path in (*self._own, *shared) for above in (path, *path.parents) if not above.exists()}
        self._deepest_first = sorted(new, key=lambda path: len(path.parts), reverse=True)

    @contextlib.contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Remove the new folders if the code inside fails."""
        try:
            yield
        except BaseException:
            for path in self._own:
                shutil.rmtree(path, ignore_errors=True)
            for path in self._deepest_first:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise
