"""An outage of Redis: one line when it begins and one when it ends; pauses that grow."""

from __future__ import annotations

import threading
import time

from redis.exceptions import AuthenticationError

from forkq.store.outage import Backoff, Outage
from forkq.store.redis_py import Unanswered
from tests.support.recorded_log import RecordedLog


def test_one_line_when_it_goes_and_one_with_the_downtime_when_it_returns() -> None:
    lines = RecordedLog()
    outage = Outage(lines)
    outage.end()
    threads = [
        threading.Thread(target=outage.begin, args=[ConnectionError("refused")]) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outage.end()
    outage.end()
    assert lines.events() == ["redis lost", "redis is back"]
    assert lines.lines[0][2] == {"error": "refused"}
    assert lines.lines[1][2]["downtime"] >= 0


def test_a_reply_to_an_older_question_does_not_end_an_outage() -> None:
    """One thread has its reply, and goes on only when another one has failed after it."""
    lines = RecordedLog()
    outage = Outage(lines)
    asked = time.monotonic()
    outage.begin(ConnectionError("refused"))
    outage.end(asked)
    assert outage.is_on
    assert lines.events() == ["redis lost"]
    outage.end(time.monotonic())
    assert lines.events() == ["redis lost", "redis is back"]


def test_each_failure_makes_older_replies_worthless() -> None:
    lines = RecordedLog()
    outage = Outage(lines)
    outage.begin(ConnectionError("refused"))
    asked = time.monotonic()
    outage.begin(ConnectionError("refused"))
    outage.end(asked)
    assert lines.events() == ["redis lost"]


def test_the_downtime_counts_from_the_question_that_redis_did_not_answer() -> None:
    """Not from the moment at which a time-out was over."""
    lines = RecordedLog()
    outage = Outage(lines)
    outage.begin(Unanswered("no answer within 5 s", 5.0))
    outage.begin(Unanswered("no answer within 50 s", 50.0))  # another part; the first one counts
    outage.end()
    assert 5 <= lines.lines[1][2]["downtime"] < 50


def test_an_error_without_a_message_is_logged_by_its_class() -> None:
    lines = RecordedLog()
    Outage(lines).begin(TimeoutError())
    assert lines.lines == [("error", "redis lost", {"error": "TimeoutError"})]


def test_a_refused_login_is_told_as_such_once_also_when_the_server_was_away_before() -> None:
    """A refusal by the server is never told as an outage."""
    lines = RecordedLog()
    outage = Outage(lines)
    wrong = AuthenticationError("invalid username-password pair")
    for error in (ConnectionError("refused"), wrong, wrong, ConnectionError("refused")):
        outage.begin(error)
    assert lines.events() == ["redis lost", "redis refuses; trying again"]
    assert outage.reason == "refused", "the last one"
    outage.end()
    assert outage.reason == ""
    outage.begin(wrong)
    assert lines.events()[2:] == ["redis is back", "redis refuses; trying again"]


def test_pauses_grow_from_one_second_to_ten_with_jitter() -> None:
    backoff = Backoff()
    pauses = [backoff.pause() for _ in range(40)]
    assert 0.5 <= pauses[0] <= 1
    assert 1 <= pauses[1] <= 2
    assert all(5 <= pause <= 10 for pause in pauses[5:])
    assert len(set(pauses)) > 30
    backoff.reset()
    assert backoff.pause() <= 1
