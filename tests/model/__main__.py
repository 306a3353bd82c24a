"""``make explore``: the worlds of ``make test`` and larger ones, the changed scripts with the story
of each, and random ways through a wide world. The minutes are of CPU."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import worlds
from .explorer import Exploration, explore, walk
from .mutations import MUTATIONS
from .story import story
from .world import World

PAGE: Final = Path(__file__).parents[2] / "docs" / "proof.md"
_PARTS: Final = ("worlds", "mutations", "walks")
_FOR_WORLDS: Final = 0.85  # of the time; the rest is for changed scripts and random ways
_PLACE: Final = "<!-- {} -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of CPU for all of it, about")
    parser.add_argument("--walks", type=int, default=200, help="random ways through the wide world")
    parser.add_argument("--docs", action="store_true", help="write the counts into docs/proof.md")
    parser.add_argument("--only", choices=_PARTS, help="this part of it alone")
    options = parser.parse_args()
    parts = (options.only,) if options.only else _PARTS
    began, seconds, is_fine = time.process_time(), options.minutes * 60, True
    if "worlds" in parts:
        is_fine &= _look_at_worlds(began + _FOR_WORLDS * seconds, to_docs=options.docs)
    if "mutations" in parts:
        is_fine &= _look_at_mutations(to_docs=options.docs)
    if "walks" in parts:
        is_fine &= _walk(options.walks, began + seconds)
    return 0 if is_fine else 1


def _look_at_worlds(end: float, *, to_docs: bool) -> bool:
    """Whether all worlds keep all promises."""
    looked = [*_look((*worlds.SMALL, worlds.ALL_TOGETHER, *worlds.LARGE), end)]
    if to_docs:
        _write("worlds", [_row(world, result) for world, result in looked])
    return all(result.found is None for _, result in looked)


def _look_at_mutations(*, to_docs: bool) -> bool:
    """Whether each changed script breaks a promise."""
    found = list(_mutate())
    if to_docs:
        _write("mutations", [f"| {what} | {where} | {steps} |\n" for what, where, steps in found])
    return all(steps for _, _, steps in found)


def _look(these: tuple[World, ...], end: float) -> Iterator[tuple[World, Exploration]]:
    for at, world in enumerate(these):
        left = end - time.process_time()
        result = explore(world, seconds=left / (len(these) - at))
        _say(_row(world, result))
        if result.found is not None:
            _say(story(world, result.found) + "\n")
        yield world, result


def _row(world: World, result: Exploration) -> str:
    size = "complete" if result.is_complete else "in part"
    figures = f"{result.situations:,} | {result.steps:,} | {result.seconds:.1f}"
    return f"| {world.name} | {world.shown} | {figures} | {size} |\n"


def _mutate() -> Iterator[tuple[str, str, int]]:
    """What was changed, the promise that it broke, and how many steps lead there (0: not found)."""
    for mutation in MUTATIONS:
        found = explore(mutation.world, mutation.store()).found
        _say(f"\n{mutation.what}:\n")
        if found is None:
            _say("NOT FOUND\n")
            yield mutation.what, "", 0
            continue
        _say(story(mutation.world, found, mutation.store()) + "\n")
        yield mutation.what, found.violation.promise, len(found.trace)


def _walk(count: int, end: float) -> bool:
    for seed in range(count):
        if time.process_time() > end:
            _say(f"\nthe time is over after {seed} of {count} random ways\n")
            return True
        found = walk(worlds.WIDE, seed, 2000)
        if found is not None:
            _say(story(worlds.WIDE, found) + f"\n(walk {seed})\n")
            return False
    _say(f"\n{count} random ways through the world {worlds.WIDE.name!r}\n")
    return True


def _write(what: str, rows: list[str]) -> None:
    """Puts the rows of a table between its two marks in docs/proof.md."""
    begin, finish = _PLACE.format(what), _PLACE.format("/" + what)
    text = PAGE.read_text()
    table = re.compile(f"({begin}(?:\\|[^\n]*\n){{2}}).*?({finish})", re.DOTALL)
    changed, count = table.subn(lambda found: found[1] + "".join(rows) + found[2], text)
    assert count == 1, f"{PAGE} has no table {what}"
    PAGE.write_text(changed)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
