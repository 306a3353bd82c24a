"""Random input for everything that decodes: no error but the documented one, no hang, no death.

The inputs come from a seeded generator: pieces of valid input, cut, repeated and joined. A few
thousand of each run with the other tests; `make fuzz` runs 100,000 of each, and
`make fuzz SEED=7 COUNT=1000000` others. A failure prints the input.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from forkq.api.cron_entries import _read
from forkq.api.processes import _process
from forkq.api.running import _Lease, _leased_job, _Owner, _running_job
from forkq.api.stats import latency
from forkq.child.failure.retry import decide
from forkq.child.heartbeat.record import _digest
from forkq.clock.due_jobs import _stamped
from forkq.config.effective import effective
from forkq.config.load import load
from forkq.cron.entry import Entry
from forkq.errors import ConfigError, InvalidJob, InvalidSchedule, MalformedPayload
from forkq.runtime.pipe import PipeReader, facts, orders
from forkq.store.crash_record import Lease, ProcessDeath, spliced, stamped
from forkq.wire.lease import UnitOfWork
from forkq.wire.malformed import wrap_malformed
from forkq.wire.payload import dumps, loads
from forkq.wire.printable import class_and_jid

SEED: Final = int(os.environ.get("FORKQ_TEST_FUZZ_SEED", "1"))
COUNT: Final = int(os.environ.get("FORKQ_TEST_FUZZ_COUNT", "2000"))
LONGEST: Final = 60_000
CRASH: Final = ProcessDeath(signal=9, rss=1024)

JSON_PIECES: Final = [
    *(bytes([byte]) for byte in b'{}[],:"\\0-.eE \n\x00\x1b\x80\xff'),
    *(
        b"true",
        b"false",
        b"null",
        b"NaN",
        b"1e400",
        b"-0",
        b"0.1",
        b"9" * 20,
        b"9" * 5000,
        b"1e308",
    ),
    *(b'"\\ud800"', b'"\\u0000"', b'"\\u001b[2J"', "\u202e".encode(), b"\xed\xa0\x80", b"\\u12"),
    *(b'"class":', b'"A"', b'"jid":', b'"args":[]', b'"queue":', b'"retry":', b'"retry_count":'),
    *(
        b'"forkq":{',
        b',"forkq":{"crashes":[',
        b'{"at":',
        b'"retry_for":',
        b'"failed_at":',
        b'"at":',
    ),
    *(b'"enqueued_at":', b'"wrapped":', b'"error_message":', b'"retry_queue":', b'"dead":'),
    b'{"class":"A","args":[1],"jid":"j","queue":"q","retry":true,"created_at":1.5}',
    b'{"class":"A","args":[],"forkq":{"crashes":[{"at":1.5,"signal":9},{"at":9e9},{"at":9e9}]}}',
    b'{"class":"A","args":[],"jid":"j","retry":3,"retry_count":2,"failed_at":1700000000000}',
    b'{"queue":"q","payload":"{}","run_at":1,"lease":1,"progress":{"done":1,"total":2,"note":"","at":1}}',
    b'{"hostname":"h","pid":1,"started_at":1.5,"queues":["q"],"capsules":{"d":{"weights":{"q":1}}}}',
    b'{"event":"missed","at":1.5,"tick":1,"count":3,"why":"x"}',
    b'{"name":"n","cron":"0 4 * * *","job":{"class":"A","args":[],"queue":"q"},"missed":1}',
]
KEY_NAMES: Final = (
    "class args jid queue retry retry_count retry_for retry_queue failed_at retried_at created_at "
    "enqueued_at at forkq crashes signal exit rss wrapped error_class error_message dead backtrace "
    "error_backtrace tags name cron tz job overlap missed jitter enabled origin payload run_at "
    "progress lease done total note hostname pid started_at queues capsules weights labels version "
    "event tick elapsed count why"
)
KEYS: Final = KEY_NAMES.split()
VALUES: Final[list[object]] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        2**31,
        2**63,
        2**64,
        10**400,
        -(10**400),
        0.0,
        -0.5,
        1.5,
        9e99,
    ),
    *(
        1.7e9,
        1.7e12,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "A",
        "default",
        "\x1b[2J",
        "\ud800",
        "\0",
    ),
    *(
        "x" * 5000,
        "@daily",
        "0 4 * * *",
        "Europe/Berlin",
        "skip",
        "once",
        "allow",
        "missed",
        "enqueued",
    ),
    *("2024-01-01T00:00:00Z", "1.5", "true", [], {}, [[]], [{"at": 1.5}, {"at": 9e9}, 7, None]),
]
PIPE_PIECES: Final = [
    *(bytes([byte]) for byte in range(0, 256, 5)),
    *(b"\x80", b"\x81", b"\x90", b"\x91", b"\xc0", b"\xca", b"\xcb", b"\xdc\xff\xff", b"\xdf\xff"),
    *(
        b"\xa4type",
        b"\xa5Ready",
        b"\xa4Beat",
        b"\xa8identity",
        b"\xa4busy",
        b"\xa5state",
        b"\xa6reason",
    ),
    *(
        b"\x81\xa4type\xa5Quiet",
        b"\x82\xa4type\xa4Stop\xa8deadline\xc0",
        b"\x81\xa4type\xa7Exiting",
    ),
    *(struct.pack("!I", size) for size in (0, 1, 12, 100, 65_535, 65_537, 2**32 - 1)),
]
TOML_PIECES: Final = [
    *(
        "[forkq]\n",
        "[redis]\n",
        "[log]\n",
        "[limits]\n",
        "[rates]\n",
        "[capsules.a]\n",
        "[[cron]]\n",
    ),
    *(
        "[environments.production.redis]\n",
        "[blocking]\n",
        "[fair]\n",
        "[process_limits]\n",
        "[[",
        "]]",
    ),
    *(
        "timeout = ",
        "app = ",
        "tag = ",
        "pidfile = ",
        "workers = ",
        "url = ",
        "prefix = ",
        "queues = ",
    ),
    *(
        "concurrency = ",
        "level = ",
        "name = ",
        "cron = ",
        "tz = ",
        "job = ",
        "args = ",
        "jitter = ",
    ),
    *(
        "missed = ",
        "overlap = ",
        '"tenant-*" = ',
        "mail = ",
        "max_nesting = ",
        "labels = ",
        "state_dir = ",
    ),
    *(
        "1",
        "-1",
        "0.5",
        "nan",
        "inf",
        "true",
        "[]",
        "{}",
        "1979-05-27",
        "9" * 5000,
        "0x1f",
        '"""',
        "'",
    ),
    *(
        '"mail,3"',
        '["mail", ["low", 2]]',
        '"${HOME}"',
        '"${NONE:-x}"',
        '"${"',
        '"\\u001b"',
        '"100/minute"',
    ),
    *(
        '= "redis://:sesame@h/0"',
        '"unix:///tmp/s?db=1"',
        '= "redis://h?password=sesame"',
        '"@daily"',
    ),
    *(
        '"0 4 * * *"',
        '"*/7 1-5 * * MON#2"',
        '"Europe/Berlin"',
        '"../../etc/passwd"',
        '"once"',
        '"~x/y"',
    ),
    *("=", ".", ",", "\n", "\r", "\0", "#", " ", "é", "\udc80", "{ rate = 1 }", "{ a.b = 1 }"),
]


def inputs(name: str, pieces: list[bytes]) -> Iterator[bytes]:
    """COUNT inputs that are the same for the same seed."""
    draw = random.Random(f"{name} {SEED}")
    for number in range(COUNT):
        raw = b"".join(draw.choices(pieces, k=draw.randint(1, 12)))
        if pieces is JSON_PIECES and draw.random() < 0.5:
            raw = any_object(draw)
        if draw.random() < 0.2:
            raw = mutated(draw, raw)
        if draw.random() < 0.1:
            raw = b'{"class":"A","args":[' + raw + b"]}"
        if number % 500 == 0:
            raw = raw[:8] * (draw.randint(1, LONGEST) // 8)
        yield raw


def any_value(draw: random.Random, levels: int = 3) -> object:
    """A value of JSON, most likely of another type than is expected."""
    if levels and draw.random() < 0.3:
        values = [any_value(draw, levels - 1) for _ in range(draw.randint(0, 3))]
        if draw.random() < 0.5:
            return values
        return {draw.choice([*KEYS, "", "\0"]): value for value in values}
    return draw.choice(VALUES)


def any_object(draw: random.Random) -> bytes:
    """An object with keys that forkq reads, each with any value."""
    chosen = {key: any_value(draw) for key in draw.choices(KEYS, k=draw.randint(0, 8))}
    if draw.random() < 0.9:
        chosen["class"] = "A"
    return json.dumps(chosen, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def mutated(draw: random.Random, raw: bytes) -> bytes:
    """``raw`` with a part cut out, repeated, or changed."""
    start, end = sorted(draw.choices(range(len(raw) + 1), k=2))
    middle = raw[start:end]
    changed = draw.choice([b"", middle * 3, bytes(draw.choices(range(256), k=min(len(middle), 9)))])
    return raw[:start] + changed + raw[end:]


def never_fails(
    name: str, pieces: list[bytes], decode: Callable[[bytes], object], *documented: type[Exception]
) -> None:
    for raw in inputs(name, pieces):
        try:
            decode(raw)
        except documented:
            pass
        except BaseException as error:
            error.add_note(f"the input: {raw[:2000]!r}") if hasattr(error, "add_note") else None
            raise


def read_and_write_again(raw: bytes) -> None:
    """What is read can be written, and read again as the same job."""
    job = loads(raw)
    assert loads(dumps(job)) == job


def show(raw: bytes) -> None:
    assert class_and_jid(raw).isprintable()
    assert latency(raw) >= 0
    _digest(raw)
    for beats in (True, False):
        owner = _Owner(beats, 1.5, 1)
        _leased_job(_Lease("q", b"host:1:abc/1", "host:1:abc"), owner, raw, 1.5)


def bury(raw: bytes) -> None:
    buried = wrap_malformed(raw, "q", MalformedPayload("x"))
    assert buried == raw or loads(buried)["class"] == "forkq.malformed"


def recover(raw: bytes) -> None:
    """A rescue reads a job as a whole, and of a large one the two ends."""
    verdict, keep, text = stamped(raw, "q", CRASH)
    assert verdict in ("isolate", "isolate_last", "bury") or float(verdict)
    assert text or keep or not raw
    for how in (b"bare", b"ends", b"whole"):
        lease = Lease(1, b"host:1:abc/1", how, raw[:100], raw[-4000:])
        move = spliced(lease, "q", CRASH)
        assert move is None or isinstance(move.name, str)


PAYLOADS: Final[dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]]] = {
    "payload": (read_and_write_again, (MalformedPayload,)),
    "shown": (show, ()),
    "buried": (bury, ()),
    "crash record": (recover, ()),
    "due": (lambda raw: _stamped(raw, 1.5), ()),
    "failed": (
        lambda raw: decide(UnitOfWork(1, "q", 1, raw), None, OSError("x"), lambda *_: None),
        (),
    ),
    "periodic job": (Entry.decode, (InvalidSchedule,)),
    "history": (_read, ()),
    "process": (lambda raw: _process("i", [raw, raw, raw, raw, raw, raw, raw]), ()),
    "running": (lambda raw: _running_job("i", b"\xff", raw, 1.5, ()), ()),
}


@pytest.mark.parametrize("what", PAYLOADS)
def test_json_of_redis(what: str) -> None:
    decode, documented = PAYLOADS[what]
    never_fails(what, JSON_PIECES, decode, *documented)


@pytest.mark.parametrize("decoder", [facts, orders], ids=["facts", "orders"])
def test_messages_of_the_pipe(decoder: msgspec.msgpack.Decoder[object]) -> None:
    def read(raw: bytes) -> None:
        read_end, write_end = os.pipe()
        try:
            body = raw[:LONGEST]
            framed = struct.pack("!I", len(body)) + body if len(raw) % 2 else body
            os.write(write_end, framed)
            os.close(write_end)
            reader: PipeReader[object] = PipeReader(read_end, decoder)
            reader.read()
            assert reader.ended
        finally:
            os.close(read_end)

    never_fails("pipe", PIPE_PIECES, read)


def test_forkq_toml(tmp_path: Path) -> None:
    """The document is right, or each line of the error names its place. No password is shown."""
    file = tmp_path / "forkq.toml"

    def read(raw: bytes) -> None:
        file.write_bytes(raw)
        try:
            shown = [str(one) for one in effective(load(file, {}, {"HOME": "/h"}, tmp_path))]
        except ConfigError as error:
            shown = [str(error)]
            assert all(str(file) in line for line in shown[0].splitlines()), shown
        assert "sesame" not in "".join(shown)

    pieces = [piece.encode("utf-8", "surrogateescape") for piece in TOML_PIECES]
    never_fails("toml", pieces, read)


def test_a_failure_is_seen_and_names_its_input() -> None:
    """Else the others could not fail."""
    with pytest.raises(InvalidJob) as failed:
        never_fails("payload", [b"{"], _raise)
    assert "the input: b'" in "".join(getattr(failed.value, "__notes__", ["the input: b'"]))


def _raise(_: bytes) -> None:
    raise InvalidJob("x")
