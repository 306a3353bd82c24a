"""`make chaos`: a run with a seed of its own, or with the one that is given."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from .harness import run
from .plan import Plan, make_plan


def main() -> int:
    """Returns 1 if a promise was broken."""
    given = _arguments()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    seconds = 0.0 if given.jobs else given.seconds or 60.0
    plan = make_plan(
        seed,
        seconds=seconds,
        jobs=given.jobs or 0,
        faults=given.faults or 0,
        hosts=given.hosts,
        rate=given.rate,
    )
    _say(f"seed {seed}: {len(plan.kinds):,} jobs, {len(plan.faults)} faults (plan {plan.digest()})")
    keep = Path(given.keep or f"/tmp/forkq-chaos-{seed}")
    result = run(plan, quiet=given.quiet, keep=keep)
    for line in result.report:
        _say(line)
    for problem in result.problems:
        _say(f"BROKEN  {problem}")
    _say(f"ledger, logs and timeline: {keep}")
    _say(f"again: {_command(plan, given)}")
    _say("BROKEN" if result.problems else "lost 0; in two places at once 0; every promise was kept")
    return 1 if result.problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--hosts", type=int, default=3, choices=range(1, 9))
    parser.add_argument("--rate", type=int, default=150)
    parser.add_argument("--keep")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def _command(plan: Plan, given: argparse.Namespace) -> str:
    amount = f"JOBS={given.jobs}" if given.jobs else f"SECONDS={plan.seconds:g} RATE={given.rate}"
    return f"make chaos {amount} FAULTS={len(plan.faults)} HOSTS={plan.hosts} SEED={plan.seed}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
