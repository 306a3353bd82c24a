"""Schedules and entries: what an expression means, above all across clock changes."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from forkq.cron import zones
from forkq.cron.entry import Entry, Schedule, missed_ticks
from forkq.errors import InvalidJob, InvalidSchedule

DAY = 86400
BERLIN = "Europe/Berlin"  # 2026: skips 02:00 to 03:00 on March 29, repeats it on October 25
LORD_HOWE = "Australia/Lord_Howe"  # skips 02:00 to 02:30 on October 4, repeats 01:30 on April 5
SANTIAGO = "America/Santiago"  # skips 00:00 to 01:00 on September 6, repeats 23:00 on April 4
TROLL = "Antarctica/Troll"  # two hours: skips 01:00 to 03:00 on March 29, repeats on October 25
EXAMPLES = [40, pytest.param(400, marks=pytest.mark.slow)]  # of a property
TWO_YEARS = (int(datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp()), 2 * 365 * DAY)
# In each, clocks change in Berlin, on Lord Howe and in Santiago.
AUTUMN = (int(datetime(2025, 9, 1, tzinfo=timezone.utc).timestamp()), 60 * DAY)
SPRING = (int(datetime(2026, 3, 25, tzinfo=timezone.utc).timestamp()), 16 * DAY)


def epoch(text: str) -> int:
    """``2026-03-29 01:00`` UTC, with seconds or without."""
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())


def on_day(expression: str, tz: str, day: str) -> list[str]:
    """The ticks of one local day as local clocks show them, with the offset from UTC."""
    zone = ZoneInfo(tz)
    begin = datetime.fromisoformat(day)
    midnights = [
        datetime.combine(date, datetime.min.time(), zone).timestamp()
        for date in (begin.date(), (begin + timedelta(days=1)).date())
    ]
    ticks = Schedule.parse(expression, tz).ticks(midnights[0] - 1, midnights[1] - 1, 10_000)
    return [f"{datetime.fromtimestamp(tick, zone):%H:%M:%S%z}" for tick in ticks]


class TestExpressions:
    @pytest.mark.parametrize(
        ("expression", "since", "expected"),
        [
            ("* * * * *", "2026-01-01 00:00", "2026-01-01 00:01"),
            ("*/5 * * * *", "2026-01-01 00:04:59", "2026-01-01 00:05"),
            ("0 9-17/4 * * *", "2026-01-01 09:00", "2026-01-01 13:00"),
            ("30 6 * JAN MON-FRI", "2026-01-02 06:30", "2026-01-05 06:30"),
            ("0 0 * * 7", "2026-01-01 00:00", "2026-01-04 00:00"),
            ("0 0 L * *", "2026-02-01 00:00", "2026-02-28 00:00"),
            ("0 0 LW * *", "2026-02-01 00:00", "2026-02-27 00:00"),
            ("0 0 * * 1#2", "2026-01-01 00:00", "2026-01-12 00:00"),
            ("0 0 * * 5L", "2026-01-01 00:00", "2026-01-30 00:00"),
            ("0 0 1 * MON", "2026-01-26 00:00", "2026-02-01 00:00"),  # either day
            ("0 0 */2 * MON", "2026-01-01 00:00", "2026-01-05 00:00"),  # a star: both
            ("  0   0  1 1 *  ", "2026-01-01 00:00", "2027-01-01 00:00"),
            ("*/10 * * * * *", "2026-01-01 00:00:01", "2026-01-01 00:00:10"),
            ("59 59 23 31 12 *", "2026-01-01 00:00", "2026-12-31 23:59:59"),
            ("*/59 */23 * * *", "2026-01-01 00:00", "2026-01-01 00:59"),
            ("0 22-23,0-2 * * FRI-SAT,SUN-MON", "2026-01-02 02:00", "2026-01-02 22:00"),
        ],
    )
    def test_mean_what_cron_means(self, expression: str, since: str, expected: str) -> None:
        assert Schedule.parse(expression).after(epoch(since)) == epoch(expected)

    @pytest.mark.parametrize(
        ("alias", "expression"),
        [
            ("@yearly", "0 0 1 1 *"),
            ("@annually", "0 0 1 1 *"),
            ("@monthly", "0 0 1 * *"),
            ("@weekly", "0 0 * * 0"),
            ("@daily", "0 0 * * *"),
            ("@midnight", "0 0 * * *"),
            ("@hourly", "0 * * * *"),
            ("@Daily", "0 0 * * *"),
        ],
    )
    def test_aliases_stand_for_five_fields(self, alias: str, expression: str) -> None:
        begin = epoch("2026-01-01 00:00")
        first, second = (Schedule.parse(text, BERLIN) for text in (alias, expression))
        assert first.ticks(begin, begin + 800 * DAY, 500) == second.ticks(
            begin, begin + 800 * DAY, 500
        )

    def test_a_tick_is_strictly_after_the_moment_and_fractions_count(self) -> None:
        minutely, noon = Schedule.parse("* * * * *"), epoch("2026-01-01 12:00")
        assert minutely.after(noon - 0.001) == noon
        assert minutely.after(noon) == noon + 60
        assert minutely.after(noon + 0.001) == noon + 60

    def test_leap_days_come_every_four_years_but_not_in_2100(self) -> None:
        ticks = Schedule.parse("0 12 29 2 *", BERLIN).ticks(epoch("2090-01-01 00:00"), 5e9, 5)
        years = [datetime.fromtimestamp(tick, timezone.utc).strftime("%Y-%m-%d") for tick in ticks]
        assert years == ["2092-02-29", "2096-02-29", "2104-02-29", "2108-02-29", "2112-02-29"]

    def test_ticks_are_bounded_by_time_and_by_number(self) -> None:
        minutely, noon = Schedule.parse("* * * * *"), epoch("2026-01-01 12:00")
        assert minutely.ticks(noon, noon + 120, 10) == [noon + 60, noon + 120]
        assert minutely.ticks(noon, noon + DAY, 2) == [noon + 60, noon + 120]
        assert minutely.ticks(noon, noon, 10) == []

    @pytest.mark.parametrize("moment", [3e11, 1e30, float("inf")])
    def test_beyond_the_calendar_there_are_no_more_ticks(self, moment: float) -> None:
        assert Schedule.parse("* * * * *", BERLIN).after(moment) is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("expression", "message"),
        [
            ("61 * * * *", "minute is '61'; expected 0 to 59"),
            ("* 24 * * *", "hour is '24'; expected 0 to 23"),
            ("* * 0 * *", "day-of-month is '0'; expected 1 to 31"),
            ("* * * 13 *", "month is '13'; expected 1 to 12 or JAN to DEC"),
            ("* * * * 8", "day-of-week is '8'; expected 0 to 7 or SUN to SAT"),
            ("60 * * * * *", "second is '60'; expected 0 to 59"),
            ("0 60 * * * *", "minute is '60'; expected 0 to 59"),
            ("*/0 * * * *", "minute is '\\*/0'"),
            ("5-1 * * * *", "minute is '5-1'"),
            ("* 22-2 * * *", "a range must ascend: for 22-2 write 22-23,0-2$"),
            ("* * * * 1,FRI-MON", "a range must ascend: for FRI-MON write FRI-SAT,SUN-MON$"),
            ("* * * 11-2/2 *", "a range must ascend: for 11-2/2 write 11-12,1-2$"),
            ("* * * oct-Feb *", "a range must ascend: for oct-Feb write oct-DEC,JAN-Feb$"),
            ("70-2 * * * *", r'"1-5", "\*/2"\)$'),
            ("*/90 * * * *", "minute is '\\*/90': a step of 90 never reaches a second value"),
            ("0 1,0-23/24 * * *", "hour is '1,0-23/24': a step of 24"),
            ("0 0 */31 * *", "day-of-month .* within 1 to 31"),
            ("0 0 * * */7", "day-of-week .* within 0 to 6"),
            ("*/60 * * * * *", "second .* within 0 to 59"),
            ("1,,2 * * * *", "minute is '1,,2'"),
            ("0 0 31 2 *", "day-of-month is '31'; expected 1 to 31 .a day that the month has"),
            ("0 0 */15 * MON#2", "no date ever matches"),
            ("* * * *", "expected five fields .* six .* @hourly"),
            ("* * * * * * *", "expected five fields"),
            ("@reboot", "expected five fields .* @daily"),
            ("", "expected five fields"),
            ("* " * 200, "at most 256 characters"),
        ],
    )
    def test_name_the_field_its_value_and_what_is_expected(
        self, expression: str, message: str
    ) -> None:
        with pytest.raises(InvalidSchedule, match=message) as caught:
            Schedule.parse(expression)
        assert caught.value.exit_code == 2
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize("expression", [None, 5, ["* * * * *"]])
    def test_an_expression_must_be_text(self, expression: Any) -> None:
        with pytest.raises(InvalidSchedule, match="expected a cron expression"):
            Schedule.parse(expression)

    @pytest.mark.parametrize(
        ("tz", "near"),
        [
            ("Berlin", "Europe/Berlin"),
            ("europe/berlin", "Europe/Berlin"),
            ("Europe/Berln", "Europe/Berlin"),
            ("New York", "America/New_York"),
        ],
    )
    def test_an_unknown_zone_is_refused_with_the_nearest_one(self, tz: str, near: str) -> None:
        with pytest.raises(InvalidSchedule, match=f"no time zone '{tz}', the nearest one is"):
            Schedule.parse("@daily", tz)
        with pytest.raises(InvalidSchedule, match=near):
            Schedule.parse("@daily", tz)

    @pytest.mark.parametrize(
        "tz", ["", "../etc/passwd", "/etc/passwd", "a\0b", "America", "\udc80"]
    )
    def test_a_path_is_not_a_zone(self, tz: str) -> None:
        with pytest.raises(InvalidSchedule, match="there is no time zone"):
            Schedule.parse("@daily", tz)

    @pytest.mark.parametrize(
        "tz", ["localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/Europe/Berlin"]
    )
    def test_a_zone_that_differs_by_machine_is_refused(self, tz: str) -> None:
        with pytest.raises(InvalidSchedule, match="another time on each machine; use an IANA name"):
            Schedule.parse("@daily", tz)

    def test_without_a_zone_database_tzdata_is_recommended_and_utc_works(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(name: str) -> ZoneInfo:
            raise zoneinfo.ZoneInfoNotFoundError(name)

        monkeypatch.setattr(zoneinfo, "ZoneInfo", gone)
        monkeypatch.setattr(zoneinfo, "available_timezones", set)
        zones.zone_of.cache_clear()
        try:
            with pytest.raises(InvalidSchedule, match="install tzdata"):
                Schedule.parse("@daily", BERLIN)
            assert Schedule.parse("@daily").after(0) == DAY
        finally:
            zones.zone_of.cache_clear()

    @pytest.mark.parametrize("examples", EXAMPLES)
    def test_any_text_is_a_schedule_or_refused(self, examples: int) -> None:
        @settings(max_examples=examples)
        @given(st.text("0123456789*/,-LW#SUNMONJAN@ \t", max_size=30) | st.text(max_size=20))
        def check(text: str) -> None:
            try:
                schedule = Schedule.parse(text)
            except InvalidSchedule:
                return
            assert schedule.after(0) is not None

        check()


class TestClockChanges:
    """The local times of the day on which clocks change, in two hemispheres, by an hour and by half
    of one, with five fields and six."""

    @pytest.mark.parametrize(
        ("tz", "day", "expression", "expected"),
        [
            # A fixed time that is skipped comes once, right after the gap.
            (BERLIN, "2026-03-29", "30 2 * * *", ["03:00:00+0200"]),
            (BERLIN, "2026-03-29", "10 30 2 * * *", ["03:00:00+0200"]),
            (BERLIN, "2026-03-29", "0,30 2 * * *", ["03:00:00+0200"]),
            (BERLIN, "2026-03-29", "30 2,3 * * *", ["03:00:00+0200", "03:30:00+0200"]),
            (BERLIN, "2026-03-29", "0 2,3 * * *", ["03:00:00+0200"]),
            (LORD_HOWE, "2026-10-04", "15 2 * * *", ["02:30:00+1100"]),
            (LORD_HOWE, "2026-10-04", "0 15 2 * * *", ["02:30:00+1100"]),
            (LORD_HOWE, "2026-10-04", "15,45 2 * * *", ["02:30:00+1100", "02:45:00+1100"]),
            (SANTIAGO, "2026-09-06", "30 0 * * *", ["01:00:00-0300"]),
            (SANTIAGO, "2026-09-06", "@daily", ["01:00:00-0300"]),
            (TROLL, "2026-03-29", "0 1,2 * * *", ["03:00:00+0200"]),
            # One that happens twice comes once, the first time.
            (BERLIN, "2026-10-25", "30 2 * * *", ["02:30:00+0200"]),
            (BERLIN, "2026-10-25", "0 30 2 * * *", ["02:30:00+0200"]),
            (BERLIN, "2026-10-25", "0 2-3 * * *", ["02:00:00+0200", "03:00:00+0100"]),
            (LORD_HOWE, "2026-04-05", "45 1 * * *", ["01:45:00+1100"]),
            (LORD_HOWE, "2026-04-05", "0 45 1 * * *", ["01:45:00+1100"]),
            (LORD_HOWE, "2026-04-05", "0 2 * * *", ["02:00:00+1030"]),
            (SANTIAGO, "2026-04-04", "30 23 * * *", ["23:30:00-0300"]),
            # Anything else follows real time: nothing in the gap...
            (BERLIN, "2026-03-29", "30 */2 * * *", [f"{h:02}:30:00+0{1 + (h > 2)}00"
                                                    for h in range(0, 24, 2) if h != 2]),
            (BERLIN, "2026-03-29", "*/30 2 * * *", []),
            (BERLIN, "2026-03-29", "0 */30 2 * * *", []),
            (LORD_HOWE, "2026-10-04", "*/15 2 * * *", ["02:30:00+1100", "02:45:00+1100"]),
            (SANTIAGO, "2026-09-06", "*/20 0 * * *", []),
            # ...and in both hours what happens twice.
            (BERLIN, "2026-10-25", "*/30 2 * * *", ["02:00:00+0200", "02:30:00+0200",
                                                    "02:00:00+0100", "02:30:00+0100"]),
            (BERLIN, "2026-10-25", "0 */30 2 * * *", ["02:00:00+0200", "02:30:00+0200",
                                                      "02:00:00+0100", "02:30:00+0100"]),
            (LORD_HOWE, "2026-04-05", "*/15 1 * * *", [
                "01:00:00+1100", "01:15:00+1100", "01:30:00+1100", "01:45:00+1100",
                "01:30:00+1030", "01:45:00+1030"]),
            (SANTIAGO, "2026-04-04", "*/30 23 * * *", ["23:00:00-0300", "23:30:00-0300",
                                                       "23:00:00-0400", "23:30:00-0400"]),
        ],
    )  # fmt: skip
    def test_on_the_day(self, tz: str, day: str, expression: str, expected: list[str]) -> None:
        assert on_day(expression, tz, day) == expected

    def test_ticks_of_every_minute_are_a_minute_apart_across_clock_changes(self) -> None:
        for change in (epoch("2026-03-29 01:00"), epoch("2026-10-25 01:00")):
            ticks = Schedule.parse("* * * * *", BERLIN).ticks(change - DAY, change + DAY, 10_000)
            assert ticks == list(range(change - DAY + 60, change + DAY + 1, 60))

    @pytest.mark.parametrize("later", [DAY - 60, DAY + 60, 2 * DAY - 60, 2 * DAY + 60, 300 * DAY])
    @pytest.mark.parametrize("since", [1, 1000, 1799, 3601])
    def test_an_earlier_query_about_later_days_changes_nothing(
        self, later: int, since: int
    ) -> None:
        """The cached period of a zone is right for an entry with missed ticks, too."""
        schedule, change = Schedule.parse("30 2 * * *", BERLIN), epoch("2026-10-25 01:00")
        zones.zone_of.cache_clear()
        schedule.after(change + later)
        assert schedule.after(change + since) == epoch("2026-10-26 01:30")

    @given(
        expression=st.sampled_from(
            ["*/7 * * * *", "15,45 * * * *", "30 2 * * *", "0 1-3 * * *", "*/10 2 * * *",
             "0 0 * * *", "5 4 * * SUN", "20 */15 1,2 * * *", "10 20 2 * * *"]
        ),
        tz=st.sampled_from([BERLIN, LORD_HOWE, SANTIAGO, TROLL, "UTC"]),
        moment=st.integers(TWO_YEARS[0], sum(TWO_YEARS)),
        share=st.floats(0, 1),
    )  # fmt: skip
    def test_queries_at_different_moments_agree(
        self, expression: str, tz: str, moment: int, share: float
    ) -> None:
        """A query between a moment and the next tick returns that tick."""
        schedule = Schedule.parse(expression, tz)
        tick = schedule.after(moment)
        assert tick is not None
        assert moment < tick
        between = moment + share * (tick - 1 - moment)
        assert schedule.after(between) == tick


class TestAgainstOtherImplementations:
    """Tens of thousands of ticks over 2025 and 2026 by implementations that share no code with
    ours: croniter in UTC, and below a walk through every moment in zones where clocks change."""

    @pytest.mark.parametrize(
        "expression",
        [
            "*/13 * * * *", "7 */3 * * *", "0 0 * * *", "30 4 1,15 * 5", "0 22 * * 1-5",
            "23 0-20/2 * * *", "5 4 * * SUN", "0 0 29 2 *", "0 0 31 * *", "15 14 1 * *",
            "0 0 1 */3 *", "59 23 28-31 JAN,FEB *", "*/17 3,5 * * * *", "30 15 10 * * MON",
        ],
    )  # fmt: skip
    def test_croniter_finds_the_same_ticks_in_utc(self, expression: str) -> None:
        begin, length = TWO_YEARS
        ours = Schedule.parse(expression).ticks(begin, begin + length, 1500)
        theirs = croniter(expression, begin, second_at_beginning=True)
        expected = [int(theirs.get_next(float)) for _ in ours]
        assert ours == expected
        assert len(ours) == 1500 or theirs.get_next(float) > begin + length

    @pytest.mark.parametrize("tz", [BERLIN, LORD_HOWE, SANTIAGO])
    @pytest.mark.parametrize(
        ("begin", "length"), [AUTUMN, SPRING, pytest.param(*TWO_YEARS, marks=pytest.mark.slow)]
    )
    def test_walking_through_a_long_time_finds_the_same_ticks(
        self, tz: str, begin: int, length: int
    ) -> None:
        total = 0
        for expression in (
            "*/30 * * * *", "45 */2 * * *", "30 2 * * *", "0,20,40 0-3 * * *",
            "*/10 2 * * *", "0 0 * * *", "5 1-23/2 * * 1-5", "30 23,0 1,15 * 0",
        ):  # fmt: skip
            expected = list(ticks_by_walking(expression, tz, range(begin, begin + length, 300)))
            found = Schedule.parse(expression, tz).ticks(begin - 1, begin + length - 1, 10**6)
            assert found == expected, expression
            total += len(found)
        assert total > 10_000 * length / TWO_YEARS[1]

    @pytest.mark.parametrize("tz", [BERLIN, LORD_HOWE, SANTIAGO, TROLL])
    @pytest.mark.parametrize("years", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_walking_second_by_second_through_the_changes_finds_the_same_ticks(
        self, tz: str, years: int
    ) -> None:
        changes = changes_of(tz)
        assert len(changes) == 4
        for change in changes[: 2 * years]:
            hours = range(change - 3 * 3600, change + 3 * 3600)
            for expression in (
                "*/20 * * * * *", "5,35 */10 * * * *", "50 59 * * * *", "7 15,45 0-4 * * *",
                "*/25 30 * * * *", "30 10-50/20 23,0,1,2 * * *",
            ):  # fmt: skip
                found = Schedule.parse(expression, tz).ticks(hours[0] - 1, hours[-1], 10**6)
                assert found == list(ticks_by_walking(expression, tz, hours)), (expression, change)


def ticks_by_walking(expression: str, tz: str, moments: range) -> Iterator[int]:
    """The ticks among ``moments``, found by checking the local time of each.

    With fixed hours and minutes, a time of day ticks when local clocks first show it or jump past
    it, and only once. All other expressions tick each time local clocks show a match.
    """
    matches = matcher(expression)
    minute, hour = expression.split()[-5:-3]
    fixed = "*" not in minute[:1] + hour[:1]
    latest = None
    for quarter, offset in offsets(tz, moments):
        for moment in quarter:
            local = moment + offset
            if not fixed:
                if matches(local):
                    yield moment
                continue
            latest = local - moments.step if latest is None else latest
            if any(matches(time) for time in range(latest + moments.step, local + 1, moments.step)):
                yield moment
            latest = max(latest, local)


def offsets(tz: str, moments: range) -> Iterator[tuple[range, int]]:
    """``moments`` in quarters of an hour: today no clock changes within one."""
    zone, many = ZoneInfo(tz), 900 // moments.step
    for start in range(0, len(moments), many):
        quarter = moments[start : start + many]
        offset = datetime.fromtimestamp(quarter[0], zone).utcoffset()
        assert offset is not None
        yield quarter, int(offset.total_seconds())


def changes_of(tz: str) -> list[int]:
    """When clocks change in the two years."""
    begin, length = TWO_YEARS
    known = list(offsets(tz, range(begin, begin + length, 900)))
    return [quarter[0] for (_, before), (quarter, after) in pairwise(known) if before != after]


def matcher(expression: str) -> Callable[[int], bool]:
    """Whether a clock that matches local time (seconds since 1970) matches: numbers, lists, ranges
    and steps only."""
    fields = ["0", *expression.split()][-6:]
    spans = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
    second, minute, hour, day, month, weekday = (
        numbers(text, *span) for text, span in zip(fields, spans, strict=True)
    )
    both = fields[3].startswith("*") or fields[5].startswith("*")
    days: dict[int, bool] = {}

    def dated(number: int) -> bool:
        date = datetime(1970, 1, 1) + timedelta(days=number)
        matching = (date.day in day, date.isoweekday() % 7 in weekday)
        return date.month in month and (all(matching) if both else any(matching))

    def matches(local: int) -> bool:
        if local % 60 not in second or local // 60 % 60 not in minute:
            return False
        if local // 3600 % 24 not in hour:
            return False
        number = local // DAY
        if number not in days:
            days[number] = dated(number)
        return days[number]

    return matches


def numbers(text: str, low: int, high: int) -> set[int]:
    """The values of ``1-9/2,30`` or ``*/5``."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def entry(**changes: Any) -> Entry:
    """An entry with some fields changed."""
    return Entry.make(
        **{"name": "nightly", "cron": "@daily", "job": {"class": "Nightly", "args": []}, **changes}
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                               max_size=3),
    max_leaves=8,
)  # fmt: skip


ENTRIES = st.fixed_dictionaries(
    {
        "name": st.text(
            st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=128
        ),
        "cron": st.sampled_from(["* * * * *", "*/5 * * * * *", "@weekly", "0 0 L * 1-5"]),
        "tz": st.sampled_from(["UTC", BERLIN, LORD_HOWE]),
        "overlap": st.sampled_from(["skip", "allow"]),
        "missed": st.sampled_from(["skip", "once"]) | st.integers(0, 1000),
        "jitter": st.floats(0, 86400) | st.integers(0, 86400),
        "enabled": st.booleans(),
        "origin": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    }
)  # fmt: skip


class TestEntries:
    @pytest.mark.parametrize("examples", EXAMPLES)
    def test_are_decoded_as_they_were_encoded(self, examples: int) -> None:
        @settings(max_examples=examples)
        @given(ENTRIES, st.lists(JSON, max_size=3))
        def check(given: dict[str, Any], args: list[Any]) -> None:
            job = {"class": "A", "args": args, "queue": "q", "x": {"y": [1]}}
            written = entry(job=job, **given)
            raw = written.encode()
            assert Entry.decode(raw) == written
            assert Entry.decode(raw).encode() == raw

        check()

    def test_an_integer_jitter_is_encoded_as_a_float(self) -> None:
        """Equal definitions are equal bytes, so that publishing them again wakes no clock."""
        assert entry(jitter=3).encode() == entry(jitter=3.0).encode()

    @pytest.mark.parametrize(
        "raw",
        [
            b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000,
            b'{"name":"a","cron":"61 * * * *","job":{"class":"A","args":[]}}',
            b'{"name":"a","cron":"@daily","tz":"Mars","job":{"class":"A","args":[]}}',
            b'{"name":"a","cron":"@daily","job":{"class":7,"args":[]}}',
            b'{"name":"a","cron":"@daily","job":{"class":"A","args":{}}}',
            b'{"name":"","cron":"@daily","job":{"class":"A","args":[]}}',
            b'{"name":"a","cron":"@daily","job":{"class":"A","args":[]},"overlap":"x"}',
            b'{"name":"a","cron":"@daily","job":{"class":"A","args":[]},"missed":1001}',
            b'{"name":"a","cron":"@daily","job":{"class":"A","args":[]},"jitter":-1}',
        ],
    )  # fmt: skip
    def test_what_is_not_an_entry_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidSchedule):
            Entry.decode(raw)

    def test_unknown_keys_are_ignored(self) -> None:
        raw = entry().encode().replace(b"{", b'{"later":[1],', 1)
        assert Entry.decode(raw) == entry()

    @pytest.mark.parametrize(
        "name", ["", " a", "a ", "a\nb", "a\x00", "\x7f", "x" * 129, "\udc80", "\u2028", None, 7]
    )
    def test_an_unprintable_or_overlong_name_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidSchedule, match="expected a name of 1 to 128"):
            entry(name=name)

    def test_a_name_may_have_spaces_inside_and_letters_of_any_script(self) -> None:
        assert entry(name="Jeden Morgen früh, 毎朝").name == "Jeden Morgen früh, 毎朝"

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("overlap", "no"), ("overlap", None), ("missed", "all"), ("missed", -1),
            ("missed", 1001), ("missed", True), ("missed", 1.0), ("jitter", -0.1),
            ("jitter", 86401), ("jitter", float("nan")), ("jitter", True), ("jitter", "1"),
        ],
    )  # fmt: skip
    def test_a_wrong_policy_is_refused_by_name(self, key: str, value: Any) -> None:
        with pytest.raises(InvalidSchedule, match=f"^{key}: expected .*, found "):
            entry(**{key: value})

    @pytest.mark.parametrize("args", [[{1, 2}], [datetime(2026, 1, 1)], ["\udc80"], ("a",)])
    def test_arguments_that_json_cannot_hold_are_refused(self, args: Any) -> None:
        with pytest.raises(InvalidJob):
            entry(job={"class": "A", "args": args})

    def test_missed_ticks_may_be_given_by_name(self) -> None:
        assert [missed_ticks("skip"), missed_ticks("once"), missed_ticks(7)] == [0, 1, 7]


class TestJitter:
    def test_without_any_a_job_is_due_at_its_tick(self) -> None:
        assert entry().due(1_800_000_000) == 1_800_000_000

    @given(tick=st.integers(0, 2**40), jitter=st.floats(0, 86400))
    def test_is_bounded_and_the_same_for_every_clock(self, tick: int, jitter: float) -> None:
        one, other = entry(jitter=jitter), Entry.decode(entry(jitter=jitter).encode())
        assert tick <= one.due(tick) <= tick + jitter
        assert one.due(tick) == other.due(tick)

    def test_spreads_evenly_over_ticks_and_names(self) -> None:
        ticks = [entry(jitter=10).due(tick) - tick for tick in range(0, 60_000, 60)]
        names = [entry(jitter=10, name=f"job {n}").due(60) - 60 for n in range(1000)]
        for delays in (ticks, names):
            tenths = [sum(int(delay) == part for delay in delays) for part in range(10)]
            assert all(60 < count < 140 for count in tenths), tenths
