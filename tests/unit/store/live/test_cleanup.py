"""Live folders belong to one user, lead nowhere else, lose only their own files, and do not stay behind."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.errors import StateError
from anabranch.store.live import cleanup
from anabranch.store.live.lease import Lease
from anabranch.store.live.own_folder import OwnFolder
from anabranch.store.live.state import LiveState

QUERY, OTHER = "0" * 32, "f" * 32


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that everybody may write to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def any_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def fill(group: OwnFolder) -> LiveState:
    with Lease(group):
        state = LiveState(group)
        state.array("a", "i8", 3)[:] = 7
        state.put("t", pa.table({"x": [1]}))
        state.commit(1)
    return state


def group_of(query: OwnFolder, number: int = 0) -> OwnFolder:
    return query.sub("process-1", f"{number:05d}")


# ---- for one user alone


@pytest.mark.parametrize("given", [False, True])
def test_folders_and_files_are_for_their_user_alone(shared: Path, tmp_path: Path, given: bool) -> None:
    query = OwnFolder(str(tmp_path / "given") if given else None, (QUERY,))
    cleanup.mark_used(query)
    fill(group_of(query))
    top = tmp_path / "given" / QUERY if given else shared / f"anabranch-{os.geteuid()}"
    found = [top, *top.rglob("*")]
    assert {path.name for path in found} >= {QUERY, "process-1", "00000", "lock", "stamp", "used"}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_of_ours_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir(0o755)
    LiveState(tmp_path / "live")
    assert stat.S_IMODE((tmp_path / "live").stat().st_mode) == 0o700


def test_two_users_side_by_side(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = set()
    for uid in (1001, 1002):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        paths.add(OwnFolder(None, (QUERY,)).path)
    assert paths == {shared / f"anabranch-{uid}" / QUERY for uid in (1001, 1002)}


# ---- nobody else's


@pytest.mark.parametrize("depth", range(4))
def test_a_symbolic_link_is_not_followed(shared: Path, tmp_path: Path, depth: int) -> None:
    """Another user knows where our folder will be, and has it lead to files of ours."""
    victim = tmp_path / "victim"
    group = group_of(OwnFolder(None, (QUERY,)))
    link = [*reversed(group.path.parents), group.path][-4 + depth]
    below = victim / group.path.relative_to(link)
    below.mkdir(parents=True)
    (below / "stamp").write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    for act in (lambda: LiveState(group), lambda: Lease(group).__enter__()):
        with pytest.raises(StateError, match="is a symbolic link") as raised:
            act()
        assert str(link) in raised.value.message and "live=" in raised.value.hint
    cleanup.remove(OwnFolder(None, (QUERY,)))
    assert (below / "stamp").read_text() == "precious" and [path.name for path in below.iterdir()] == ["stamp"]


def test_a_folder_of_another_user_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, uid = OwnFolder(None, (QUERY,)), os.geteuid()
    (shared / f"anabranch-{uid + 1}").mkdir()  # of a user who was faster
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(StateError, match=r"belongs to user .*, who could read the state of this query"):
        LiveState(group_of(query))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_two_real_users_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below pytest's own folders, which are for one user
        os.chmod(folder, 0o1777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        group = group_of(OwnFolder(None, (QUERY,)))
        fill(group)
        assert as_user(12_345, lambda: fill(group)) == "1"
        assert LiveState(group).stamp() == 1
        assert {path.name for path in Path(folder).iterdir()} == {"anabranch-0", "anabranch-12345"}
        Path(folder, "anabranch-12346").symlink_to(Path(folder, "anabranch-0"))
        assert "is a symbolic link" in as_user(12_346, lambda: fill(group))
        Path(folder, "anabranch-12347").mkdir(0o700)
        assert "belongs to user" in as_user(12_347, lambda: fill(group))


def as_user(uid: int, act: Callable[[], LiveState]) -> str:
    """What comes of it in a child process that is another user: the epoch that the state shows, or the error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            outcome = str(act().stamp())
        except BaseException as error:
            outcome = str(error)
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_given_to_another_user_is_refused(shared: Path) -> None:
    query = OwnFolder(None, (QUERY,))
    fill(group_of(query))
    os.chown(query.path.parent, 12_345, -1)
    with pytest.raises(StateError, match="belongs to user 12345"):
        LiveState(group_of(query))
    cleanup.remove(query)
    assert (group_of(query).path / "stamp").exists()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "live").write_text("precious")
    with pytest.raises(StateError, match="is not a folder"):
        LiveState(tmp_path / "live")


def test_the_folder_that_the_user_named_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "live").symlink_to(tmp_path / "large disk")
    fill(group_of(OwnFolder(str(tmp_path / "live"), (QUERY,))))
    assert (tmp_path / "large disk" / QUERY / "process-1" / "00000" / "stamp").exists()


# ---- only its own files


def test_clear_deletes_only_its_own_names(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "live"
    state = fill(OwnFolder.at(folder))
    (folder / "notes.txt").write_text("mine")
    (folder / "00000007-0a1b2c3d.array").symlink_to(precious)
    (folder / "00000008-0a1b2c3d.table").write_bytes(b"of a crash")
    state.clear()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "notes.txt"]
    assert precious.read_text() == "precious"


def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 600)
    folder = tmp_path / "live"
    for place in ("stamp", ".stamp", "a", "t"):
        state = fill(OwnFolder.at(folder))
        path = folder / (place if "stamp" in place else state._kept[place].file)
        path.unlink(missing_ok=True)
        path.symlink_to(precious)
        again = LiveState(folder)
        if place != ".stamp":
            assert again.stamp() is None  # so it is rebuilt
        again.clear()
        again.array("a", "int64", 3)
        again.commit(2)
        assert LiveState(folder).stamp() == 2 and not path.is_symlink()
    assert precious.read_bytes() == b"precious" * 600


def test_a_pipe_in_the_place_of_the_stamp_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    fill(OwnFolder.at(folder))
    (folder / "stamp").unlink()
    os.mkfifo(folder / "stamp")
    state = LiveState(folder)
    assert state.stamp() is None
    state.clear()
    state.commit(2)
    assert LiveState(folder).stamp() == 2


# ---- nothing stays behind


def test_the_folder_of_a_query_is_removed_with_all_its_groups(tmp_path: Path) -> None:
    query = OwnFolder(str(tmp_path / "live"), (QUERY,))
    cleanup.mark_used(query)
    for number in range(3):
        fill(group_of(query, number))
    cleanup.remove(query)
    cleanup.remove(query)
    assert list((tmp_path / "live").iterdir()) == []
    assert cleanup.mark_used(query)  # it can begin anew
    assert fill(group_of(query)).stamp() == 1


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    query = OwnFolder(str(tmp_path / "live"), (QUERY,))
    cleanup.mark_used(query)
    fill(group_of(query))
    (group_of(query).path / "notes.txt").write_text("mine")
    cleanup.remove(query)
    assert {path.name for path in (tmp_path / "live").rglob("*") if path.is_file()} == {"notes.txt", "used"}


def test_a_group_that_somebody_works_on_stays(tmp_path: Path) -> None:
    query = OwnFolder(str(tmp_path / "live"), (QUERY,))
    for number in range(2):
        fill(group_of(query, number))
    with Lease(group_of(query, 1)):
        cleanup.remove(query)
        assert not group_of(query, 0).path.exists()
        assert LiveState(group_of(query, 1)).stamp() == 1


def test_old_leftovers_of_the_same_user_are_removed(shared: Path) -> None:
    queries = {name: OwnFolder(None, (name,)) for name in (QUERY, OTHER, "a" * 32, "b" * 32)}
    for query in queries.values():
        cleanup.mark_used(query)
        fill(group_of(query))
    notes = queries[QUERY].path.parent / "notes"
    notes.mkdir()
    long_ago = time.time() - (cleanup.KEPT_DAYS + 1) * 86_400
    for name in (QUERY, OTHER):
        os.utime(queries[name].path / "used", (long_ago, long_ago))
    (queries["a" * 32].path / "used").unlink()
    cleanup._last_use.clear()
    assert cleanup.mark_used(queries[QUERY]) and not cleanup.mark_used(queries[QUERY])
    left = {path.name for path in notes.parent.iterdir()}
    assert left == {QUERY, "a" * 32, "b" * 32, "notes"}
    assert (queries[QUERY].path / "used").stat().st_mtime > long_ago + 86_400
