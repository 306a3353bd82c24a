"""`forkq check`: would this code run the jobs that wait?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from redis import Redis

import forkq
from forkq import api, registry
from forkq.child.code_of_job import arguments_of, newer_code
from forkq.doctor.waiting.check import MOST_LINES, check_waiting
from forkq.doctor.waiting.fit import checked_job, unfit
from forkq.doctor.waiting.pages import pages
from forkq.wire.keys import Keys
from forkq.wire.marks import VERSION
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.shell import Shell
from tests.support.server import Server

KEYS = Keys()
SECRET = "hunter2"
REMEDY = "give new parameters defaults, or make it a new version with an upgrade"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def app(environment: None, tmp_path: Path) -> None:
    """The jobs of the code here are those that a test defines."""
    (tmp_path / "shop.py").write_text("print('the app prints this')\n")
    (tmp_path / "forkq.toml").write_text('[forkq]\napp = "./shop.py"\n')


class Colour(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Line:
    """A part of an order."""

    price: Decimal
    count: int = 1


@dataclass
class Order:
    """What a job is about."""

    lines: list[Line]
    colour: Colour = Colour.RED


@dataclass
class Picky:
    """Refuses all values, and names them."""

    word: str

    def __post_init__(self) -> None:
        raise ValueError(f"expected another word, got {self.word}")


class Model(pydantic.BaseModel):
    """A model with a field for each kind of mistake."""

    total: int
    by_name: dict[str, int] = {}
    word: str = ""

    @pydantic.field_validator("word")
    @classmethod
    def refuse(cls, word: str) -> str:
        """Refuses all values, and names them."""
        raise ValueError(f"not {word}")


def plain(path: str, width: int = 1) -> None:
    """Takes one argument or two."""


def open_ended(first: int, *more: int) -> None:
    """Takes any number of them."""


def order(order: Order, express: bool = False) -> None:
    """Takes a dataclass."""


def job_of(function: Callable[..., Any], **options: Any) -> Any:
    return forkq.job(name="J", **options)(function)


def versioned(function: Callable[..., Any] = plain, **options: Any) -> Any:
    job = job_of(function, version=3, **options)
    job.upgrade(2)(lambda *args: [*args, 7])
    return job


def broken(path: str) -> list[object]:
    raise KeyError(path)


def with_broken_upgrade() -> None:
    job_of(plain, version=2).upgrade(1)(broken)


def upgraded_to_types() -> None:
    def day(cost: Decimal) -> None:
        """Takes what an upgrade makes."""

    job_of(day, typed=True, version=2).upgrade(1)(lambda cost: [Decimal(cost)])


def iterable_job() -> None:
    def rows(count: int, cursor: Any = None) -> Any:
        yield 1, 1

    job_of(rows, iterable=True)


def takes(most: str, given: int) -> str:
    return f"the code takes {most}, and they have {given}"


def typed() -> Any:
    return job_of(order, typed=True)


ONE = {"lines": [{"price": "1.5"}]}
TWO = {"lines": [{"price": "1"}, {"price": []}]}
NO_FIELD = "`order`: Object missing required field `lines`"
FAILS = "the upgrade from version 1 fails (InvalidOperation)"
NEWER = "they are of version 2, and the code has 1"
CASES: list[tuple[Callable[[], Any], list[Any], dict[str, Any], str, str]] = [
    (lambda: job_of(plain), ["a"], {}, "", ""),
    (lambda: job_of(plain), ["a", 2], {}, "", ""),
    (lambda: job_of(plain), [], {}, "arguments", takes("1 to 2 arguments", 0)),
    (lambda: job_of(plain), [1] * 3, {}, "arguments", takes("1 to 2 arguments", 3)),
    (lambda: job_of(open_ended), [1] * 9, {}, "", ""),
    (lambda: job_of(open_ended), [], {}, "arguments", takes("at least 1 argument", 0)),
    (typed, [ONE], {}, "", ""),
    (typed, [{**ONE, "old": 1}, True], {}, "", ""),
    (typed, [ONE, 1], {}, "types", "`express`: expected bool, got int"),
    (typed, [{"rows": []}], {}, "types", NO_FIELD),
    (typed, [TWO], {}, "types", "`order.lines[].price`: expected decimal, got list"),
    (typed, [7], {}, "types", "`order`: expected Order, got int"),
    (lambda: job_of(plain), ["a"], {"version": 2}, "version", NEWER),
    (versioned, ["a"], {"version": 4}, "version", "they are of version 4, and the code has 3"),
    (versioned, ["a"], {"version": "x"}, "version", "their version is no whole number from 1 on"),
    (versioned, ["a"], {"version": 2}, "", ""),
    (versioned, ["a", 1], {"version": 2}, "arguments", takes("1 to 2 arguments", 3)),
    (versioned, ["a"], {}, "upgrade", "they are of version 1, and there is no upgrade(1)"),
    (with_broken_upgrade, ["a"], {}, "upgrade", "the upgrade from version 1 fails (KeyError)"),
    (upgraded_to_types, ["1.5"], {}, "", ""),
    (upgraded_to_types, ["1.5"], {"version": 2}, "", ""),
    (upgraded_to_types, ["x"], {}, "upgrade", FAILS),
    (iterable_job, [1], {"cursor": True}, "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("define", "args", "needs", "problem", "what"), CASES)
def test_the_check_says_what_a_child_would(
    define: Callable[[], Any], args: list[Any], needs: dict[str, Any], problem: str, what: str
) -> None:
    define()
    spec = registry.lookup("J")
    job = {"class": "J", "args": args, "forkq": {"v": VERSION, "needs": needs}}
    found = unfit(spec, checked_job(dumps(job)))
    assert found == ((problem, what) if problem else None)
    if problem == "version":
        assert newer_code(job["forkq"], job) is not None
    elif problem:
        with pytest.raises(Exception):  # noqa: B017, PT011 - an upgrade raises anything
            arguments_of(spec, job)
    else:
        assert newer_code(job["forkq"], job) is None
        arguments_of(spec, job)


def test_a_cursor_needs_an_iterable_job_and_a_newer_payload_a_newer_forkq() -> None:
    job_of(plain)
    spec = registry.lookup("J")
    marks: dict[str, Any] = {"v": 2, "needs": {"cursor": True}}
    found = unfit(spec, checked_job(dumps({"class": "J", "args": ["a"], "forkq": marks})))
    assert found is not None
    assert found.problem == "cursor"
    newer = {"v": VERSION + 1}
    found = unfit(spec, checked_job(dumps({"class": "J", "args": ["a"], "forkq": newer})))
    assert found is not None
    assert found.problem == "forkq"


@pytest.mark.parametrize(
    ("args", "fits"), [("null", True), ("[]", True), ("{}", False), ('"ab"', False), ("7", False)]
)
def test_arguments_that_are_no_array_do_not_fit(args: str, fits: bool) -> None:
    job_of(lambda: None)
    found = unfit(registry.lookup("J"), checked_job(b'{"class":"J","args":%s}' % args.encode()))
    assert (found is None) is fits


def test_a_result_that_is_not_there_yet_is_not_taken_for_an_argument() -> None:
    job_of(order, typed=True)
    needs = {"flow": {"bid": "B", "takes": 1}}
    job = {"class": "J", "args": [{"forkq:B": "first"}], "forkq": {"v": 8, "needs": needs}}
    assert unfit(registry.lookup("J"), checked_job(dumps(job))) is None
    found = unfit(registry.lookup("J"), checked_job(dumps({**job, "args": [1, 2, 3]})))
    assert found is not None
    assert found.problem == "arguments"


def test_each_place_is_read_and_each_reason_has_one_line(
    app: None, redis: Redis, shell: Shell
) -> None:
    forkq.job(name="Kept")(plain)
    places: list[tuple[Callable[[bytes], Any], str]] = [
        (lambda raw: redis.zadd("schedule", {raw: now() + 60}), "the schedule"),
        (lambda raw: redis.zadd("retry", {raw: now() + 60}), "the retry set"),
        (lambda raw: redis.lpush("queue:default", raw), "queue default"),
        (lambda raw: redis.lpush(KEYS.suspects("default"), raw), "the suspects of default"),
        (lambda raw: redis.lpush(KEYS.moving("default"), raw), "the move of queue default"),
        (
            lambda raw: redis.hset(KEYS.inflight("default"), "vm:1:00ff/7", raw),
            "in flight from queue default",
        ),
    ]
    redis.sadd("queues", "default")
    for number, (put, _) in enumerate(places):
        put(dumps({"class": f"Gone{number}", "args": [SECRET], "jid": f"jid{number}"}))
    redis.lpush("queue:default", dumps({"class": "Kept", "args": ["a"], "jid": "fits"}))
    for _ in range(450):
        redis.lpush("queue:default", dumps({"class": "Kept", "args": [], "jid": "bad"}))
    assert shell("check") == 1
    lines = shell.out.splitlines()
    for number, (_, where) in enumerate(places):
        assert lines[number] == (
            f"Gone{number}: the code has no such job (jobs: 1; one is jid{number} in {where}); "
            "keep the class until they have ended, or register its successor under this name"
        )
    assert lines[len(places) :] == [
        f"Kept: {takes('1 to 2 arguments', 0)} (jobs: 450; one is bad in queue default); {REMEDY}",
        "looked at 457 jobs: 456 of them do not fit the code",
    ]
    assert SECRET not in shell.out
    assert shell("check --json") == 1
    objects = [json.loads(line) for line in shell.out.splitlines()]
    assert objects[-1] == {
        "class": "Kept",
        "problem": "arguments",
        "what": takes("1 to 2 arguments", 0),
        "count": 450,
        "jid": "bad",
        "where": "queue default",
        "remedy": REMEDY,
    }
    assert "looked at 457 jobs" in shell.err


def test_code_that_fits_ends_with_0_and_other_apps_are_left_alone(
    app: None, redis: Redis, shell: Shell
) -> None:
    forkq.job(name="Kept")(plain)
    redis.sadd("queues", "default", "ruby")
    redis.lpush("queue:default", dumps({"class": "Kept", "args": ["a"]}), b"{broken")
    redis.lpush("queue:ruby", dumps({"class": "Rails::Job", "args": []}))
    assert shell("check") == 0
    assert shell.out.splitlines() == [
        "looked at 3 jobs: all fit the code",
        "not checked: 1 job of unknown classes in queues that are not served: ruby",
        "not checked: 1 payload that no child can read",
    ]
    assert shell("check -q ruby") == 1
    assert "Rails::Job: the code has no such job" in shell.out


def secrets() -> dict[str, tuple[Any, Any]]:
    """By name: the type of a parameter, and a value that does not fit it."""
    tagged = msgspec.defstruct("Tagged", [("x", int)], tag="here")
    return {
        "number": (int, SECRET),
        "enum": (Colour, SECRET),
        "literal": (Literal["a"], SECRET),
        "tag": (tagged, {"type": SECRET, "x": 1}),
        "bound": (Annotated[str, msgspec.Meta(max_length=2)], SECRET),
        "pattern": (Annotated[str, msgspec.Meta(pattern="^a$")], SECRET),
        "key": (dict[str, int], {SECRET: "x"}),
        "number as key": (dict[int, int], {SECRET: 1}),
        "decimal": (Decimal, SECRET),
        "path": (Path, [SECRET]),
        "own check": (Picky, {"word": SECRET}),
        "model, check": (Model, {"total": 1, "word": SECRET}),
        "model, type": (Model, {"total": SECRET}),
        "model, key": (Model, {"total": 1, "by_name": {SECRET: SECRET}}),
        "model, missing": (Model, {SECRET: SECRET}),
        "model, none": (Model, SECRET),
    }


@pytest.mark.parametrize("kind", secrets())
def test_no_value_of_an_argument_is_shown(kind: str, app: None, redis: Redis, shell: Shell) -> None:
    declared, value = secrets()[kind]

    def perform(given: Any) -> None:
        """Takes what the case declares."""

    perform.__annotations__["given"] = declared
    job_of(perform, typed=True)
    redis.sadd("queues", "default")
    redis.lpush("queue:default", dumps({"class": "J", "args": [value], "jid": "j1"}))
    for line in ("check", "check --json"):
        assert shell(line) == 1
        assert SECRET not in shell.out + shell.err
        assert "given" in shell.out


def test_a_model_names_the_field_that_is_missing() -> None:
    def perform(given: Model) -> None:
        """Takes a model."""

    perform.__annotations__["given"] = Model
    job_of(perform, typed=True)
    found = unfit(registry.lookup("J"), checked_job(dumps({"class": "J", "args": [{}]})))
    assert found == ("types", "`given`: its model says missing `total`")


def test_jobs_that_are_fetched_or_deleted_meanwhile_hide_no_other_one(
    client: forkq.Client, redis: Redis
) -> None:
    redis.sadd("queues", "q")
    for number in range(1000):
        redis.lpush("queue:q", dumps({"class": "J", "args": [number], "jid": str(number)}))
    seen: set[str] = set()
    for turn, page in enumerate(pages(api.server())):
        seen |= {str(checked_job(raw).jid) for raw in page.payloads}
        if turn == 0:
            redis.rpop("queue:q", 300)  # as children do: more than was read
        if turn == 1 and page.payloads:
            redis.lrem("queue:q", 1, page.payloads[-1])  # type: ignore[arg-type]
    assert seen >= {str(number) for number in range(300, 1000)}


def test_pages_are_read_no_key_is_searched_for_and_nothing_is_changed(
    app: None, redis: Redis, shell: Shell
) -> None:
    forkq.job(name="Kept")(plain)
    redis.sadd("queues", "default")
    redis.zadd("retry", {dumps({"class": "Kept", "args": ["a", at]}): at for at in range(500)})
    redis.lpush("queue:default", *(dumps({"class": "Kept", "args": ["a", n]}) for n in range(500)))
    before = redis.dbsize(), redis.llen("queue:default"), redis.zcard("retry")
    redis.config_resetstat()
    assert shell("check") == 0
    used: dict[str, Any] = redis.info("commandstats")
    assert (redis.dbsize(), redis.llen("queue:default"), redis.zcard("retry")) == before
    assert not {"cmdstat_keys", "cmdstat_scan", "cmdstat_hgetall"} & set(used)
    assert used["cmdstat_evalsha"]["calls"] >= 2 * 500 / 200


def test_the_number_of_lines_is_bounded(client: forkq.Client, redis: Redis) -> None:
    redis.sadd("queues", "default")
    for number in range(MOST_LINES + 20):
        redis.lpush("queue:default", dumps({"class": f"Gone{number}", "args": []}))
    found = check_waiting([api.server()], ["default"])
    assert len(found.mismatches) == MOST_LINES
    assert list(found.notes())[1] == "20 jobs more do not fit: there is no line for each reason"


def test_all_shards_are_read_and_against_reads_one(
    app: None, redis: Redis, redis_server: Server, shell: Shell, tmp_path: Path
) -> None:
    url = redis_server.url
    (tmp_path / "forkq.toml").write_text(
        f'[forkq]\napp = "./shop.py"\n[[redis.shards]]\nname = "b"\nurl = "{url}"\n'
        'prefix = "b:"\nqueues = ["mail"]\n[capsules.all]\nqueues = ["default", "mail"]\n'
    )
    redis.sadd("b:queues", "mail")
    redis.lpush("b:queue:mail", dumps({"class": "Gone", "args": [], "jid": "j1"}))
    assert shell("check") == 1
    assert "one is j1 in queue mail of shard b" in shell.out
    assert shell("check", "--against", url) == 0
    assert "looked at 0 jobs: all fit the code" in shell.out


def test_bad_use_has_the_exit_codes_of_other_commands(
    app: None, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("check --against redis://127.0.0.1:1/0") == 6
    assert shell("check --against nonsense") == 2
    assert shell("check -r ./nowhere.py") == 3
    (tmp_path / "forkq.toml").write_text("")
    assert shell("check") == 2
    assert "name the code to check" in shell.err
