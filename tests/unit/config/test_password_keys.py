"""``password_file`` and ``password_command`` of forkq.toml: which one counts, for which server."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.config.effective import effective
from forkq.wire.password_source import PasswordSource
from tests.support.config_files import Failer, Loader

FILE = '[redis]\npassword_file = "secret"\n'
SHARD = '[[redis.shards]]\nname = "b"\nurl = "redis://b"\nqueues = ["b"]\n'


def test_a_relative_path_starts_at_the_folder_of_the_file(loaded: Loader, tmp_path: Path) -> None:
    assert loaded(FILE).redis.password_source == PasswordSource(tmp_path / "secret")
    assert loaded("[redis]\n").redis.password_source is None


@pytest.mark.parametrize(
    "value", ["\"vault read 'a b'\"", '["vault", "read", "a b"]', "\"${PROGRAM} read 'a b'\""]
)
def test_a_command_is_a_string_or_a_list(loaded: Loader, value: str) -> None:
    config = loaded(f"[redis]\npassword_command = {value}\n", PROGRAM="vault")
    assert config.redis.password_source == PasswordSource(command=("vault", "read", "a b"))


def test_variables_give_both(loaded: Loader, tmp_path: Path) -> None:
    config = loaded("", FORKQ_REDIS_PASSWORD_FILE=str(tmp_path / "x"), REDIS_URL="redis://db")
    assert config.redis.password_source == PasswordSource(tmp_path / "x")
    config = loaded("", FORKQ_REDIS_PASSWORD_COMMAND="vault read")
    assert config.redis.password_source == PasswordSource(command=("vault", "read"))


def test_systemd_s_folder_of_credentials(loaded: Loader) -> None:
    text = '[redis]\npassword_file = "${CREDENTIALS_DIRECTORY:-/run/credentials/x}/secret"\n'
    found = loaded(text, CREDENTIALS_DIRECTORY="/run/credentials/y").redis.password_source
    assert found == PasswordSource(Path("/run/credentials/y/secret"))
    assert loaded(text).redis.password_source == PasswordSource(Path("/run/credentials/x/secret"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FILE + 'password_command = "vault"\n', "password_command is given, too; remove one"),
        (FILE + 'url = "redis://:pw@db"\n', "redis.url has a password, too; remove one"),
        (FILE + 'url = "redis://db?password=pw"\n', "redis.url has a password, too; remove one"),
        (FILE + 'url = "sentinel://u:pw@a,b/main"\n', "redis.url has a password, too; remove one"),
        (FILE + 'url = "embedded"\n', "the embedded server has no password"),
        ('[redis]\npassword_command = "vault \'x"\n', "cannot be split into words"),
        ('[redis]\npassword_command = ""\n', "expected a program, and its arguments"),
        ("[redis]\npassword_command = 7\n", "expected a command: a string, or a list of words"),
        (SHARD.replace("//b", "//:pw@b") + 'password_file = "x"\n', "url has a password, too"),
    ],
)
def test_what_contradicts_is_refused(problems: Failer, text: str, said: str) -> None:
    (line,) = problems(text)
    assert said in line
    assert "pw" not in line


def test_those_of_the_file_do_not_count_for_the_server_of_a_flag(
    loaded: Loader, tmp_path: Path
) -> None:
    """It may be another one, which must not get this password."""
    flag = {"redis": "redis://:pw@other"}
    assert loaded(FILE, flag).redis.password_source is None
    named = loaded(FILE, {"redis": "redis://db"}, FORKQ_REDIS_PASSWORD_FILE=str(tmp_path / "x"))
    assert named.redis.password_source == PasswordSource(tmp_path / "x")
    assert loaded(FILE, REDIS_URL="redis://db").redis.password_source is not None


def test_each_shard_has_its_own(loaded: Loader, tmp_path: Path) -> None:
    config = loaded(FILE + SHARD + 'password_command = "vault b"\n')
    mine, theirs = PasswordSource(tmp_path / "secret"), PasswordSource(command=("vault", "b"))
    assert [shard.password_source for shard in config.shards] == [mine, theirs]
    assert config.of_shard("b").redis.password_source == theirs
    assert config.of_shard("b").of_shard("default").redis.password_source == mine
    assert loaded(FILE + SHARD).of_shard("b").redis.password_source is None


def test_arguments_of_a_command_are_not_shown(loaded: Loader) -> None:
    config = loaded('[redis]\npassword_command = "vault read token-7"\n')
    shown = {each.key: each.value for each in effective(config)}
    assert shown["redis.password_command"] == "vault (arguments not shown)"
    assert shown["redis.password_file"] is None
    assert "token-7" not in repr(config)
