"""docs/commands.md is what tests.support.commands_page makes from the commands."""

from __future__ import annotations

import shlex

import click

from forkq.cli.main import cli
from tests.support.commands_page import EXAMPLES, PAGE, commands, page


def test_the_page_of_the_commands_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.commands_page`"


def test_each_command_has_an_example_and_none_is_left_over() -> None:
    assert set(EXAMPLES) == set(dict(commands()))


def test_an_example_is_one_that_its_command_takes() -> None:
    """Its options and arguments are parsed, and nothing is run."""
    for path in EXAMPLES:
        try:
            parse_example(path)
        except Exception as error:
            raise AssertionError(f"the example of {path}: {error!r}") from error


def parse_example(path: str) -> None:
    program, *line = shlex.split(EXAMPLES[path])
    assert program == "forkq"
    command: click.Command = cli
    context = click.Context(cli)
    for word in path.split():
        assert isinstance(command, click.Group)
        assert line.pop(0) == word
        found = command.get_command(context, word)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=word)
    command.make_context(path, line, parent=context.parent)
