"""The scripts of `evidence/`: each can be imported the way it is run, from its own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EVIDENCE = Path(__file__).resolve().parents[3] / "evidence"


def test_every_script_finds_its_modules_when_it_is_run_by_its_path(tmp_path: Path) -> None:
    names = sorted(path.stem for path in EVIDENCE.glob("paper*.py"))
    assert names
    # One process for all: each would import Spark anew. A script sees its own folder first, as here.
    code = f"import sys; sys.path[0] = {str(EVIDENCE)!r}\n" + "\n".join(f"import {name}" for name in names)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_help_is_the_docstring_of_the_script(tmp_path: Path) -> None:
    command = [sys.executable, str(EVIDENCE / "paper5_figure4.py"), "--help"]
    shown = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "Paper 5, figure 4" in shown and "--quick" in shown and "--json" in shown
