"""What workers on other machines get of the files beside a job."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from anabranch.cli.job_modules import archive_of_neighbours, import_path, py_files
from anabranch.errors import JobError


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    for name, text in {
        "job.py": "import shapes, helpers.deep",
        "shapes.py": "CORNERS = 4",
        "not-a-module.py": "",
        "helpers/__init__.py": "",
        "helpers/deep/__init__.py": "from shapes import CORNERS",
        "helpers/table.csv": "a,b",
        "helpers/__pycache__/x.pyc": "",
        "data/rows.py": "no package",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "job.py"


def test_modules_and_packages_beside_the_job_are_sent(job: Path, tmp_path: Path) -> None:
    archive = archive_of_neighbours(job, tmp_path)
    assert archive is not None
    assert sorted(zipfile.ZipFile(archive).namelist()) == [
        "helpers/__init__.py", "helpers/deep/__init__.py", "helpers/table.csv", "shapes.py",
    ]  # fmt: skip
    imports = f"import sys; sys.path.insert(0, {str(archive)!r}); import helpers.deep; print(helpers.deep.CORNERS)"
    assert subprocess.run([sys.executable, "-I", "-c", imports], capture_output=True, text=True).stdout == "4\n"


def test_the_name_tells_the_content(job: Path, tmp_path: Path) -> None:
    first = archive_of_neighbours(job, tmp_path)
    assert archive_of_neighbours(job, tmp_path) == first
    (job.parent / "shapes.py").write_text("CORNERS = 5")
    assert archive_of_neighbours(job, tmp_path) != first


def test_a_job_alone_needs_no_archive(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    assert archive_of_neighbours(tmp_path / "job.py", tmp_path) is None


def test_py_files(job: Path) -> None:
    shapes, archive = job.parent / "shapes.py", job.parent / "more.zip"
    archive.write_bytes(b"")
    assert py_files([f"{shapes},{archive}"]) == py_files([str(shapes), str(archive)]) == [shapes, archive]
    assert [import_path(path) for path in (shapes, archive)] == [str(job.parent), str(archive)]
    for wrong in ("absent.py", str(job.parent / "helpers" / "table.csv")):
        with pytest.raises(JobError, match="--py-files"):
            py_files([wrong])
