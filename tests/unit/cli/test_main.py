"""The command line as a whole."""

from __future__ import annotations

import pytest

from forkq.cli.main import _run


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("statu", "No such command 'statu'. Did you mean 'status'?"),
        ("mark-deply", "No such command 'mark-deply'. Did you mean 'mark-deploy'?"),
        ("STATUS", "Did you mean 'status'?"),
        ("ps", "No such command 'ps'. `forkq --help` lists them."),
    ],
)
def test_a_misspelt_command_names_the_one_that_was_meant(
    typed: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run([typed]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["queues", "mail"], "No such command 'mail'. Did you mean `forkq queues show mail`?"),
        (["dead", "a\x1b[31m"], "Did you mean `forkq dead list --queue a\\x1b[31m`?"),
        (["dead", "7FF3cf34"], "Did you mean `forkq dead show 7FF3cf34`?"),
        (["retries", "shop.Mail"], "Did you mean `forkq retries list --class shop.Mail`?"),
        (["jobs", "default"], "Did you mean `forkq jobs list --queue default`?"),
        (["jobs", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["cron", "nightly"], "No such command 'nightly'. `forkq cron -h` lists them."),
    ],
)
def test_a_thing_in_the_place_of_a_command_is_led_to_its_command(
    typed: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(typed) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--redis", "redis://h", "status"], "follow the command: forkq COMMAND --redis\n"),
        (["--redis=redis://:secret@h", "status"], "follow the command: forkq COMMAND --redis\n"),
        (["--versio"], "No such option '--versio'. Did you mean '--version'?\n"),
    ],
)
def test_an_option_before_the_command_is_told_its_place(
    typed: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(typed) == 2
    assert capsys.readouterr().err.endswith(says)
