"""Defining jobs: names, options, hooks; a push with arguments that do not fit is refused."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

import pytest

import forkq
from forkq import default_client, registry
from forkq.child.job_run import JobRun
from forkq.client import Template
from forkq.current_job import (
    CurrentJob,
    enter_job,
    lease_lost,
    leave_job,
    tell_of_progress,
)
from forkq.errors import ForkqError, InvalidJob
from forkq.push import CALLS_ELSEWHERE, OPTIONS_ELSEWHERE
from forkq.wire.defaults import with_defaults
from forkq.wire.lease import Progress, UnitOfWork
from forkq.wire.times import Moment


class FakeClient:
    """The process's client; it keeps what is pushed."""

    def __init__(self) -> None:
        self.pushed: list[dict[str, Any]] = []

    def push(self, job: dict[str, Any]) -> str | None:
        self.pushed.append(job)
        return "j" * 24

    def push_args(self, template: Template, args: list[Any]) -> str | None:
        defaults, (shared, _) = with_defaults({"class": "X", "args": []}), template
        own = {key: value for key, value in shared.items() if value != defaults.get(key, ...)}
        return self.push({**own, "args": args})

    def push_bulk(self, job: dict[str, Any]) -> list[str]:
        self.pushed.append(job)
        return ["j"] * len(job["args"])

    @property
    def last(self) -> dict[str, Any]:
        return self.pushed[-1]


@pytest.fixture(autouse=True)
def pushed(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    pushed = FakeClient()
    monkeypatch.setattr(default_client, "_default", pushed)
    monkeypatch.setattr(registry, "_jobs", {})
    yield pushed
    leave_job()  # the one of ``running``


def running(**keys: Any) -> CurrentJob:
    """Makes a job this thread's current one, until the end of the test."""
    return enter_job({"class": "X", "args": [], **keys})


def test_a_class_is_registered_as_module_and_qualname_unless_named() -> None:
    class Plain(forkq.Job):
        def perform(self) -> None: ...

    class Named(forkq.Job, name="HardJob"):
        def perform(self) -> None: ...

    assert registry.names() == ["HardJob", f"{__name__}.{Plain.__qualname__}"]


def test_a_push_carries_class_arguments_and_options(pushed: FakeClient) -> None:
    class Thumbnail(forkq.Job, name="T", queue="images", retry=5, tags=["a"]):
        def perform(self, path: str, width: int) -> None: ...

    assert Thumbnail.perform_async("a.png", width=200) == "j" * 24
    assert pushed.last == {
        "class": "T",
        "args": ["a.png", 200],
        "queue": "images",
        "retry": 5,
        "tags": ["a"],
    }


def test_later_means_at(pushed: FakeClient) -> None:
    class Late(forkq.Job, name="L"):
        def perform(self, n: int) -> None: ...

    Late.perform_in(60, 1)
    assert (pushed.last["at"], pushed.last["args"]) == (60, [1])
    Late.perform_at(2e9, 2)
    assert (pushed.last["at"], pushed.last["args"]) == (2e9, [2])


def test_bulk_pushes_rows_in_one_go(pushed: FakeClient) -> None:
    class Bulk(forkq.Job, name="B", queue="q"):
        def perform(self, a: str, b: int = 0) -> None: ...

    assert Bulk.perform_bulk([("a", 1), ["b"]]) == ["j", "j"]
    assert pushed.last == {"class": "B", "queue": "q", "args": [["a", 1], ["b"]]}
    Bulk.perform_bulk([("a", 1)], at=60)
    assert pushed.last["at"] == 60


@pytest.mark.parametrize("rows", [7, [7], ["ab"], "ab", {"n": [1]}, [{"n": 1}]])
def test_rows_that_are_no_lists_are_refused(rows: Any, pushed: FakeClient) -> None:
    class Bulk(forkq.Job, name="B"):
        def perform(self, n: int) -> None: ...

    with pytest.raises(InvalidJob, match=r"'B' takes \(n\): perform_bulk takes lists of arg"):
        cast("Any", Bulk).perform_bulk(rows)
    assert not pushed.pushed


def test_rows_that_are_dicts_are_answered_with_what_to_write(pushed: FakeClient) -> None:
    """Their keys may be in any order."""

    class Bulk(forkq.Job, name="B"):
        def perform(self, user: int, mode: str = "x") -> None: ...

    with pytest.raises(InvalidJob) as caught:
        cast("Any", Bulk).perform_bulk([(1,), {"mode": "y", "user": 1}])
    assert str(caught.value) == (
        "row 1 (the first is 0): job 'B' takes (user, mode='x'): perform_bulk takes "
        "lists of arguments in that order, as in [[1], [2]]; this is of type dict: write "
        "[[row['user'], row['mode']] for row in rows]"
    )
    assert not pushed.pushed


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"user": 5}, "there is no 'user' (is 'user_id' meant?); missing: 'user_id'"),
        ({"user_id": 5, "mod": 1}, "there is no 'mod' (is 'mode' meant?)"),
        ({"zzz": 5, "yyy": 6}, "there is no 'zzz'; there is no 'yyy'; missing: 'user_id'"),
        ({}, "missing a required argument: 'user_id'"),
    ],
)
def test_a_wrong_name_is_named_beside_what_is_missing(
    names: dict[str, Any], said: str, pushed: FakeClient
) -> None:
    class Named(forkq.Job, name="N"):
        def perform(self, user_id: int, mode: str = "x") -> None: ...

    with pytest.raises(InvalidJob) as caught:
        cast("Any", Named).perform_async(**names)
    assert str(caught.value) == f"job 'N' takes (user_id, mode='x'): {said}"
    assert not pushed.pushed


def test_set_changes_this_push_only_and_takes_foreign_keys(pushed: FakeClient) -> None:
    class Set(forkq.Job, name="S", queue="q"):
        def perform(self, n: int) -> None: ...

    Set.set(queue="low", retry=False).set({"custom": "x"}).perform_async(1)
    assert pushed.last == {
        "class": "S", "args": [1], "queue": "low", "retry": False, "custom": "x"
    }  # fmt: skip
    Set.perform_async(2)
    assert pushed.last == {"class": "S", "args": [2], "queue": "q"}


@pytest.mark.parametrize(("odd", "meant"), [("iterabel", "iterable"), ("retry_o", "retry_on")])
def test_a_misspelt_option_of_a_definition_is_refused(odd: str, meant: str) -> None:
    with pytest.raises(InvalidJob, match=f"no job option '{odd}'; is '{meant}' meant"):
        forkq.job(**cast("Any", {odd: True}))(lambda: None)


def test_set_refuses_a_misspelt_option_unless_it_is_a_key_of_ones_own(pushed: FakeClient) -> None:
    class Set(forkq.Job, name="S"):
        def perform(self) -> None: ...

    options = cast("Any", Set.set)
    with pytest.raises(InvalidJob, match=r"no job option 'queu'; is 'queue' meant\?.*\{'queu': "):
        options(queu="low")
    with pytest.raises(InvalidJob, match=r"no job option 'que'; is 'queue' meant\?"):
        options(que="low")
    with pytest.raises(InvalidJob, match="no job option 'unique': write `unique_for=SECONDS`"):
        options(unique=60)
    options(tenant=7).perform_async()
    assert pushed.last == {"class": "S", "args": [], "tenant": 7}
    options({"queu": "low"}).perform_async()
    assert pushed.last == {"class": "S", "args": [], "queu": "low"}


def test_set_refuses_an_impossible_value_at_once() -> None:
    class Set(forkq.Job, name="S"):
        def perform(self) -> None: ...

    with pytest.raises(InvalidJob, match="`retry` is '3'"):
        cast("Any", Set.set)(retry="3")


def test_options_are_inherited_and_overridden(pushed: FakeClient) -> None:
    class Base(forkq.Job, queue="low", retry=3):
        """No perform: a base for others."""

    class Derived(Base, name="D", retry=7):
        def perform(self) -> None: ...

    Derived.perform_async()
    assert (pushed.last["queue"], pushed.last["retry"]) == ("low", 7)
    assert registry.names() == ["D"]


def test_a_base_without_perform_cannot_be_pushed() -> None:
    class Base(forkq.Job):
        pass

    with pytest.raises(ForkqError, match=r"Base has no perform"):
        _ = Base.perform_async


def test_a_function_that_tells_no_parameters_is_refused() -> None:
    """Functions in C: of some only newer Pythons know the parameters, of ``dict.pop`` none does."""
    with pytest.raises(InvalidJob, match=r"parameters of dict\.pop: call it in"):
        forkq.job(name="Pop")({}.pop)
    assert registry.find("Pop") is None


def test_a_perform_that_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"Odd\.perform is None, which is no function"):
        type("Odd", (forkq.Job,), {"perform": None})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"que": "x"},
            "no job option 'que'; is 'queue' meant. use one of backoff, backtrace, crashes",
        ),
        ({"expire_in": 5}, "no job option 'expire_in'; is 'expires_in' meant"),
        ({"retry": "3"}, "`retry` is '3'"),
        ({"retry_for": 2e9}, "`retry_for`"),
        ({"queue": ""}, "`queue` is ''"),
        ({"on_crash": "bury"}, "`on_crash` is 'bury'; pass one of dead, requeue, discard"),
        ({"on_crash": ["dead"]}, "`on_crash` is"),
        ({"crashes": 0}, "`crashes` is 0; pass a whole number from 1 to 100"),
        ({"crashes": -1}, "`crashes` is -1"),
        ({"crashes": True}, "`crashes` is True"),
        ({"crashes": 2.5}, "`crashes` is 2.5"),
    ],
)
def test_a_wrong_option_is_refused_in_the_definition(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        type("Odd", (forkq.Job,), {"perform": lambda self: None}, **options)
    with pytest.raises(InvalidJob, match=message):
        forkq.job(**options)(lambda: None)


def test_a_function_stays_callable_and_is_a_job(pushed: FakeClient) -> None:
    @forkq.job(queue="mail", name="WelcomeMail", retry=2)
    def welcome(user_id: int) -> int:
        return user_id + 1

    assert welcome(7) == 8
    assert welcome.perform_async(7) == "j" * 24
    assert pushed.last == {"class": "WelcomeMail", "args": [7], "queue": "mail", "retry": 2}
    assert registry.lookup("WelcomeMail").make(running())(1) == 2
    assert "WelcomeMail" in repr(welcome)


@pytest.fixture(params=["class", "function"])
def push(request: pytest.FixtureRequest) -> Any:
    """perform_async of a job (a: int, b: int = 1, c: int = 2)."""
    if request.param == "function":

        @forkq.job(name="F")
        def job(a: int, b: int = 1, c: int = 2) -> None: ...

        return job.perform_async

    class Job(forkq.Job, name="F"):
        def perform(self, a: int, b: int = 1, c: int = 2) -> None: ...

    return Job.perform_async


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3, 4), {}), ((), {"b": 1}), ((1,), {"a": 1}), ((1,), {"d": 1})],
)
def test_a_call_that_does_not_fit_is_refused_when_pushed(
    push: Callable[..., str], pushed: FakeClient, args: Any, kwargs: Any
) -> None:
    with pytest.raises(InvalidJob, match=r"job 'F' takes \(a, b=1, c=2\): "):
        push(*args, **kwargs)
    assert pushed.pushed == []


@pytest.mark.parametrize(
    ("args", "kwargs", "sent"),
    [
        ((1,), {}, [1]),
        ((1, 5), {}, [1, 5]),
        ((), {"a": 4}, [4]),
        ((), {"c": 3, "b": 2, "a": 1}, [1, 2, 3]),
        ((1,), {"b": 9}, [1, 9]),
        ((1,), {"c": 9}, [1, 1, 9]),
    ],
)
def test_arguments_given_by_name_travel_by_position(
    push: Callable[..., str], pushed: FakeClient, args: Any, kwargs: Any, sent: list[int]
) -> None:
    push(*args, **kwargs)
    assert pushed.last["args"] == sent


def test_bulk_and_later_pushes_are_checked_too(pushed: FakeClient) -> None:
    class Job(forkq.Job, name="J"):
        def perform(self, n: int) -> None: ...

    with pytest.raises(InvalidJob, match="'J' takes"):
        Job.perform_bulk([[1], [1, 2]])
    with pytest.raises(InvalidJob, match="'J' takes"):
        cast("Any", Job.perform_in)(60)
    with pytest.raises(InvalidJob, match="'J' takes"):
        cast("Any", Job.set(queue="x").perform_async)()
    assert pushed.pushed == []


def test_a_parameter_that_only_has_a_name_cannot_travel(pushed: FakeClient) -> None:
    @forkq.job(name="K")
    def job(a: int, *, loud: bool = False) -> None: ...

    job.perform_async(1)
    assert pushed.last["args"] == [1]
    with pytest.raises(InvalidJob, match="loud can only be given by name"):
        job.perform_async(1, loud=True)


def test_any_number_of_positions_travels(pushed: FakeClient) -> None:
    @forkq.job(name="V")
    def job(*numbers: int) -> None: ...

    job.perform_async(1, 2, 3)
    assert pushed.last["args"] == [1, 2, 3]
    assert registry.lookup("V").arity == (0, float("inf"))


def test_a_parameter_may_be_called_moment(pushed: FakeClient) -> None:
    @forkq.job(name="M")
    def remind(moment: str) -> None: ...

    remind.perform_in(60, moment="noon")
    assert (pushed.last["at"], pushed.last["args"]) == (60, ["noon"])


def test_static_and_class_methods_can_perform(pushed: FakeClient) -> None:
    class Static(forkq.Job, name="static"):
        @staticmethod
        def perform(n: int) -> None: ...

    class Class(forkq.Job, name="class"):
        @classmethod
        def perform(cls, n: int) -> None: ...

    for job in (Static, Class):
        cast("Any", job).perform_async(1)
        assert pushed.last["args"] == [1]
        with pytest.raises(InvalidJob):
            cast("Any", job).perform_async()


def test_inside_perform_a_job_knows_itself() -> None:
    seen: list[Any] = []

    class Asking(forkq.Job, name="C"):
        def perform(self) -> None:
            seen.extend([self.jid, self.queue, self.retry_count, forkq.current_job().jid])

    spec = registry.lookup("C")
    spec.make(running(jid="abc", queue="q", retry_count=2))()
    assert seen == ["abc", "q", 2, "abc"]
    seen.clear()
    spec.make(running(jid="def", queue="q"))()
    assert seen == ["def", "q", None, "def"]


def test_outside_of_a_job_there_is_no_current_job() -> None:
    leave_job()
    with pytest.raises(ForkqError, match="outside of a running job"):
        forkq.current_job()


def test_a_job_need_not_stop_before_the_order_comes() -> None:
    assert forkq.stopping() is False


def test_every_run_has_an_instance_of_its_own() -> None:
    class Stateful(forkq.Job, name="S"):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def perform(self, n: int) -> list[int]:
            self.seen.append(n)
            return self.seen

    spec = registry.lookup("S")
    assert spec.make(running())(1) == [1]
    assert spec.make(running())(2) == [2]


def test_hooks_of_a_class_and_of_a_function_reach_the_registry() -> None:
    class Hooked(forkq.Job, name="class"):
        def perform(self) -> None: ...

        def retry_in(self, count: int, exception: BaseException, job: dict[str, Any]) -> Moment:
            return count + 100

        def retries_exhausted(self, job: dict[str, Any], exception: BaseException) -> object:
            return forkq.DISCARD

    @forkq.job(name="function", retry_in=lambda count, exc, job: forkq.KILL)
    def function() -> None: ...

    error = ValueError()
    spec = registry.lookup("class")
    assert spec.retry_in is not None
    assert spec.retries_exhausted is not None
    assert spec.retry_in(5, error, {}) == 105
    assert spec.retries_exhausted({}, error) is forkq.DISCARD
    other = registry.lookup("function")
    assert other.retry_in is not None
    assert other.retry_in(0, error, {}) is forkq.KILL
    assert other.retries_exhausted is None


def test_a_vetoed_push_returns_the_empty_string(
    pushed: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    @forkq.job(name="V")
    def job() -> None: ...

    monkeypatch.setattr(pushed, "push", lambda job: None)
    assert job.perform_async() == ""


def test_what_is_pushed_is_json(pushed: FakeClient) -> None:
    class Default(forkq.Job, name="D"):
        def perform(self, a: int = 1) -> None: ...

    Default.perform_async()
    assert json.loads(json.dumps(pushed.last)) == {"class": "D", "args": []}


# What a running job tells and asks


@pytest.fixture
def unit() -> Iterator[UnitOfWork]:
    """The unit of a job that this thread performs."""
    unit = UnitOfWork(1, "q", 1, b"{}")
    enter_job({"class": "X", "args": [], "jid": "abc"}, JobRun(unit))
    yield unit
    leave_job()


def progress_of(unit: UnitOfWork) -> tuple[float, float | None, str]:
    assert unit.progress is not None
    return unit.progress.done, unit.progress.total, unit.progress.note


def test_a_job_reports_its_progress_with_the_time(unit: UnitOfWork) -> None:
    """A function by its current job, a class by itself; the latest report counts."""
    before = time.time()
    forkq.current_job().progress(3, 10, "pages")
    assert unit.progress == Progress(3, 10, "pages", unit.progress.at if unit.progress else 0)
    assert unit.progress is not None
    assert before <= unit.progress.at <= time.time()

    class Reporting(forkq.Job, name="T"):
        def perform(self) -> None:
            self.progress(4.5)

    registry.lookup("T").make(forkq.current_job())()
    assert progress_of(unit) == (4.5, None, "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((Decimal("2.5"), True), (2.5, 1.0, "")),
        ((7, 0), (7, 0, "")),
        ((float("nan"), 10), (1, 10, "")),
        ((float("inf"), float("nan")), (1, None, "")),
        ((10**400, 10**400), (1, None, "")),
        (("many", "more", None), (1, None, "")),
        ((None, object(), 5), (1, None, "5")),
        ((2, 3, "x" * 500), (2, 3, "x" * 200)),
        ((2, 3, "\ud800 é"), (2, 3, "? é")),
    ],
    ids=["others", "zero", "nan", "inf", "huge", "text", "none", "long", "surrogate"],
)
def test_progress_that_makes_no_sense_never_fails_the_job(
    unit: UnitOfWork, given: tuple[Any, ...], kept: tuple[float, float | None, str]
) -> None:
    """What is no number leaves ``done`` as it was. The report still has a new time, and JSON can
    carry it."""
    job = forkq.current_job()
    job.progress(1)
    first = unit.progress
    job.progress(*given)
    assert progress_of(unit) == kept
    assert unit.progress is not first
    json.dumps(progress_of(unit), allow_nan=False).encode()


def test_each_heartbeat_of_a_child_hears_of_progress(
    unit: UnitOfWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that has run suspects has two, and either sends the progress of its own jobs."""
    monkeypatch.setattr(sys.modules[CurrentJob.__module__], "_listeners", ())
    told: list[str] = []
    tell_of_progress(lambda: told.append("ordinary"))
    tell_of_progress(lambda: told.append("of suspects"))
    forkq.current_job().progress(1)
    assert told == ["ordinary", "of suspects"]


def test_a_note_whose_text_fails_is_left_out(unit: UnitOfWork) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no")

    forkq.current_job().progress(1, 2, cast("Any", Unprintable()))
    assert progress_of(unit) == (1, 2, "")


def test_without_a_unit_progress_goes_nowhere() -> None:
    """In a test that calls perform itself, and where jobs run inline."""

    class Alone(forkq.Job, name="L"):
        def perform(self) -> None:
            self.progress(1, 2)

    Alone().perform()
    running().progress(1, 2)
    registry.lookup("L").make(forkq.current_job())()
    leave_job()


def test_a_job_learns_that_its_lease_was_lost(unit: UnitOfWork) -> None:
    assert (lease_lost(), forkq.current_job().lease_lost) == (False, False)
    unit.lost = True
    assert (lease_lost(), forkq.current_job().lease_lost) == (True, True)


def test_outside_of_a_job_no_lease_is_lost(unit: UnitOfWork) -> None:
    """Nor in a thread that the job has started, unless that thread gets the job itself."""
    unit.lost = True
    job = forkq.current_job()
    answers: list[bool] = []

    def ask() -> None:
        answers.extend([lease_lost(), job.lease_lost])

    helper = threading.Thread(target=ask)
    helper.start()
    helper.join(5)
    assert answers == [False, True]
    leave_job()
    assert lease_lost() is False


# The words of other libraries are answered. A type checker refuses them, too.

define = cast("Any", forkq.job)


@pytest.mark.parametrize("word", sorted(CALLS_ELSEWHERE))
def test_a_call_of_another_library_is_answered(word: str) -> None:
    class Mail(forkq.Job, name="elsewhere.Mail"):
        def perform(self) -> None: ...

    mail = forkq.job(name="elsewhere.mail")(lambda: None)
    for job in (Mail, mail, Mail(), Mail.set(queue="x")):
        with pytest.raises(AttributeError, match="is a job of forkq, and has no") as missing:
            getattr(job, word)
        assert CALLS_ELSEWHERE[word] in str(missing.value)
        assert not hasattr(job, word)


def test_a_method_of_that_name_of_another_base_is_found() -> None:
    class Sender:
        def send(self) -> str:
            return f"sent by {type(self).__name__}"

    class Mail(forkq.Job, Sender, name="elsewhere.Sends"):
        delay = 7

        def perform(self) -> None: ...

    assert (Mail().send(), Mail.send(Mail()), Mail.delay) == (*["sent by Mail"] * 2, 7)


def test_an_unknown_attribute_is_none_of_theirs() -> None:
    job = forkq.job(name="elsewhere.none")(lambda: None)
    with pytest.raises(AttributeError, match=r"^'FunctionJob' object has no attribute 'nothing'$"):
        getattr(job, "nothing")  # noqa: B009 - a checker refuses it


def test_an_option_of_another_library_is_answered() -> None:
    made = define(name="elsewhere.option")(lambda: None)
    for option, answer in OPTIONS_ELSEWHERE.items():
        with pytest.raises(InvalidJob, match=f"{option}: {re.escape(answer)}"):
            define(**{option: 1})(lambda: None)
        with pytest.raises(InvalidJob, match=f"no job option '{option}': {re.escape(answer)}"):
            made.set(**{option: 1})


def test_a_queue_without_its_name_and_a_class_are_answered() -> None:
    with pytest.raises(InvalidJob, match=r'instead of a function.*@forkq.job\(queue="mail"\)'):
        define("mail")
    for decorator in (define, define(queue="mail")):
        with pytest.raises(InvalidJob, match=r"write `class Plain\(forkq.Job\)`"):
            decorator(type("Plain", (), {}))
