"""``manage.py forkq start|status|...``: each command of forkq, with the settings of the project."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...command import run


class Command(BaseCommand):
    """Passes its arguments on as they are."""

    help = "Background jobs: start, stop and look at forkq (manage.py forkq --help)."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Runs the command with its arguments as they are: Django's own options (-v, --traceback,
        ...) are none of forkq's."""
        run(argv[2:])

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Prints forkq's help: ``manage.py help forkq``."""
        run(["--help"])

    def add_arguments(self, parser: CommandParser) -> None:
        """Takes any arguments, for ``call_command("forkq", "status")``."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Returns if the command was right; raises CommandError with its exit code if not."""
        try:
            run(options["arguments"])
        except SystemExit as end:
            if end.code:
                code = int(end.code)
                raise CommandError(f"forkq ended with {code}", returncode=code) from None
