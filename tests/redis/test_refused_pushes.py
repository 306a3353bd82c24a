"""What cannot run is refused when it is pushed, in code and by ``forkq push``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

import forkq
from forkq import default_client, registry
from forkq.cli import shell
from forkq.cli.config import config as config_command
from forkq.cli.main import _run
from forkq.errors import InvalidJob
from tests.support.server import Server

APP = """
import forkq

@forkq.job(queue="mail", retry=3, tags=["a"])
def welcome(user_id: int, subject: str = "hi") -> None: ...

@forkq.job(queue="mial", name="Typo")
def typo() -> None: ...
"""
TOML = '[forkq]\napp = "shop_{0}"\n[redis]\nurl = "{1}"\n[capsules.default]\nqueues = ["mail"]\n'


@pytest.fixture
def folder(
    redis: Redis, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A project with an app of its own name, and a folder below it where the commands run."""
    number = tmp_path.name.rsplit("_", 1)[-1]
    (tmp_path / "forkq.toml").write_text(TOML.format(number, redis_server.url))
    (tmp_path / f"shop_{number}.py").write_text(APP)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(default_client, "_default", None)
    for name in ("FORKQ_REDIS", "REDIS_URL", "FORKQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    sys.modules.pop(f"shop_{number}", None)
    if default_client._default is not None:
        default_client._default.close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    code = _run(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def name_in(folder: Path) -> str:
    [app] = folder.glob("shop_*.py")
    return f"{app.stem}.welcome"


def pushed(redis: Redis, queue: str) -> list[dict[str, Any]]:
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload) for payload in found]


@pytest.mark.parametrize("program", ["__main__", "__mp_main__"])
def test_a_job_of_the_program_itself_is_refused(folder: Path, redis: Redis, program: str) -> None:
    """Also in a process that multiprocessing has spawned, where it has another name."""
    name = f"{program}.mail"
    for attempt in (
        lambda: forkq.configure().push({"class": name, "args": []}),
        lambda: forkq.configure().push_bulk({"class": name, "args": [[]]}),
    ):
        with pytest.raises(InvalidJob, match="defined in the program itself") as caught:
            attempt()
        assert "forkq start -r" in str(caught.value)
    assert not redis.keys()


def test_push_gives_a_job_the_options_of_its_definition(
    folder: Path, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    code, jid, errors = run(capsys, "push", name_in(folder), "7")
    assert (code, errors) == (0, "")
    [job] = pushed(redis, "mail")
    assert (job["jid"], job["retry"], job["tags"], job["args"]) == (jid.strip(), 3, ["a"], [7])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["Typo"], "works on the queue 'mial', so nothing was pushed; did you mean 'mail'?"),
        (["NAME", "7", "--queue", "low"], "works on the queue 'low'"),
        (["NAME"], "takes 1 to 2 arguments, not 0"),
        (["NAMED", "7"], "has no job"),
    ],
)
def test_push_refuses_what_nothing_could_run(
    folder: Path,
    redis: Redis,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    given = ["push", *(word.replace("NAME", name_in(folder)) for word in arguments)]
    code, out, errors = run(capsys, *given)
    assert (code, out) == (1, "")
    assert reason in errors
    assert not redis.keys("queue:*")
    code, _, errors = run(capsys, *given, "--force")
    assert (code, errors) == (0, "")
    assert len(redis.keys("queue:*")) == 1


def test_push_to_the_queue_of_a_living_process(
    folder: Path, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be Sidekiq's: the app need not have the job."""
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "capsules": {"a": {"weights": {"r": 0}}}}
    redis.sadd("processes", "h:1:0123456789ab")
    redis.hset("h:1:0123456789ab", "info", json.dumps(info))
    assert run(capsys, "push", "HardJob", "--queue", "r")[0] == 0
    assert len(pushed(redis, "r")) == 1


@pytest.mark.parametrize("living", [[], ["default", *(f"r{number:02}" for number in range(11))]])
def test_the_refusal_says_what_the_file_and_what_living_processes_serve(
    folder: Path,
    redis: Redis,
    redis_server: Server,
    capsys: pytest.CaptureFixture[str],
    living: list[str],
) -> None:
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "queues": living}
    if living:
        redis.sadd("processes", "h:1:0123456789ab")
        redis.hset("h:1:0123456789ab", "info", json.dumps(info))
    _, _, errors = run(capsys, "push", "HardJob", "--queue", "nowhere")
    served = "they serve default, r00, r01, r02, r03, r04, r05, r06, r07, r08 and 2 more"
    assert errors == (
        f"forkq: no capsule in {folder}/forkq.toml (they serve mail) and no process that runs now "
        f"({served if living else 'there is none'}) works on the queue 'nowhere', so nothing was "
        "pushed; --force pushes it all the same\n"
    )
    (folder / "forkq.toml").unlink()
    given = ["push", "HardJob", "--queue", "nowhere", "--redis", redis_server.url]
    _, _, errors = run(capsys, *given)
    assert errors.startswith("forkq: no process that runs now (")


def test_an_app_that_cannot_be_imported_is_said_and_can_be_left_out(
    folder: Path, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    name = name_in(folder)
    (folder / f"{name.split('.')[0]}.py").write_text("1 / 0")
    push, check = ["push", name, "7"], ["config", "check"]
    for command in (push, check):
        code, _, errors = run(capsys, *command)
        assert code == 3
        assert "ZeroDivisionError" in errors
    for command in ([*push, "--queue", "mail"], check):
        assert run(capsys, *command, "--no-import")[0] == 0


def check(*arguments: str) -> Result:
    return CliRunner().invoke(config_command, ["check", *arguments], standalone_mode=False)


def test_config_check_lists_the_jobs_and_fails_for_a_queue_that_no_capsule_serves(
    folder: Path,
) -> None:
    found = check()
    assert found.return_value == 1
    assert f"{name_in(folder)}: queue mail" in found.stdout
    assert "works on the queue 'mial' of the job 'Typo'; did you mean 'mail'?" in found.stderr
    assert "of the job 'shop" not in found.stderr
    left_out = check("--no-import")
    assert left_out.return_value == 0, left_out.output
    assert "Typo" not in left_out.output


# forkq shell: the same app, at a prompt


def test_the_shell_has_the_jobs_of_the_app_and_its_redis(
    folder: Path, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "shell", "-c", "print(welcome.perform_async(7), forkq.Job)")
    assert (code, errors) == (0, "")
    [job] = pushed(redis, "mail")
    assert job["args"] == [7]


def test_an_error_of_a_line_in_the_shell_shows_no_frame_of_forkq(
    folder: Path, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, code, error in (("1 / 0", 1, "ZeroDivisionError"), ("1 +", 2, "Error: --command")):
        ended, _, errors = run(capsys, "shell", "-c", line)
        assert ended == code
        assert errors.splitlines()[-1].startswith(error)
        assert "shell.py" not in errors


def test_the_shell_is_ipython_if_it_is_there_else_pythons_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["print(welcome.name)"])

    def read(prompt: str = "") -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(shell, "find_spec", lambda name: None)
    monkeypatch.setattr("builtins.input", read)
    code, out, banner = run(capsys, "shell")
    assert code == 0
    assert out.splitlines()[0] == name_in(folder)
    assert "jobs: typo, welcome" in banner

    started: list[dict[str, Any]] = []
    fake = SimpleNamespace(start_ipython=lambda argv, user_ns: started.append(user_ns))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setattr(shell, "find_spec", lambda name: name)
    assert run(capsys, "shell")[0] == 0
    assert {"welcome", "typo", "forkq"} <= set(started[0])
