"""SQLite files that cannot be written: the start ends with a sentence that names the path and the reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_qbeat import Scheduler
from celery_qbeat.errors import QbeatError, SchemaError, Unavailable
from celery_qbeat.ports import Plan
from celery_qbeat.stores import open_store
from tests.contract.store_rigs import T0, made
from tests.servers.users import not_root


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach."""
    folder = Path(tempfile.mkdtemp(prefix="qbeat-place"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def opened(url: str) -> str:
    """What `open` says."""
    store = open_store(url, create_tables=True)
    try:
        store.open()
    except QbeatError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.close()
    return "opened"


def as_another_user(call: Callable[[], str]) -> str:
    """What `call` returns in a process of a user that is not root: root may write everywhere."""
    user = not_root("nobody")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "failed"
        try:
            if user.switch:
                os.setgroups([])
                os.setgid(user.gid)
                os.setuid(user.uid)
            answer = call()
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def one_sentence(answer: str, path: Path, reason: str) -> None:
    assert answer.startswith("SchemaError: "), answer
    assert str(path) in answer
    assert reason in answer
    assert "\n" not in answer


def test_a_folder_that_may_not_be_written_is_named(place: Path) -> None:
    place.chmod(0o555)
    file = place / "jobs.sqlite3"
    answer = as_another_user(lambda: opened(f"sqlite:///{file}"))
    one_sentence(answer, file, "this user may not write to the folder")
    assert "set qbeat_database_url" in answer


def test_a_file_that_may_not_be_written_is_named(place: Path) -> None:
    file = place / "jobs.sqlite3"
    made(f"sqlite:///{file}")
    file.chmod(0o444)
    place.chmod(0o777)
    answer = as_another_user(lambda: opened(f"sqlite:///{file}"))
    one_sentence(answer, file, "this user may not read and write it")


def test_a_file_in_a_folder_that_may_not_be_written_is_named(place: Path) -> None:
    file = place / "jobs.sqlite3"
    made(f"sqlite:///{file}")
    file.chmod(0o666)
    answer = as_another_user(lambda: opened(f"sqlite:///{file}"))
    one_sentence(answer, file, "this user may not write to the folder")


def test_a_folder_that_may_not_be_entered_is_named(place: Path) -> None:
    file = place / "inner" / "jobs.sqlite3"
    place.chmod(0o700)
    answer = as_another_user(lambda: opened(f"sqlite:///{file}"))
    one_sentence(answer, file, "cannot be reached (Permission denied)")


def test_a_folder_in_the_place_of_the_file_is_named(place: Path) -> None:
    file = place / "jobs.sqlite3"
    file.mkdir()
    one_sentence(opened(f"sqlite:///{file}"), file, "is a folder, not a SQLite file")


def test_a_url_that_opens_for_reading_only_is_named(place: Path) -> None:
    file = place / "jobs.sqlite3"
    made(f"sqlite:///{file}")
    one_sentence(opened(f"sqlite:///file:{file}?mode=ro&uri=true"), file, "is read-only")


def test_the_start_of_a_beat_ends_with_the_sentence(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = place / "jobs.sqlite3"
    file.mkdir()
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(qbeat_database_url=f"sqlite:///{file}")
    with pytest.raises(SystemExit, match=r"^1$"):
        Scheduler(app)
    record = caplog.records[-1]
    assert record.levelname == "CRITICAL"
    assert record.getMessage().startswith(f"celery_qbeat: {file} is a folder, not a SQLite file: ")


def test_a_file_that_becomes_read_only_later_is_waited_for(place: Path) -> None:
    file = place / "jobs.sqlite3"
    store = open_store(made(f"sqlite:///{file}"))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    store.link.read(lambda connection: connection.exec_driver_sql("PRAGMA query_only = ON").close())
    with pytest.raises(Unavailable, match=f"^the SQLite file {file} is read-only: "):
        store.write_plans(epoch, [Plan("code:a", T0, T0, "key")], T0)
    store.write_plans(epoch, [Plan("code:a", T0, T0, "key")], T0)
    store.close()


def test_a_missing_file_is_still_pointed_to_migrate(place: Path) -> None:
    store = open_store(f"sqlite:///{place / 'jobs.sqlite3'}")
    with pytest.raises(SchemaError, match="does not exist: run celery -A proj qbeat migrate"):
        store.open()
    store.close()


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_file_that_we_make_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = open_store(f"sqlite:///{tmp_path / 'jobs.sqlite3'}", create_tables=True)
        store.open()
        store.take_epoch("here:1", 0)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == {f"jobs.sqlite3{end}": 0o600 for end in ("", "-wal", "-shm")}


def test_a_file_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "jobs.sqlite3"
    file.touch()
    file.chmod(0o640)
    store = open_store(f"sqlite:///{file}", create_tables=True)
    store.open()
    store.close()
    assert file.stat().st_mode & 0o777 == 0o640
