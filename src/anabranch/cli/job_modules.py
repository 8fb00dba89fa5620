"""The modules that a job file imports, for workers on other machines.

What the job file defines is sent with its functions. What it imports must be found where the workers run: on this
machine through PYTHONPATH; to a cluster that does not share the folder it is sent as an archive.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from anabranch.errors import JobError

_MODULE, _PACKAGE = "*.py", "__init__.py"
_SENT = (".py", ".zip", ".egg")


def archive_of_neighbours(job: Path, folder: Path) -> Path | None:
    """An archive, in `folder`, of the modules and packages next to a job file; None if there are none.

    Its name depends on its content: Spark refuses a second file with the same name and other content.
    """
    beside = job.resolve().parent
    files = sorted(_neighbours(job.resolve()))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(beside)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    archive = folder / f"anabranch-job-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            packed.write(file, file.relative_to(beside))
    return archive


def py_files(given: Sequence[str]) -> list[Path]:
    """The files of `--py-files`; one option may list several, as with spark-submit."""
    paths = [Path(part.strip()).expanduser() for each in given for part in each.split(",") if part.strip()]
    for path in paths:
        if not path.is_file():
            raise JobError(f"--py-files: there is no file {path}", hint="give .py, .zip or .egg files")
        if path.suffix.lower() not in _SENT:
            raise JobError(f"--py-files: workers cannot import from {path}", hint="give .py, .zip or .egg files")
    return [path.resolve() for path in paths]


def import_path(path: Path) -> str:
    """The entry of `sys.path` that is needed to import from that file."""
    return str(path.parent if path.suffix.lower() == ".py" else path)


def _neighbours(job: Path) -> Iterator[Path]:
    for module in job.parent.glob(_MODULE):
        if module != job and module.stem.isidentifier():
            yield module
    for package in job.parent.glob(f"*/{_PACKAGE}"):
        for file in package.parent.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file
