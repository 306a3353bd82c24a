"""A payload that is too large, or too deeply nested, is refused or buried, and ends no process."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest

from forkq.errors import ConfigError, InvalidJob, MalformedPayload
from forkq.wire.malformed import wrap_malformed
from forkq.wire.payload import (
    DEEPEST,
    LARGE,
    LARGEST,
    MAX_NESTING,
    PayloadBounds,
    _nesting,
    bounded,
    check_bounds,
    dumps,
    loads,
)
from forkq.wire.printable import class_and_jid
from forkq.wire.validation import validate
from tests.support.payloads import nested

LEVELS = 100_000

# Deep values in every shape, read by every reader, in an app that has raised the recursion limit.
READERS = f"""
import sys
sys.setrecursionlimit(10**6)
from forkq.api.cron_entries import _read
from forkq.api.processes import _process
from forkq.api.running import _Lease, _leased_job, _Owner, _running_job
from forkq.api.stats import latency
from forkq.child.failure.retry import decide
from forkq.child.heartbeat.record import _digest
from forkq.clock.due_jobs import _stamped
from forkq.cron.entry import Entry
from forkq.errors import ForkqError, InvalidSchedule, MalformedPayload
from forkq.store.crash_record import ProcessDeath, Lease, spliced, stamped
from forkq.wire.lease import UnitOfWork
from forkq.wire.malformed import wrap_malformed
from forkq.wire.payload import loads
from forkq.wire.printable import class_and_jid

def deep(before, opens, closes, after):
    return before + opens * {LEVELS} + closes * {LEVELS} + after

def jobs():
    for opens, inner, closes in ((b"[", b"", b"]"), (b'{{"a":', b"1", b"}}"), (b"[", b"", b"")):
        for key in (b"args", b"forkq", b"wrapped"):
            begin = b'{{"class":"A","jid":"j","args":[],"' + key + b'":'
            yield begin + opens * {LEVELS} + inner + closes * {LEVELS} + b"}}"
        yield opens * {LEVELS} + inner + closes * {LEVELS}

for raw in jobs():
    try:
        loads(raw)
    except MalformedPayload:
        pass
    else:
        raise SystemExit("loaded")
    wrap_malformed(raw, "q", ForkqError("x"))
    class_and_jid(raw)
    latency(raw)
    _stamped(raw, 1.5)
    decide(UnitOfWork(1, "q", 1, raw), None, MalformedPayload("x"), lambda *_: None)
    stamped(raw, "q", ProcessDeath(signal=9))
    lease = Lease(1, b"l", b"ends", raw, b',"forkq":' + raw[raw.find(b"{{"):])
    spliced(lease, "q", ProcessDeath(signal=9))
    _digest(raw)
    assert _read(raw) is None
    _process("i", [raw, None, None, None, None, None, None])
    _running_job("i", b"t", b'{{"queue":"q","run_at":1,"payload":' + raw + b"}}", 1.5, ())
    _leased_job(_Lease("q", b"l", "o"), _Owner(False, 0.0, 0), raw, 1.5)
    try:
        Entry.decode(raw)
    except InvalidSchedule:
        pass
print("alive")
"""


@pytest.mark.parametrize("limit", [1000, 10**6])
def test_100_000_levels_end_no_reader(limit: int) -> None:
    """In each process that reads payloads: a child, the clock, the master's rescue, a command."""
    program = READERS.replace("10**6", str(limit), 1)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stdout.strip()) == (0, "alive"), run.stderr[-2000:]


@pytest.mark.parametrize(
    ("raw", "levels"),
    [
        (b"{}", 1),
        (b'{"a":[[1],[2],[{"b":3}]]}', 4),
        (b'["[[[[", "\\"[[[", "\\\\", [1]]', 2),
        (b'{"[[[[":"]]]]"}', 1),
        (b"1", 0),
        (b"[" * 9, 9),
    ],
)
def test_levels_are_counted_outside_of_strings(raw: bytes, levels: int) -> None:
    assert _nesting(raw) == levels


def test_a_payload_that_is_too_large_is_malformed_and_not_parsed() -> None:
    raw = b'{"class":"A","args":["' + b"x" * LARGEST + b'"]}'
    with pytest.raises(MalformedPayload, match=r"67,108,\d+ bytes, and the most is 67,108,864"):
        loads(raw)
    assert wrap_malformed(raw, "q", MalformedPayload("x")) is raw
    wrapped = wrap_malformed(b'["' + b"x" * LARGEST + b'"]', "q", MalformedPayload("x"))
    assert wrapped.startswith(b'{"class":"forkq.malformed"')


def test_what_is_within_the_bounds_is_read() -> None:
    raw = dumps({"class": "A", "args": nested(DEEPEST - 1)})
    assert bounded(raw) is raw
    assert loads(raw)["class"] == "A"


def test_a_push_names_the_job_and_both_figures() -> None:
    raw = dumps({"class": "Mail", "args": nested(MAX_NESTING)})
    with pytest.raises(InvalidJob, match=r"job 'Mail': its payload has 101 levels .* is 100;"):
        check_bounds("Mail", raw, 1 << 20, MAX_NESTING)
    with pytest.raises(InvalidJob, match=r"'Mail': its payload has 224 bytes, .* is 200;"):
        check_bounds("Mail", raw, 200, 200)
    check_bounds("Mail", raw, len(raw), MAX_NESTING + 1)


@pytest.mark.parametrize("levels", [DEEPEST + 1, LEVELS])
def test_arguments_are_refused_before_they_are_encoded(levels: int) -> None:
    with pytest.raises(InvalidJob, match=r"nested too deeply \(more than 500 levels\)"):
        validate({"class": "A", "args": nested(levels)})


def test_the_bounds_of_the_file_are_bounded_themselves(tmp_path: Any) -> None:
    from forkq.config.load import load  # noqa: PLC0415 - the other tests need no configuration

    file = tmp_path / "forkq.toml"
    file.write_text("[forkq]\nmax_payload_size = 2048\nmax_nesting = 20\n")
    config = load(file, {}, {}, tmp_path)
    assert (config.max_payload_size, config.max_nesting) == (2048, 20)
    file.write_text("[forkq]\nmax_payload_size = 99999999999\nmax_nesting = 501\n")
    with pytest.raises(ConfigError, match="from 1024 to 33554432") as wrong:
        load(file, {}, {}, tmp_path)
    assert "from 10 to 400" in str(wrong.value)


def test_to_name_a_job_takes_no_more_memory_than_its_payload() -> None:
    """The master names a job that has gone on beyond its hard limit, and a child its jobs when it
    is asked for stacks: 3 MB of empty lists would take 60."""
    raw = b'{"class":"J","jid":"m1","args":[[]' + b",[]" * 1_000_000 + b"]}"
    tracemalloc.start()
    try:
        assert class_and_jid(raw) == "J m1"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(raw)


def test_a_large_payload_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The remedy comes before the bound: it is the same."""
    bounds = PayloadBounds()
    large = {"class": "tests.Large", "args": ["x" * LARGE]}
    for _ in range(3):
        bounds.dumps(large)
    bounds.dumps({"class": "tests.Small", "args": ["x" * (LARGE - 100)]})
    [record] = caplog.records
    assert "tests.Large" in record.getMessage()
    assert "pass an id or a file's name" in record.getMessage()


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int


class Made(msgspec.Struct):
    x: int


class Model:
    def model_dump(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Color.RED, "pass its .value"),
        (Point(1), "pass dataclasses.asdict(value)"),
        (Made(1), "pass msgspec.to_builtins(value)"),
        (Model(), 'pass value.model_dump(mode="json")'),
        (object(), "pass an id"),
    ],
)
def test_the_refusal_of_a_value_says_how_to_pass_it(value: Any, remedy: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        validate({"class": "J", "args": [[value]]})
    assert remedy in str(refused.value)
