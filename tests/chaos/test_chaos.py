"""Short runs of the harness; and that its checks can fail."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.harness import run
from tests.chaos.ledger import Ledger
from tests.chaos.plan import HOST_FAULTS, SERVER_FAULTS, Plan, make_plan
from tests.chaos.traffic import PUSHED
from tests.chaos.verdict import Left, Verdict

needs_locks = pytest.mark.skipif(
    sys.platform != "linux", reason="no locks of open file descriptions here: run it on Linux"
)
SABOTAGE = Path(__file__).with_name("sabotage")


@needs_locks
@pytest.mark.parametrize(
    ("seconds", "faults"), [(8, 6), pytest.param(20, 14, marks=pytest.mark.slow)]
)
def test_seconds_of_chaos_break_no_promise(seconds: int, faults: int) -> None:
    """`make chaos SECONDS=20 RATE=100 HOSTS=2 FAULTS=14 SEED=8` repeats the longer one."""
    result = run(make_plan(8, seconds=seconds, rate=100, hosts=2, faults=faults))
    assert result.problems == [], "\n".join(result.report)


@needs_locks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "found"),
    [
        ("acknowledge first", "lost: "),
        ("no rescue", "lost: "),
        ("living are dead", "ran again without a reason: "),
    ],
)
def test_a_forkq_that_is_broken_on_purpose_is_found_out(sabotage: str, found: str) -> None:
    env = {"PYTHONPATH": str(SABOTAGE), "FORKQ_TEST_SABOTAGE": sabotage}
    result = run(make_plan(3, seconds=12, rate=100, hosts=2, faults=12), env=env, drain=3)
    assert any(problem.startswith(found) for problem in result.problems), result.problems


def test_a_plan_comes_from_its_seed_alone() -> None:
    assert make_plan(7, seconds=60) == make_plan(7, seconds=60)
    assert make_plan(7, seconds=60).digest() != make_plan(8, seconds=60).digest()


def test_a_long_run_has_faults_of_each_kind() -> None:
    plan = make_plan(7, seconds=60)
    assert {fault.kind for fault in plan.faults} >= HOST_FAULTS.keys() | SERVER_FAULTS.keys()
    assert make_plan(7, seconds=600).loses_hosts()


A, B = "host-a:1:aa", "host-b:2:bb"
GOOD = [f"begin 0 0 {A} 1.0", f"end 0 0 {A} 1.1", f"begin 9:x 0 {A} 2.0", f"end 9:x 0 {A} 2.0"]


def judge(folder: Path, *lines: str, kinds: str = "fast", **more: Any) -> list[str]:
    """What the verdict finds in a ledger of these lines. `died`: processes with their time."""
    (folder / "ledger-host-a").write_text("".join(f"{line}\n" for line in lines))
    ledger = Ledger(folder)
    ledger.read()
    died: dict[str, float] = more.pop("died", {})
    watch: Any = SimpleNamespace(
        died_before=lambda process, at: died.get(process, float("inf")) <= at
    )
    found = {
        "name": "host-a",
        "causes": {},
        "ended": {0: 1},
        "exits": lambda: more.get("exits", [0]),
    }
    host: Any = SimpleNamespace(log_text=lambda: more.get("log", ""), **found)
    plan = Plan(1, 1.0, kinds.split(), [1.0] * len(kinds.split()), [])
    state = bytearray([PUSHED] * len(plan.kinds))
    left = more.get("left", Left(damaged=b"string"))
    return Verdict(plan, state, ledger, watch, [host], left, {}).problems


def test_nothing_is_wrong_with_a_job_that_has_ended(tmp_path: Path) -> None:
    assert judge(tmp_path, *GOOD) == []


@pytest.mark.parametrize(
    ("lines", "more", "problem"),
    [
        (GOOD[2:], {}, "lost: 1: fast 0, never begun"),
        ([GOOD[0], *GOOD[2:]], {}, "lost: 1: fast 0, killed"),
        ([*GOOD, f"begin 0 0 {B} 1.2", f"end 0 0 {B} 1.3"], {}, "ran again without a reason: 1"),
        ([*GOOD, f"overlap 0 0 {B} 1.05", f"begin 0 0 {B} 1.05"], {}, "in two places at once: 1"),
        ([*GOOD, f"overlimit 0 0 {B} 1.05"], {}, "above the limit: 1"),
        ([*GOOD, f"begin 9:y 0 {B} 2.5", f"end 9:y 0 {B} 2.5"], {}, "ticks pushed more than once"),
        (GOOD[:2], {}, "no tick of the periodic job ran"),
        (GOOD, {"kinds": "poison"}, "not buried: 1"),
        (GOOD, {"kinds": "poison"}, "a job that must not succeed did: 1"),
        (GOOD, {"kinds": "unknown"}, "ran though it is no job: 1"),
        (GOOD, {"left": Left(damaged=b"none")}, "the damaged key is b'none'"),
        (GOOD, {"left": Left(dead={"0": {}}, damaged=b"string")}, "buried without a reason: 1"),
        (GOOD, {"left": Left(leases=["x/1"], damaged=b"string")}, "leases left"),
        (GOOD, {"exits": [0, 1]}, "host-a: masters ended by themselves"),
        (GOOD, {"log": '{"event": "ran on two hosts"}'}, "host-a: must not be in the log: 1"),
        (GOOD, {"log": "Traceback (most recent call last):"}, "host-a: errors of its own: 1"),
        (
            GOOD,
            {"log": '{"event": "child died", "child": "x.0", "pid": 7, "how": "SIGKILL"}'},
            "host-a: children died without a reason: 1: x.0 7 SIGKILL",
        ),
    ],
)
def test_what_is_wrong_is_found(
    tmp_path: Path, lines: list[str], more: dict[str, Any], problem: str
) -> None:
    problems = judge(tmp_path, *lines, **more)
    assert any(found.startswith(problem) for found in problems), problems


def test_a_run_again_is_explained_by_the_death_of_its_process(tmp_path: Path) -> None:
    again = [f"begin 0 0 {B} 1.2", f"end 0 0 {B} 1.3"]
    assert judge(tmp_path, *GOOD, *again, died={A: 1.15}) == []


def test_a_killer_that_kills_too_many_processes_is_found(tmp_path: Path) -> None:
    processes = [f"host-a:{number}:aa" for number in range(5)]
    lines = [f"begin 0 0 {process} {at}" for at, process in enumerate(processes)]
    crashes = {"0": {"forkq": {"crashes": [{"alone": True}] * 3}}}
    problems = judge(
        tmp_path, *lines, *GOOD[2:], kinds="poison", died=dict.fromkeys(processes, 0.0),
        left=Left(dead=crashes, damaged=b"string"),
    )  # fmt: skip
    assert problems == [
        "a killer was not judged by its budget: 1: 0: 3 crashes alone, 5 processes killed"
    ]


def test_a_killer_that_killed_a_child_without_a_master_has_that_death_more(tmp_path: Path) -> None:
    """forkq takes it for the death of a whole tree."""
    processes = [f"host-a:{number}:aa" for number in range(8)]
    lines = [f"begin 0 0 {process} {at}" for at, process in enumerate(processes)]
    records = [{"tree": True}, {}, *[{"alone": True}] * 6]
    crashes = {"0": {"forkq": {"crashes": records}}}
    assert not judge(
        tmp_path, *lines, *GOOD[2:], kinds="poison", died=dict.fromkeys(processes, 0.0),
        left=Left(dead=crashes, damaged=b"string"),
    )  # fmt: skip


def test_a_canary_that_a_killer_kills_does_not_count(tmp_path: Path) -> None:
    """forkq suspects the new code that the canary tries, not the jobs that it ran."""
    processes = [f"host-a:{number}:aa" for number in range(5)]
    lines = [f"begin 0 0 {process} {at}" for at, process in enumerate(processes)]
    died = '{"event": "child died", "child": "default.canary", "pid": 0, "how": "SIGSEGV"}'
    crashes = {"0": {"forkq": {"crashes": [{"alone": True}] * 3}}}
    problems = judge(
        tmp_path, *lines, *GOOD[2:], kinds="poison", died=dict.fromkeys(processes, 0.0),
        left=Left(dead=crashes, damaged=b"string"), log=died,
    )  # fmt: skip
    assert problems == []


def test_a_lock_that_a_frozen_child_holds_is_no_second_place(tmp_path: Path) -> None:
    """Unless it shows that it goes on."""
    lines = [GOOD[0], *GOOD[2:], f"overlap 0 0 {B} 3.0", f"begin 0 0 {B} 3.0", f"end 0 0 {B} 3.1"]
    assert judge(tmp_path, *lines, died={A: 3.05}) == []
    alive = judge(tmp_path, *lines, f"alive 0 0 {A} 3.01", died={A: 3.05})
    assert alive
    assert alive[0].startswith("in two places at once: 1")
