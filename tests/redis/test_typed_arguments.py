"""Typed arguments: a job gets what was pushed, and what does not fit is named at the push."""

from __future__ import annotations

import asyncio
import enum
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from redis import Redis

import forkq
from forkq import default_client, registry
from forkq.every import template_of
from forkq.features.arguments.reader import ArgumentReader
from forkq.values import replace
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support import ruby as ruby_support
from tests.support.server import Server
from tests.support.waiting import wait_until

SOON = 20.0  # seconds; a result comes at once
NOW = datetime(2026, 11, 26, 18, 30, 0, 123456, tzinfo=timezone(timedelta(hours=1)))
T = TypeVar("T")
UserId = NewType("UserId", UUID)
USER = UserId(UUID("12345678-1234-5678-1234-567812345678"))


class Colour(enum.Enum):
    """An enumeration of texts."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """An enumeration of numbers."""

    LOW = 1
    HIGH = 2


@dataclass
class Line:
    """A part of an order."""

    price: Decimal
    count: int = 1


@dataclass(frozen=True)
class Order:
    """What a job is about."""

    user: UserId
    at: datetime
    lines: tuple[Line, ...] = ()
    colour: Colour = Colour.RED
    notes: dict[str, list[str]] = field(default_factory=dict)
    before: Order | None = None


class Point(NamedTuple):
    """Two numbers with names."""

    x: int
    y: float


class Address(TypedDict, total=False):
    """A dict whose keys are known."""

    street: str
    since: date


@dataclass
class Page(Generic[T]):
    """A generic class."""

    items: list[T]


class Money(msgspec.Struct, frozen=True):
    """A struct of msgspec."""

    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


class Cat(msgspec.Struct, tag=True):
    """One of two structs that JSON can tell apart."""

    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    """The other one."""

    tricks: set[str] = set()


class Person(pydantic.BaseModel):
    """A model of pydantic."""

    name: str
    born: date
    friends: list[Person] = []


ORDER = Order(USER, NOW, (Line(Decimal("1.50")), Line(Decimal(2), 3)), Colour.BLUE, {"a": ["b"]})

# Each type of the contract, with a value.
VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Order, replace(ORDER, before=ORDER)),
    (list[Order], [ORDER]),
    (datetime, NOW),
    (datetime, datetime(2026, 1, 2, 3, 4)),
    (date, date(2026, 2, 28)),
    (time, time(3, 4, 5, 6)),
    (timedelta, timedelta(days=-3, seconds=5, microseconds=7)),
    (UUID, USER),
    (UserId, USER),
    (Decimal, Decimal("0.10")),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Path, Path("a/b.txt")),
    (bytes, b"\x00\xff"),
    (set[str], {"b", "a"}),
    (frozenset[int], frozenset({3, 1})),
    (tuple[int, str], (1, "a")),
    (tuple[date, ...], (date(2026, 1, 1), date(2026, 1, 2))),
    (Point, Point(1, 2.5)),
    (Address, {"street": "x", "since": date(2020, 1, 1)}),
    (Literal["a", 1], "a"),
    (Page[Order], Page([ORDER])),
    (int | str | None, None),
    (int | str, 10**30),
    (Order | None, ORDER),
    (float, 3),
    (dict[UUID, date], {USER: date(2026, 1, 1)}),
    (dict[int, str], {1: "a"}),
    (Annotated[int, msgspec.Meta(ge=3)], 3),
    (Any, {"k": [1, None, 2.5, "x"]}),
    (Money, Money(Decimal("3.20"), "USD")),
    (Cat | Dog, Dog({"sit"})),
    (Person, Person(name="ann", born=date(1990, 1, 1), friends=[])),
    (Person | None, Person(name="a", born=date(1990, 1, 1))),
    (list[Person], [Person(name="a", born=date(1990, 1, 1))]),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "types_all", None)


@pytest.fixture
def child(client: Any, redis_server: Server) -> Iterator[InProcessChild]:
    with InProcessChild(redis_server.url) as child:
        yield child


def taking(*kinds: Any, typed: bool | None = True, **options: Any) -> Any:
    """A typed job with a parameter of each of these types: it keeps what it gets in ``got``."""
    got: list[Any] = []

    def perform(*args: Any) -> None:
        got.append(args)

    names = [f"p{at}" for at in range(len(kinds))]
    perform.__annotations__ = dict(zip(names, kinds, strict=True))
    taken = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    vars(perform)["__signature__"] = Signature(taken)
    job = forkq.job(name=f"Typed{len(registry._jobs)}", typed=typed, **options)(perform)
    vars(job)["got"] = got
    return job


def soon(condition: Callable[[], object]) -> None:
    wait_until(condition, what="the jobs have run")


def first_of(redis: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(redis.zrange(name, 0, 0)[0])
    return found


def pushed(redis: Redis) -> list[Any]:
    """The arguments of the jobs in the queue, the oldest first."""
    return [json.loads(raw)["args"] for raw in reversed(redis.lrange("queue:default", 0, -1))]


def test_a_job_gets_each_value_that_was_pushed(child: InProcessChild, redis: Redis) -> None:
    jobs = [(taking(kind), value) for kind, value in VALUES]
    for job, value in jobs:
        job.perform_async(value)
    soon(lambda: all(job.got for job, _ in jobs))
    for job, value in jobs:
        [(got,)] = job.got
        assert got == value
        assert type(got) is type(value) or type(value) is int


def test_the_payload_is_json_that_other_programs_read(client: Any, redis: Redis) -> None:
    taking(Order, bytes, timedelta).perform_async(ORDER, b"ab", timedelta(hours=2))
    [[order, raw, length]] = pushed(redis)
    assert order == {
        "user": "12345678-1234-5678-1234-567812345678",
        "at": "2026-11-26T18:30:00.123456+01:00",
        "lines": [{"price": "1.50", "count": 1}, {"price": "2", "count": 3}],
        "colour": "blue",
        "notes": {"a": ["b"]},
        "before": None,
    }
    assert (raw, length) == ("YWI=", "PT7200S")


def any_of(value: Any) -> Any:
    return value


def with_lines(*lines: Any) -> Order:
    return replace(ORDER, lines=lines)


class Parts(pydantic.RootModel[dict[str, frozenset[int]]]):
    """A model without names of fields."""


class Basket(pydantic.BaseModel):
    """A model with sets, also inside of its parts."""

    names: set[str]
    parts: list[Parts]


class Tabby(pydantic.BaseModel):
    """A pet of one kind."""

    kind: Literal["tabby"]


class Poodle(pydantic.BaseModel):
    """A pet of another kind."""

    kind: Literal["poodle"]


class Household(pydantic.BaseModel):
    """A model whose field says of which kind it is."""

    pet: Tabby | Poodle = pydantic.Field(discriminator="kind")


class Login(pydantic.BaseModel):
    """A model of which JSON does not have all."""

    password: pydantic.SecretStr = pydantic.SecretStr("")
    kept: int = pydantic.Field(default=1, exclude=True)


class Open(pydantic.BaseModel, extra="allow"):
    """A model that takes what it does not know."""


# JSON has an offset in minutes.
ODD_OFFSET = datetime(1880, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32)))

WRONG: list[tuple[Any, Any, str]] = [
    (Order, 3, "`p0`: expected Order, got int"),
    (Order, with_lines(Line(Decimal(1)), Line(any_of("2"))),
     "`p0.lines[1].price`: expected Decimal, got str"),
    (Order, with_lines(Line(Decimal(1), any_of(2.5))),
     "`p0.lines[0].count`: expected int, got float"),
    (Order, replace(ORDER, colour="red"), "`p0.colour`: expected Colour, got str"),  # type: ignore[arg-type]
    (datetime, "2026-11-26", "`p0`: Invalid RFC3339 encoded datetime"),
    (datetime, NOW.isoformat(), "`p0`: expected datetime, got str"),
    (str, NOW, "`p0`: expected str, got datetime"),
    (str, Path("a"), "`p0`: expected str, got PosixPath"),
    (str, Colour.RED, "`p0`: expected str, got Colour"),
    (int, True, "`p0`: expected int, got bool"),
    (int, 1.0, "`p0`: expected int, got float"),
    (float, float("nan"), "`p0`: JSON has no such number (nan, inf)"),
    (datetime, NOW.date(), "`p0`: expected datetime, got date"),
    (date, NOW, "`p0`: expected date, got datetime"),
    (datetime, ODD_OFFSET, "`p0`: JSON would make another value of it"),
    (Login, Login(password=pydantic.SecretStr("s3cret")), "`p0.password`: JSON would make another"),
    (Login, Login(kept=2), "`p0.kept`: JSON would make another value of it"),
    (Open, Open.model_validate({"more": NOW}), "`p0.model_extra['more']`: expected str, got"),
    (list[int], (1, 2), "`p0`: expected list, got tuple"),
    (list[int], [1, "2"], "`p0[1]`: expected int, got str"),
    (set[int], [1, 1], "`p0`: expected set, got list"),
    (dict[str, Order], {"k": 1}, "`p0[...]`: expected object, got int"),
    (Any, {"at": NOW}, "`p0['at']`: expected str, got datetime"),
    (Any, (1, 2), "`p0`: expected list, got tuple"),
    (dict[str, Any], {"a": {1: 2}}, "`p0['a'][1]`: it would be lost: JSON has no such key"),
    (Any, object(), "`p0`: object is no type that JSON can have"),
    (Literal["a", "b"], "c", "`p0`: Invalid enum value"),
    (Annotated[int, msgspec.Meta(ge=3)], 2, "`p0`: Expected `int` >= 3"),
    (Person, Person.model_construct(name="a", born="x"), "`p0.born`: Input should be a valid date"),
    (Page[int], Page(["a"]), "`p0.items[0]`: expected int, got str"),
    (Address, {"street": "x", "sinse": date(2020, 1, 1)}, "`p0['sinse']`: it would be lost"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_push_of_a_wrong_value_names_argument_expected_and_got(client: Any, redis: Redis) -> None:
    for kind, value, said in WRONG:
        job = taking(kind)
        with pytest.raises(forkq.InvalidJob) as refused:
            job.perform_async(value)
        assert said in str(refused.value), (kind, value)
        assert str(refused.value).startswith(f"job {job.name!r}: ")
    assert pushed(redis) == []


def test_an_argument_that_contains_itself_is_refused(client: Any) -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(forkq.InvalidJob, match="nested too deeply, or contain themselves"):
        taking(list[Any]).perform_async(circle)


def test_an_argument_that_is_nested_more_deeply_than_python_goes_is_refused(client: Any) -> None:
    deep: Any = 1
    for _ in range(sys.getrecursionlimit() - 100):  # msgspec has half as many frames
        deep = [deep]
    with pytest.raises(forkq.InvalidJob, match="nested too deeply, or contain themselves"):
        taking(Any).perform_async(deep)


def test_a_moment_in_the_hour_that_a_clock_repeats_is_pushed(client: Any, redis: Redis) -> None:
    """It is equal to no moment of another zone."""
    moment = datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    taking(datetime).perform_async(moment)
    assert pushed(redis) == [["2020-10-25T02:30:00+01:00"]]


def test_what_cannot_be_in_a_set_is_told_as_bad_input() -> None:
    reader = registry.lookup(taking(set[Any]).name).reader
    assert reader is not None
    with pytest.raises(forkq.InvalidJob, match="an array or an object is in a set"):
        reader.accepted([[[1]]])


def test_a_set_of_values_with_an_order_is_taken(client: Any, redis: Redis) -> None:
    taking(set[Level], set[tuple[str, int]], set[int | float]).perform_async(
        {Level.HIGH, Level.LOW}, {("b", 1), ("a", 2)}, {2, 1.5}
    )
    assert pushed(redis) == [[[1, 2], [["a", 2], ["b", 1]], [1.5, 2]]]


def test_the_error_for_a_key_names_the_dict(client: Any) -> None:
    reader = registry.lookup(taking(dict[int, str]).name).reader
    assert reader is not None
    with pytest.raises(forkq.InvalidJob, match="a key of `p0`: expected int, got str"):
        reader.read([{"s3cret": ""}])


def test_the_error_of_a_bulk_push_names_the_row(client: Any, redis: Redis) -> None:
    job = taking(date, int)
    with pytest.raises(forkq.InvalidJob, match=r"row 1 .*`p1`: expected int, got str"):
        job.perform_bulk([(date(2026, 1, 1), 1), (date(2026, 1, 2), "2")])
    assert pushed(redis) == []
    job.perform_bulk([(date(2026, 1, 1), 1), (date(2026, 1, 2), 2)])
    assert pushed(redis) == [["2026-01-01", 1], ["2026-01-02", 2]]


UNTYPABLE: list[tuple[Any, str]] = [
    (complex, "complex is no type that JSON can have"),
    (object, "object is no type that JSON can have"),
    (Callable[[], int], "no type that JSON can have"),
    (datetime | str, "JSON cannot tell the types of this union apart"),
    (Line | Order, "JSON cannot tell the types of this union apart"),
    (tuple[set[int], dict[int, str]], "a set is beside a dict whose keys are no text"),
    (set[Colour], "the values of a set are written in order, and these have none"),
    (frozenset[int | None], "the values of a set are written in order, and these have none"),
    (set[tuple[int, Colour]], "the values of a set are written in order, and these have none"),
    (set[list[int]], "the values of a set are written in order, and these have none"),
]


@pytest.mark.parametrize(("kind", "said"), UNTYPABLE)
def test_a_type_that_json_cannot_have_is_refused_where_it_is_defined(kind: Any, said: str) -> None:
    with pytest.raises(forkq.InvalidJob, match="the parameter `p0` cannot be typed") as refused:
        taking(kind)
    assert said in str(refused.value)


def test_a_dataclass_of_pydantic_is_refused() -> None:
    from pydantic.dataclasses import dataclass as checked  # noqa: PLC0415

    @checked
    class Odd:
        x: int

    with pytest.raises(forkq.InvalidJob, match="dataclass of pydantic"):
        taking(Odd)


def test_defaults_names_and_further_arguments(child: InProcessChild, redis: Redis) -> None:
    got: list[Any] = []

    @forkq.job(typed=True)
    def report(day: date, colour: Colour = Colour.BLUE, *more: Decimal) -> None:
        got.append((day, colour, *more))

    report.perform_async(date(2026, 1, 1))
    report.perform_async(day=date(2026, 1, 2), colour=Colour.RED)
    report.perform_async(date(2026, 1, 3), Colour.RED, Decimal("1.5"), Decimal(2))
    soon(lambda: len(got) == 3)
    assert sorted(got) == [
        (date(2026, 1, 1), Colour.BLUE),
        (date(2026, 1, 2), Colour.RED),
        (date(2026, 1, 3), Colour.RED, Decimal("1.5"), Decimal(2)),
    ]
    with pytest.raises(forkq.InvalidJob, match=r"`more\[1\]`: expected Decimal, got str"):
        report.perform_async(date(2026, 1, 3), Colour.RED, Decimal(1), "2")  # type: ignore[arg-type]


def test_plain_json_of_another_program_is_read_where_it_fits(
    child: InProcessChild, redis: Redis, client: Any
) -> None:
    job = taking(Order, set[str])
    order = {"user": str(USER), "at": "2026-11-26T18:30:00Z", "lines": [{"price": 3}]}
    client.push({"class": job.name, "args": [order, ["a", "a"]]})
    soon(lambda: job.got)
    at = datetime(2026, 11, 26, 18, 30, tzinfo=timezone.utc)
    assert job.got == [(Order(USER, at, (Line(Decimal(3)),)), {"a"})]


def test_a_payload_that_does_not_fit_fails_with_the_place_and_is_retried(
    child: InProcessChild, redis: Redis, client: Any
) -> None:
    job = taking(Order)
    client.push({"class": job.name, "args": [{"user": str(USER), "at": 7}]})
    soon(lambda: redis.zcard("retry"))
    failed = first_of(redis, "retry")
    assert failed["error_class"] == "forkq.errors.InvalidJob"
    assert failed["error_message"] == f"job {job.name!r}: `p0.at`: expected datetime, got int"
    assert failed["args"] == [{"user": str(USER), "at": 7}]
    assert job.got == []


def test_the_error_of_a_payload_does_not_show_values() -> None:
    cases = [
        (Cat | Dog, {"type": "s3cret"}),
        (Household, {"pet": {"kind": "s3cret"}}),
        (Colour, "s3cret"),
        (UUID, "s3cret"),
        (int, "s3cret"),
    ]
    for kind, value in cases:
        reader = registry.lookup(taking(kind).name).reader
        assert reader is not None
        with pytest.raises(forkq.InvalidJob, match="`p0") as refused:
            reader.read([value])
        assert "s3cret" not in str(refused.value)


def test_coroutines_classes_and_awaited_pushes(child: InProcessChild, client: Any) -> None:
    got: list[Any] = []

    class Ship(forkq.Job, typed=True, name="Ship"):
        """A job class."""

        def perform(self, order: Order) -> None:
            got.append(order)

    class Late(Ship, name="Late"):
        """It inherits that it is typed."""

    @forkq.job(typed=True)
    async def wait(length: timedelta) -> None:
        got.append(length)

    async def push() -> None:
        await wait.aperform_async(timedelta(seconds=1))
        await Ship.aperform_in(0, ORDER)
        await Late.aperform_bulk([(ORDER,)])
        with pytest.raises(forkq.InvalidJob, match="`length`: Invalid ISO8601 duration"):
            await wait.aperform_async("1")  # type: ignore[arg-type]
        await client.aclose()

    asyncio.run(push())
    Ship.set(queue="default").perform_async(ORDER)
    soon(lambda: len(got) == 4)
    assert sorted(map(str, got)) == sorted(map(str, [ORDER, ORDER, ORDER, timedelta(seconds=1)]))


def test_an_iterable_job_has_typed_arguments(child: InProcessChild) -> None:
    got: list[Any] = []

    @forkq.job(typed=True, iterable=True)
    def export(days: list[date], cursor: int | None = None) -> Iterator[int]:
        for at, day in enumerate(days[cursor or 0 :]):
            got.append(day)
            yield at

    export.perform_async([date(2026, 1, 1), date(2026, 1, 2)])
    soon(lambda: len(got) == 2)
    assert got == [date(2026, 1, 1), date(2026, 1, 2)]


def test_results_are_typed(child: InProcessChild) -> None:
    @forkq.job(typed=True, result_ttl=60)
    def double(order: Order) -> Order:
        return replace(order, before=order)

    @forkq.job(typed=True, result_ttl=60)
    def wrong(order: Order) -> Order:
        return "no order"  # type: ignore[return-value]

    @forkq.job(typed=True, result_ttl=60)
    def loose(number: int) -> Any:
        return (number, number)

    jid, bad, pair = double.perform_async(ORDER), wrong.perform_async(ORDER), loose.perform_async(1)
    assert double.result(jid, timeout=SOON) == replace(ORDER, before=ORDER)
    assert forkq.result(jid, timeout=SOON) == replace(ORDER, before=ORDER)
    with pytest.raises(forkq.ResultNotKept, match="expected Order, got str"):
        wrong.result(bad, timeout=SOON)
    assert loose.result(pair, timeout=SOON) == [1, 1]


def test_a_step_of_a_flow_takes_what_another_one_has_returned(
    child: InProcessChild, redis_server: Server
) -> None:
    got: list[Any] = []

    @forkq.job(typed=True)
    def load(day: date) -> Order:
        return replace(ORDER, at=datetime(day.year, day.month, day.day))

    @forkq.job(typed=True)
    def store(order: Order, others: list[Order], until: date) -> None:
        got.append((order, others, until))

    flow = forkq.Flow("orders")
    flow.add("load", load.s(date(2026, 5, 1)))
    taken = flow.result("load")
    flow.add("store", store.s(taken, [taken], date(2026, 5, 2)), after=["load"])
    flow.push()
    with InProcessClock(redis_server.url):  # it brings each step to its queue
        soon(lambda: got)
    order = replace(ORDER, at=datetime(2026, 5, 1))
    assert got == [(order, [order], date(2026, 5, 2))]
    assert flow.get("load", timeout=SOON) == order


def test_a_unique_job_has_the_same_lock_whatever_way_its_arguments_are_given(
    client: Any, redis: Redis
) -> None:
    job: Any = forkq.job(typed=True, unique_for=60, name="Unique")(_unique)
    assert job.perform_async(date(2026, 1, 1))
    assert job.perform_async(day=date(2026, 1, 1), tags=frozenset()) == ""
    many = frozenset("abcdefgh")  # no process has them in the order of the alphabet by chance
    assert job.perform_async(date(2026, 1, 1), many)
    assert job.perform_async(date(2026, 1, 1), frozenset(sorted(many, reverse=True))) == ""
    assert job.cancel(date(2026, 1, 1), many)
    assert job.cancel(day=date(2026, 1, 1), tags=many)


def _unique(day: date, tags: frozenset[str] = frozenset()) -> None: ...


def test_a_set_is_written_alike_in_each_process(client: Any, redis: Redis) -> None:
    job = taking(set[str])
    job.perform_async({"b", "c", "a"})
    assert pushed(redis) == [[["a", "b", "c"]]]


def test_the_sets_of_a_model_are_written_alike_in_each_process(client: Any, redis: Redis) -> None:
    """Else a unique job has another lock in each process that pushes it."""
    many, few = set("hgfedcba"), frozenset(range(1000, 0, -37))
    taking(Basket).perform_async(Basket(names=many, parts=[Parts({"few": few})]))
    expected = {"names": sorted(many), "parts": [{"few": sorted(few, key=str)}]}
    assert pushed(redis) == [[expected]]


def test_periodic_jobs_take_values_and_plain_json(client: Any) -> None:
    job = taking(date, int)
    for args in ([date(2026, 1, 1), 2], ["2026-01-01", 2]):
        assert template_of(job, args, {})["args"] == ["2026-01-01", 2]
    with pytest.raises(forkq.InvalidJob, match="`p1`: expected int, got str"):
        template_of(job, ["2026-01-01", "x"], {})


def test_batches_take_typed_callbacks(child: InProcessChild, redis: Redis) -> None:
    done, member = taking(date), taking(Colour)
    with forkq.Batch("typed", on_success=done.s(date(2026, 3, 4))):
        member.perform_bulk([(Colour.RED,), (Colour.BLUE,)])
    soon(lambda: redis.zcard("schedule"))  # from where a clock takes it
    assert first_of(redis, "schedule")["args"] == ["2026-03-04"]
    assert len(member.got) == 2


def test_all_jobs_are_typed_that_do_not_say_otherwise(
    redis_server: Server, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untold, plain = taking(date, typed=None), taking(date, typed=False)
    (tmp_path / "forkq.toml").write_text(
        f'[forkq]\ntyped_args = true\n[redis]\nurl = "{redis_server.url}"\n'
    )
    monkeypatch.chdir(tmp_path)
    before = default_client.swap(None)
    try:
        prepared = untold.s(date(2026, 1, 1))
        untold.perform_async(date(2026, 1, 2))
        later = taking(date, typed=None)
        later.perform_async(date(2026, 1, 3))
        with pytest.raises(forkq.InvalidJob, match="is a date, which JSON does not know"):
            plain.perform_async(date(2026, 1, 1))
        assert isinstance(registry.lookup(later.name).reader, ArgumentReader)
        assert registry.lookup(plain.name).reader is None
    finally:
        registry.type_all(on=False)
        default_client.swap(before)
    assert prepared.payload["args"] == ["2026-01-01"]
    assert pushed(redis) == [["2026-01-02"], ["2026-01-03"]]
    assert registry.lookup(untold.name).reader is None


def test_a_type_that_is_defined_later_is_found_and_one_that_is_missing_is_named(
    client: Any, redis: Redis
) -> None:
    @forkq.job(typed=True, name="Early")
    def early(value: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @forkq.job(typed=True, name="Never")
    def never(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(forkq.InvalidJob, match="name 'Missing' is not defined"):
        never.perform_async(1)
    globals()["Later"] = Line
    try:
        early.perform_async(Line(Decimal(1)))
    finally:
        del globals()["Later"]
    assert pushed(redis) == [[{"price": "1", "count": 1}]]


def test_typed_is_of_the_definition(client: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match="`typed` is 'yes'; pass True or False"):
        taking(int, typed="yes")  # type: ignore[arg-type]
    with pytest.raises(forkq.InvalidJob, match="`typed` is of the definition of a job"):
        taking(int).set(typed=True)


def test_a_process_that_only_pushes_untyped_jobs_imports_no_codec() -> None:
    program = (
        "import sys, forkq\n@forkq.job\ndef f(x: int) -> None: ...\nf.s(1)\n"
        "print('forkq.features.arguments.codec' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.skipif(ruby_support.obstacle() is not None, reason="no ruby with Sidekiq")
def test_ruby_reads_what_was_pushed_and_its_own_push_is_read(
    child: InProcessChild, redis: Redis, redis_server: Server
) -> None:
    """Ruby takes a job from a queue that no child serves, and pushes its arguments back."""
    job = taking(Order, timedelta, frozenset[str])
    job.set(queue="ruby").perform_async(ORDER, timedelta(minutes=5), frozenset({"x"}))
    program = """
      require "sidekiq"
      Sidekiq.configure_client { |c| c.redis = { url: ARGV[0] } }
      job = Sidekiq.redis { |r| JSON.parse(r.rpop("queue:ruby")) }
      order = job["args"][0]
      raise order.inspect unless order["lines"][1]["price"] == "2" && order["colour"] == "blue"
      order["lines"].push({ "price" => "9.99" })
      Sidekiq::Client.push("class" => job["class"], "args" => [order, *job["args"][1..]])
    """
    subprocess.run(["ruby", "-e", program, redis_server.url], check=True, capture_output=True)
    soon(lambda: job.got)
    lines = (*ORDER.lines, Line(Decimal("9.99")))
    assert job.got == [(replace(ORDER, lines=lines), timedelta(minutes=5), frozenset({"x"}))]


def test_uuid_of_each_version_comes_back(child: InProcessChild) -> None:
    job, values = taking(list[UUID]), [uuid4() for _ in range(3)]
    job.perform_async(values)
    soon(lambda: job.got)
    assert job.got == [(values,)]
