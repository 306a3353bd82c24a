"""Makes docs/commands.md from the commands: ``python -m tests.support.commands_page``."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from forkq.cli.main import cli
from tests.support.documents import ROOT

PAGE: Final = ROOT / "docs" / "commands.md"

_HEAD: Final = """\
# Commands

<!-- Made by `python -m tests.support.commands_page`; change forkq/cli/ instead. -->

Every command of `forkq`, with its options and an example. What the commands for processes do,
signal by signal: [signals.md](signals.md). How to look at jobs and act on them:
[operating.md](operating.md). `forkq COMMAND --help` says the same.

The shell completes commands, options and names. In ~/.bashrc, with `zsh_source` in ~/.zshrc:
`eval "$(_FORKQ_COMPLETE=bash_source forkq)"`. For fish, once:
`_FORKQ_COMPLETE=fish_source forkq > ~/.config/fish/completions/forkq.fish`."""

# One for each command.
EXAMPLES: Final = {
    "adopt": "forkq adopt . --json",
    "check": "forkq check --against redis://redis.example.com:6379/0",
    "classes list": "forkq classes list",
    "classes release": "forkq classes release shop.Report",
    "config check": "forkq config check -C /etc/forkq/forkq.toml",
    "config show": "forkq config show",
    "cron history": "forkq cron history shop.refresh",
    "cron list": "forkq cron list",
    "cron next": "forkq cron next",
    "cron pause": "forkq cron pause shop.refresh",
    "cron remove": "forkq cron remove shop.refresh",
    "cron resume": "forkq cron resume shop.refresh",
    "cron run": "forkq cron run shop.refresh",
    "dead clear": "forkq dead clear --yes",
    "dead delete": "forkq dead delete --class shop.Report --older-than 30d",
    "dead list": "forkq dead list --error TimeoutError --limit 20",
    "dead move": "forkq dead move b4a577edbccf1d805744efa9 --to low",
    "dead retry": "forkq dead retry --class shop.Report --fresh",
    "dead show": "forkq dead show b4a577edbccf1d805744efa9",
    "demo": "forkq demo",
    "doctor": "forkq doctor --json",
    "find": "forkq find b4a577edbccf1d805744efa9",
    "result": "forkq result b4a577edbccf1d805744efa9",
    "steps": "forkq steps b4a577edbccf1d805744efa9",
    "signal": 'forkq signal approved --key 7 --data \'{"by": "ann"}\'',
    "init": "forkq init shop --compose",
    "jobs cancel": "forkq jobs cancel -q low --class shop.Report",
    "jobs delete": "forkq jobs delete -q low --class shop.Report",
    "jobs kill": "forkq jobs kill -q low --match customer-17",
    "jobs list": "forkq jobs list -q mail --older-than 10m",
    "jobs move": "forkq jobs move -q low --all --to bulk",
    "jobs show": "forkq jobs show b4a577edbccf1d805744efa9",
    "limits reset": "forkq limits reset webhooks",
    "limits set": "forkq limits set webhooks 2",
    "limits show": "forkq limits show",
    "limits unset": "forkq limits unset webhooks",
    "mark-deploy": "forkq mark-deploy v1.4.2",
    "metrics": "forkq metrics --listen 127.0.0.1:9394",
    "pause": "forkq pause webhooks",
    "processes list": "forkq processes list",
    "processes quiet": "forkq processes quiet web-1:4711",
    "processes show": "forkq processes show web-1:4711",
    "processes stacks": "forkq processes stacks web-1:4711",
    "processes stop": "forkq processes stop web-1:4711",
    "push": "forkq push shop.Report '[7]' --in 60",
    "queues clear": "forkq queues clear low",
    "queues list": "forkq queues list",
    "queues show": "forkq queues show low",
    "quiet": "forkq quiet --wait",
    "restart": "forkq restart --wait",
    "resume": "forkq resume webhooks",
    "retries cancel": "forkq retries cancel --class shop.Report",
    "retries clear": "forkq retries clear --dry-run",
    "retries delete": "forkq retries delete --jid b4a577edbccf1d805744efa9",
    "retries kill": "forkq retries kill --class shop.Report",
    "retries list": "forkq retries list --error ConnectionError",
    "retries move": "forkq retries move --class shop.Report --to low",
    "retries retry": "forkq retries retry --error ConnectionError",
    "retries show": "forkq retries show b4a577edbccf1d805744efa9",
    "cancel": "forkq cancel b4a577edbccf1d805744efa9",
    "retry": "forkq retry b4a577edbccf1d805744efa9",
    "running": "forkq running --longer-than 1h",
    "scheduled cancel": "forkq scheduled cancel --class shop.Report",
    "scheduled clear": "forkq scheduled clear --dry-run",
    "scheduled delete": "forkq scheduled delete --match customer-17",
    "scheduled kill": "forkq scheduled kill b4a577edbccf1d805744efa9",
    "scheduled list": "forkq scheduled list --class shop.Report",
    "scheduled move": "forkq scheduled move --all --to low",
    "scheduled retry": "forkq scheduled retry b4a577edbccf1d805744efa9",
    "scheduled show": "forkq scheduled show b4a577edbccf1d805744efa9",
    "shards list": "forkq shards list --seconds 30",
    "shards move": "forkq shards move mail s3",
    "shell": "forkq shell",
    "start": "forkq start -w 4 -c 10 -q critical,3 -q default",
    "stats": "forkq stats --days 7",
    "status": "forkq status --ready",
    "stop": "forkq stop",
    "stuck": "forkq stuck --minutes 30",
    "top": "forkq top",
    "undo": "forkq undo 9b1c4a",
    "batches cancel": "forkq batches cancel 97sCyP1175puoA",
    "batches list": "forkq batches list",
    "batches pause": "forkq batches pause 97sCyP1175puoA",
    "batches resume": "forkq batches resume 97sCyP1175puoA",
    "batches retry": "forkq batches retry 97sCyP1175puoA",
    "batches seal": "forkq batches seal 97sCyP1175puoA",
    "batches show": "forkq batches show 97sCyP1175puoA",
    "flows cancel": "forkq flows cancel 97sCyP1175puoA",
    "flows list": "forkq flows list",
    "flows retry": "forkq flows retry 97sCyP1175puoA",
    "flows show": "forkq flows show 97sCyP1175puoA",
    "unique free": "forkq unique free 7ff3cf34efff6d76635f23dd",
    "unique list": "forkq unique list --class shop.Index",
    "version": "forkq version",
    "web": "forkq web --listen 127.0.0.1:8800",
    "web hash-password": "forkq web hash-password",
}

# An option that so many commands have stands once, above them.
_COMMON: Final = 20


def page() -> str:
    """The text of docs/commands.md."""
    found = dict(commands())
    count = Counter(_row(each) for one in found.values() for each in options_of(one))
    common = {row for row, number in count.items() if number >= _COMMON}
    parts = [_HEAD, "## Options of most commands", _table(sorted(common))]
    parts += ["## Exit codes", _exit_codes()]
    for path, command in found.items():
        parts += _described(path, command, common)
    return "\n\n".join(parts) + "\n"


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command that does something, by its path: "dead retry"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


def options_of(command: click.Command) -> list[click.Option]:
    """Those that a user is told of."""
    found = [each for each in command.params if isinstance(each, click.Option)]
    return [each for each in found if not each.hidden and each.name != "help"]


def _described(path: str, command: click.Command, common: set[str]) -> Iterator[str]:
    arguments = [each.make_metavar(click.Context(command)) for each in command.params
                 if isinstance(each, click.Argument)]  # fmt: skip
    own = [row for row in map(_row, options_of(command)) if row not in common]
    usage = " ".join(["forkq", path, *(["[OPTIONS]"] if options_of(command) else []), *arguments])
    yield f"## forkq {path}"
    yield f"`{usage}`"
    yield inspect.cleandoc(command.help or "").replace("``", "`")
    if own:
        yield _table(own)
    yield f"```\n{EXAMPLES[path]}\n```"


def _table(rows: list[str]) -> str:
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _row(option: click.Option) -> str:
    record = option.get_help_record(click.Context(click.Command("forkq")))
    assert record is not None
    names, meaning = (text.replace("|", "\\|") for text in record)
    return f"| `{names}` | {meaning} |"


def _exit_codes() -> str:
    """A line for each, of the text that ``forkq --help`` ends with."""
    text = " ".join((cli.epilog or "").split()).removeprefix("Exit codes: ").removesuffix(".")
    rows = (each.split(" ", 1) for each in text.split(", "))
    return "\n".join(["| code | means |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


if __name__ == "__main__":
    PAGE.write_text(page())
