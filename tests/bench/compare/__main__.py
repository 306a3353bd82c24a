"""`python -m tests.bench.compare`: measures, and writes tables and plots from what was measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tests.bench.compare.documents import publish
from tests.bench.compare.peers import CHECKOUT, COROUTINES, FORKQ, PEERS
from tests.bench.compare.plan import NAP, NETWORKS, NOOP
from tests.bench.compare.record import Record
from tests.bench.compare.run import PARTS, Options, run
from tests.bench.compare.tables import printed

FRESH = CHECKOUT / "build" / "bench" / "record.json"


def _listed(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.replace(",", " ").split()
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return read


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.replace(",", " ").split()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    peers = tuple(name for name in (*PEERS, *COROUTINES) if not name.startswith(FORKQ))
    parser.add_argument("--peers", type=_listed(peers), default=list(peers))
    parser.add_argument("--kinds", type=_listed((NOOP, NAP)), default=[NOOP, NAP])
    parser.add_argument(
        "--networks", type=_numbers, default=list(NETWORKS), help="ms of round trip"
    )
    parser.add_argument("--jobs", type=int, default=20_000, help="for a peer of middling speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--window", type=float, default=1.5, help="seconds of a cell, at most")
    parser.add_argument("--minutes", type=float, default=25, help="no cell begins after them")
    parser.add_argument("--output", type=Path, default=FRESH)
    parser.add_argument("--parts", type=_listed(PARTS), default=list(PARTS))
    parser.add_argument("--add", action="store_true", help="to what the last record has")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="measure nothing: write the last record's figures into the documents",
    )
    return parser.parse_args()


def main() -> None:
    options = vars(_options())
    if options.pop("docs"):
        publish(options["output"])
        return
    try:
        run(Options(**options))
    except KeyboardInterrupt:
        raise SystemExit(f"bench: interrupted; {options['output']} has what was measured") from None
    print(printed(Record.load(options["output"])))


if __name__ == "__main__":
    main()
