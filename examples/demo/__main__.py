"""``make demo``: choose the files, start the tree, show it at work, stop it, and count the jobs."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

from forkq import ForkqError

from . import inputs
from .journal import Progress
from .report import Account, report
from .screen import Screen
from .show import Show
from .tree import Tree
from .work import Work, plan

_INTERRUPTED = 130
_signals: list[int] = []  # that have arrived: the demo looks at it between its steps


def check_signals() -> None:
    """Raises KeyboardInterrupt after a signal."""
    if _signals:
        raise KeyboardInterrupt


def main() -> int:
    """Returns the exit code. Raises ForkqError for what the person must mend."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, lambda number, _: _signals.append(number))
    given = inputs.VARIABLE in os.environ
    chosen = inputs.choose(Path(os.environ[inputs.VARIABLE])) if given else None
    screen = Screen()
    folder = Path(inputs.RESULTS, f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}").absolute()
    try:
        folder.mkdir(parents=True)
        if chosen is None:
            screen.say(f"Making pictures and CSV files ({inputs.VARIABLE}=folder takes yours)")
            chosen = inputs.make(folder / "input", check_signals)
        work = plan(chosen, inputs.make_torn(folder / "torn.jpg"))
        for line in (*chosen.remarks, f"{chosen}; they make {sum(work.planned.values())} jobs"):
            screen.say(line)
        check_signals()
    except KeyboardInterrupt:
        screen.say("Interrupted; nothing had been started.")
        return _INTERRUPTED
    except OSError as error:
        raise ForkqError(f"cannot write the results: {error}") from None
    return _perform(folder, work, screen)


def _perform(folder: Path, work: Work, screen: Screen) -> int:
    """Shows it all; no process of the tree is left afterwards. Returns the exit code."""
    tree, interrupted = Tree(folder), False
    show = Show(tree, work, Progress(folder / "journal.jsonl"), screen, check_signals)
    try:
        try:
            show.run()
        except KeyboardInterrupt:
            interrupted = True
        screen.close()
        screen.say("Interrupted; stopping the tree ..." if interrupted else "Stopping the tree ...")
        show.progress.read()
        account = Account(work.pushed, folder)
    finally:
        screen.close()
        tree.stop()
    report(account, show, folder, screen)
    return _INTERRUPTED if interrupted and not account.lost else account.exit_code()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ForkqError as mistake:
        sys.exit(f"demo: {mistake}")
