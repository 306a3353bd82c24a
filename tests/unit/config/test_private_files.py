"""Files and folders that another user may have made: never followed, never trusted."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from forkq import default_client
from forkq.config.load import load
from forkq.config.private_files import (
    make_folder,
    open_trusted,
    overwrite_own,
    read_trusted,
    replace_own,
)
from forkq.errors import ConfigError, ForkqError
from forkq.master.pidfile import Pidfile, running_master

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user that no test may change."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def linked(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def hard_linked(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("nowhere"))


def pipe(path: Path, victim: Path) -> None:
    del victim
    os.mkfifo(path)


def listening(path: Path, victim: Path) -> None:
    del victim
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def folder(path: Path, victim: Path) -> None:
    del victim
    path.mkdir()


def open_to_all(path: Path, victim: Path) -> None:
    del victim
    path.write_text("1\n")
    path.chmod(0o666)


def file_of_another_user(path: Path, victim: Path) -> None:
    del victim
    path.write_text("1\n")
    os.chown(path, STRANGER, STRANGER)


Trap = Callable[[Path, Path], None]
TRAPS = [linked, dangling, hard_linked, pipe, listening, folder, open_to_all]
TRAPS_OF_ANOTHER_USER = [*TRAPS, pytest.param(file_of_another_user, marks=as_root)]


@pytest.mark.parametrize("trap", TRAPS_OF_ANOTHER_USER)
def test_a_trap_in_the_pidfiles_place_is_refused(shared: Path, victim: Path, trap: Trap) -> None:
    """By the master, which would write it, and by the commands, which would read it."""
    path = shared / "forkq.pid"
    trap(path, victim)
    with pytest.raises(ConfigError, match=r"forkq\.pid.*--pidfile"):
        Pidfile(path).acquire()
    with pytest.raises(ConfigError, match=r"forkq\.pid.*--pidfile"):
        running_master(path)
    assert victim.read_text() == "precious"
    assert not victim.with_name("nowhere").exists()


@pytest.mark.parametrize("call", ["open", "write"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, 8),
        (errno.EDQUOT, 8),
        (errno.EMFILE, 8),
        (errno.ENFILE, 8),
        (errno.EAGAIN, 8),
        (errno.EIO, 8),
        (errno.EROFS, 2),
        (errno.EFBIG, 2),
    ],
)
def test_a_system_that_lacks_something_is_no_wrong_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: int
) -> None:
    """A service manager starts forkq again after exit code 8, but not after 2."""

    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "forkq.pid"
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(ForkqError, match="cannot write the pidfile") as failure:
            Pidfile(path).acquire()
    assert failure.value.exit_code == code
    assert not path.exists()


@pytest.mark.parametrize("trap", TRAPS_OF_ANOTHER_USER)
def test_a_trap_in_the_address_files_place_sends_no_push_elsewhere(
    shared: Path, victim: Path, trap: Trap
) -> None:
    config = load(None, {"redis": "embedded", "pidfile": str(shared / "f.pid")}, {}, shared)
    trap(config.url_file, victim)
    with pytest.raises(ConfigError, match=r"f\.redis"):
        default_client.address(config)


@pytest.mark.parametrize("place", ["status.json", ".status.json.new"])
@pytest.mark.parametrize("trap", [t for t in TRAPS if t is not folder])
def test_a_trap_in_the_status_files_place_is_replaced(
    shared: Path, victim: Path, trap: Trap, place: str
) -> None:
    """So is one in the place of the temporary file that is renamed to it."""
    trap(shared / place, victim)
    replace_own(shared / "status.json", b"{}")
    assert victim.read_text() == "precious"
    assert not victim.with_name("nowhere").exists()
    assert read_trusted(shared / "status.json") == b"{}"


@pytest.fixture
def guessable(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of forkq's files without XDG_RUNTIME_DIR."""
    monkeypatch.setenv("TMPDIR", str(shared))
    return shared / f"forkq-{os.getuid()}"


def test_the_guessable_folder_is_made_for_us_alone(guessable: Path) -> None:
    for _ in range(2):
        make_folder(guessable)
        assert guessable.stat().st_mode & 0o777 == 0o700


def linked_folder(path: Path, victim: Path) -> None:
    path.symlink_to(victim.parent)


def open_folder(path: Path, victim: Path) -> None:
    del victim
    path.mkdir()
    path.chmod(0o755)


def folder_of_another_user(path: Path, victim: Path) -> None:
    del victim
    path.mkdir(mode=0o700)
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize(
    "trap",
    [
        linked, dangling, linked_folder, open_folder,
        pytest.param(folder_of_another_user, marks=as_root),
    ],
)  # fmt: skip
def test_another_thing_in_its_place_is_refused(guessable: Path, victim: Path, trap: Trap) -> None:
    """The remedy is in the message."""
    trap(guessable, victim)
    with pytest.raises(ConfigError, match=r"forkq-\d+ .*XDG_RUNTIME_DIR.*--pidfile"):
        Pidfile(guessable / "a.pid").acquire()
    assert sorted(victim.parent.iterdir()) == [guessable.parent, victim]


@as_root
def test_root_trusts_a_file_of_a_user_where_only_that_user_writes(tmp_path: Path) -> None:
    """As `forkq stop --pidfile /run/forkq/forkq.pid` does, for a service with a user of its own."""
    path = tmp_path / "forkq.pid"
    path.write_text("1\n")
    for owned in (tmp_path, path):
        os.chown(owned, STRANGER, STRANGER)
    tmp_path.chmod(0o755)
    os.close(open_trusted(path))
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match=f"uid {STRANGER}"):
        open_trusted(path)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_runtime_dir_that_others_write_to_is_ignored(tmp_path: Path, mode: int) -> None:
    """As with XDG_RUNTIME_DIR=/tmp."""
    folder = tmp_path / "run"
    folder.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(folder)}
    assert load(None, {}, environ, tmp_path).pidfile.parent == folder / "forkq"
    folder.chmod(mode)
    assert load(None, {}, environ, tmp_path).pidfile.parent != folder / "forkq"


@as_root
def test_the_runtime_dir_of_another_user_is_ignored(tmp_path: Path) -> None:
    """su and sudo keep the variable, and root can write to the folder."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)
    pidfile = load(None, {}, {"XDG_RUNTIME_DIR": str(folder)}, tmp_path).pidfile
    assert pidfile.parent != folder / "forkq"


def test_a_file_is_written_in_place_if_the_content_fits(tmp_path: Path) -> None:
    """On a full disk a longer one would be cut off."""
    file = tmp_path / "file"
    replace_own(file, b"123456789")
    inode = file.stat().st_ino
    assert overwrite_own(file, b"12345")
    assert file.read_bytes() == b"12345    "
    room = file.stat().st_blocks * 512
    assert not overwrite_own(file, b"x" * (room + 1))
    assert file.read_bytes() == b"12345    "
    assert file.stat().st_ino == inode


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}/forkq.pid"], ids=["file", "folder"])
def test_no_master_is_behind_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    assert running_master(tmp_path / name) is None
