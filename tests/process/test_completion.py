"""Shell completion: what click makes of the commands, as each shell asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from forkq import default_client
from forkq.cli.main import _run
from tests.support.server import Server
from tests.support.tree import FORKQ

WORDS = "forkq st"
# What each shell sends for `forkq st<TAB>`, and how it gets its answers.
ASKS = {
    "bash": ({"COMP_WORDS": WORDS, "COMP_CWORD": "1"}, "plain,{}"),
    "zsh": ({"COMP_WORDS": WORDS, "COMP_CWORD": "1"}, "plain\n{}"),
    "fish": ({"COMP_WORDS": WORDS, "COMP_CWORD": "st"}, "plain,{}"),
}


def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **variables: str
) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        _run([])
    assert not end.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ASKS)
def test_commands_are_completed(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables, form = ASKS[shell]
    found = answer(monkeypatch, capsys, _FORKQ_COMPLETE=f"{shell}_complete", **variables)
    for name in ("start", "stop", "status", "stats", "stuck"):
        assert form.format(name) in found
    assert "push" not in found


def test_after_a_misspelt_command_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = {"COMP_WORDS": "forkq statu --", "COMP_CWORD": "2"}
    assert "--help" in answer(monkeypatch, capsys, _FORKQ_COMPLETE="bash_complete", **typed)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_names_the_program(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = answer(monkeypatch, capsys, _FORKQ_COMPLETE=f"{shell}_source")
    assert "_FORKQ_COMPLETE=" in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, check=True)


def test_bash_completes_with_the_line_that_the_readme_has(tmp_path: Path) -> None:
    """A real bash, which fills its answer in as at TAB."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed: apt-get install bash")
    (tmp_path / "forkq").write_text(f'#!/bin/sh\nexec {" ".join(FORKQ)} "$@"\n')
    (tmp_path / "forkq").chmod(0o755)
    line = 'eval "$(_FORKQ_COMPLETE=bash_source forkq)"'
    asked = "COMP_WORDS=(forkq config ch); COMP_CWORD=2; _forkq_completion forkq ch config"
    done = subprocess.run(
        ["bash", "-c", f'{line}\n{asked}\necho "${{COMPREPLY[@]}}"'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("check\n", "")


def test_commands_options_and_queues_of_the_operators_are_completed(
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    redis.sadd("queues", "mail", "mass", "pay")
    monkeypatch.setattr(default_client, "_default", None)
    monkeypatch.setenv("FORKQ_REDIS", redis_server.url)
    for words, found in {
        "forkq dead ": "clear delete list move retry show",
        "forkq dead retry --o": "--older-than",
        "forkq jobs move --to ma": "mail mass",
        "forkq queues show ma": "mail mass",
    }.items():
        count = str(len(words.split(" ")) - 1)
        asked = {"COMP_WORDS": words, "COMP_CWORD": count}
        shown = answer(monkeypatch, capsys, _FORKQ_COMPLETE="bash_complete", **asked)
        assert [line.removeprefix("plain,") for line in shown.splitlines()] == found.split()
        if default_client._default is not None:
            default_client._default.close()
    monkeypatch.setenv("FORKQ_REDIS", "redis://127.0.0.1:1")  # nothing stands in the user's line
    assert answer(monkeypatch, capsys, _FORKQ_COMPLETE="bash_complete", **asked) == "\n"
