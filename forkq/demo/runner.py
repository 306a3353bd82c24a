"""The show, in time order: files, tree, work, kill, recovery, stop, books."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Final

from ..errors import ForkqError
from . import samples
from .inputs import RESULTS, VARIABLE, Inputs, choose
from .plan import Plan, make_plan
from .screen import Screen, count, open_screen, shortened
from .show import Show
from .summary import Summary
from .tree import Tree

FAILED: Final = 1
INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The person has seen enough."""


class Interrupts:
    """Ctrl-C, TERM and HUP, taken note of; the demo asks between its steps."""

    def __init__(self) -> None:
        self._wanted = False

    def install(self) -> None:
        """From now on a signal ends the demo in good order, and never between two lines."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                signal.signal(number, self._note)

    def check(self) -> None:
        """Raises Interrupted after a signal."""
        if self._wanted:
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True


def run() -> int:
    """``forkq demo``. Returns its exit code; raises ForkqError for what the person must mend."""
    interrupts = Interrupts()
    interrupts.install()
    asked = os.environ.get(VARIABLE)
    chosen = choose(Path(asked)) if asked is not None else None
    screen = open_screen()
    try:
        folder = _make_folder()
        inputs = chosen or _made(folder, screen, interrupts)
        plan = _planned(inputs, folder, screen)
        interrupts.check()
    except Interrupted:
        screen.say("Interrupted; nothing had been started.")
        return INTERRUPTED
    return _perform(folder, plan, screen, interrupts)


def _made(folder: Path, screen: Screen, interrupts: Interrupts) -> Inputs:
    screen.say(f"Making pictures, CSV files and texts ({VARIABLE}=folder takes yours)")
    samples.make(folder / "input", interrupts.check)
    return choose(folder / "input")


def _planned(inputs: Inputs, folder: Path, screen: Screen) -> Plan:
    for remark in inputs.remarks:
        screen.say(f"Note: {remark}")
    torn = folder / "torn.jpg"
    samples.make_torn(torn)
    plan = make_plan(inputs, torn)
    kinds = {"picture": inputs.pictures, "CSV file": inputs.tables, "text": inputs.texts}
    found = ", ".join(count(len(files), kind) for kind, files in kinds.items() if files)
    sizes = f"; thumbnails in {count(plan.sizes, 'size')}" if plan.sizes else ""
    screen.say(f"{found} from {shortened(inputs.folder)}{sizes}")
    return plan


def _perform(folder: Path, plan: Plan, screen: Screen, interrupts: Interrupts) -> int:
    """Shows it all; whatever happens, nothing of the tree is left afterwards."""
    started = time.monotonic()
    tree = Tree(folder)
    show = Show(tree, plan, screen, interrupts.check)
    try:
        interrupted = _watch(show)
        account = show.account()
        screen.close()
        screen.say("Interrupted; stopping the tree ..." if interrupted else "Stopping the tree ...")
    finally:
        screen.close()
        show.close()
        stopped = tree.stop()
    seconds = time.monotonic() - started
    summary = Summary(folder, show.pushed, account, show.tally, show.kill, stopped, seconds)
    return report(summary, screen, interrupted=interrupted)


def _watch(show: Show) -> bool:
    """Lets the show run. Returns whether it was interrupted."""
    try:
        show.run()
    except Interrupted:
        return True
    return False


def report(summary: Summary, screen: Screen, *, interrupted: bool) -> int:
    """Writes the summary down and shows it. Returns the exit code that it deserves."""
    account = summary.account
    good = account.balanced and account.pushed == len(summary.pushed)
    summary.write()
    screen.table(summary.rows(), "bold green" if good else "bold red")
    if account.lost:
        screen.say(f"LOST, neither done nor dead: {count(len(account.lost), 'job')}", "bold red")
        return FAILED
    if interrupted:
        return INTERRUPTED
    if not good:
        waiting = count(len(account.waiting), "job")
        screen.say(f"{waiting} did not end in time; see {summary.folder}/forkq.log", "bold red")
        return FAILED
    return 0


def _make_folder() -> Path:
    """A new folder for this run, so that none overwrites another's results."""
    base = Path.cwd() / RESULTS
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        for name in (stamp, *(f"{stamp}-{number}" for number in range(2, 100))):
            with suppress(FileExistsError):
                (base / name).mkdir(parents=True)
                return base / name
    except OSError as error:
        raise ForkqError(
            f"the demo writes its results to {base}, which does not work: {error.strerror}; run it "
            "in a folder that you may write to"
        ) from None
    raise ForkqError(f"{base} holds a hundred demos of this second; remove some")
