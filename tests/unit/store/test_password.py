"""The password of Redis, read from a file or a command. No error shows what was read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from forkq.store.redis_py import PasswordUnreadable, read_password
from forkq.wire.password_source import PasswordSource
from tests.support.waiting import wait_until, within

LIMIT = 20.0


def refusal(source: PasswordSource, limit: float = LIMIT) -> str:
    """Why the password cannot be read."""
    with pytest.raises(PasswordUnreadable) as caught:
        read_password(source, limit)
    return str(caught.value)


def of_shell(script: str) -> PasswordSource:
    return PasswordSource(command=("sh", "-c", script))


@pytest.mark.parametrize(
    ("content", "password"),
    [("sesame\n", "sesame"), ("sesame", "sesame"), ("sesame\r\n", "sesame"), (" ö \n", " ö ")],
)
def test_a_file_has_the_password_alone(tmp_path: Path, content: str, password: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_password(PasswordSource(file), LIMIT) == password
    assert read_password(PasswordSource(link), LIMIT) == password


def test_the_next_read_sees_a_new_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    source = PasswordSource(file)
    for password in ("first", "second"):
        file.write_text(password)
        assert read_password(source, LIMIT) == password


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    empty, folder, pipe, binary = (tmp_path / name for name in ("empty", "folder", "pipe", "bytes"))
    empty.write_text("\n")
    folder.mkdir()
    os.mkfifo(pipe)
    binary.write_bytes(b"\xff\xfe\n")
    missing = tmp_path / "missing"
    said = {path: refusal(PasswordSource(path)) for path in (missing, empty, folder, pipe, binary)}
    for path, text in said.items():
        assert f"password_file {path}" in text
    assert "No such file or directory; the user of this process must be able" in said[missing]
    assert "gives nothing" in said[empty]
    assert "no plain file" in said[folder]
    assert "no plain file" in said[pipe]
    assert "not UTF-8" in said[binary]


def test_a_command_prints_the_password() -> None:
    assert read_password(of_shell("echo noise >&2; echo sesame"), LIMIT) == "sesame"


def test_a_command_that_fails_is_named_without_its_arguments() -> None:
    said = refusal(of_shell("echo sesame; echo token-7 >&2; exit 3"))
    assert said.startswith("password_command sh has ended with exit code 3")
    assert "sesame" not in said
    assert "token-7" not in said
    assert "a signal" in refusal(of_shell("kill -9 $$"))
    assert "gives nothing" in refusal(of_shell("true"))
    said = refusal(PasswordSource(command=("/nowhere/vault", "token-7")))
    assert said == "password_command /nowhere/vault cannot be started: No such file or directory"
    assert "token-7" not in repr(PasswordSource(command=("vault", "token-7")))


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_has_started(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    script = f"sleep 60 & echo $! > {note}; wait"
    assert "has not ended within 0.5 s (connect_timeout)" in refusal(of_shell(script), 0.5)
    assert time.monotonic() - began < within(10.0)
    if note.exists():  # else it was too slow even for that
        pid = int(note.read_text() or 0)
        wait_until(lambda: not psutil.pid_exists(pid) or _is_zombie(pid), what="the end of sleep")


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
