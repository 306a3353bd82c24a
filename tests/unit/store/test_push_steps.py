"""What a push sends and concludes, step by step: no server, no socket."""

from __future__ import annotations

import hiredis
import pytest
from redis import exceptions

from forkq.features.marked import PushNeeds
from forkq.features.unique.parts import Unique
from forkq.store.connection import DamagedKey
from forkq.store.push_steps import BATCH, Push, WaitingPush
from forkq.store.route import EncodedJob, Wait
from forkq.wire.keys import Keys

KEYS = Keys("app:")
READ_ONLY = exceptions.ReadOnlyError("You can't write against a read only replica.")
FULL = exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")


def jobs(count: int, queue: str = "mail", at: float | None = None) -> list[EncodedJob]:
    return [EncodedJob(f"{number}", queue, at, b"{%d}" % number) for number in range(count)]


def decoded(commands: bytes) -> list[list[bytes]]:
    """The commands that a server would read there."""
    reader = hiredis.Reader()
    reader.feed(commands)
    found: list[list[bytes]] = []
    while command := reader.gets():
        found.append(command)
    return found


def names(commands: bytes) -> list[bytes]:
    return [command[0] for command in decoded(commands)]


@pytest.mark.parametrize("queue", ["mail", "$0", "é\r\n"])
def test_one_job_is_one_step_with_its_queue(queue: str) -> None:
    push = Push(jobs(1, queue), KEYS)
    commands, answers, awaited = push.next_step() or (b"", 0, 0)
    name = queue.encode()
    assert decoded(commands) == [
        [b"SADD", b"app:queues", name],
        [b"LPUSH", b"app:queue:" + name, b"{0}"],
    ]
    assert (answers, awaited) == (2, 2)
    assert push.next_step([1, 1]) is None
    assert push.go_on() is False
    assert (push.pushed, push.unknown) == (("0",), ())


def test_jobs_for_later_and_for_several_queues_are_one_step() -> None:
    push = Push([*jobs(1), *jobs(1, "low"), *jobs(2, at=9.5)], KEYS)
    commands, answers, awaited = push.next_step() or (b"", 0, 0)
    assert decoded(commands)[0] == [b"ZADD", b"app:schedule", b"9.5", b"{0}", b"9.5", b"{1}"]
    assert names(commands) == [b"ZADD", b"SADD", b"LPUSH", b"SADD", b"LPUSH"]
    assert (answers, awaited) == (5, 5)


def test_four_batches_are_under_way_at_a_time() -> None:
    push = Push(jobs(5 * BATCH + 1), KEYS)
    awaited: list[tuple[bool, int]] = []
    while (step := push.next_step([1] * awaited[-1][1] if awaited else ())) is not None:
        awaited.append((bool(step[0]), step[2]))
    sent, read = (True, 0), (True, 2)
    assert awaited == [sent] * 3 + [read] * 3 + [(False, 2)] * 3
    assert len(push.pushed) == 5 * BATCH + 1


def test_what_is_under_way_may_be_in_redis_and_the_rest_is_not() -> None:
    push = Push(jobs(6 * BATCH), KEYS)
    for _ in range(4):
        push.next_step()
    push.next_step([1, 1])
    assert (len(push.pushed), len(push.unknown)) == (BATCH, 4 * BATCH)
    assert str(push).startswith("1,000 of 6,000 jobs were pushed; whether 4,000 more were")


def test_what_a_replica_refuses_is_sent_once_more_and_nothing_else_twice() -> None:
    push = Push(jobs(1), KEYS)
    push.next_step()
    assert push.next_step([1, READ_ONLY]) is None
    assert push.go_on() is True
    commands, answers, awaited = push.next_step() or (b"", 0, 0)
    assert (names(commands), answers, awaited) == ([b"LPUSH"], 1, 1)
    assert push.next_step([READ_ONLY]) is None
    with pytest.raises(exceptions.ReadOnlyError):
        push.go_on()
    assert str(push) == "nothing was pushed"


def test_what_a_replica_calls_a_duplicate_may_be_none_on_the_next_master() -> None:
    needs = PushNeeds(unique=Unique(60.0, "skip", "end"), name="Mail")
    unique = [EncodedJob(jid, "mail", None, b"{}", 0, needs, jid) for jid in "ab"]
    push = Push(unique, KEYS)
    push.next_step()
    push.next_step([[1, b"another", READ_ONLY]])
    assert push.go_on()
    push.next_step()
    push.next_step([[1, 1, b"one more"]])
    assert not push.go_on()
    assert (push.pushed, push.duplicates) == (("a",), {"b": "one more"})


def test_a_push_goes_on_with_its_other_batches_after_a_failover() -> None:
    push = Push(jobs(2 * BATCH), KEYS)
    assert push.next_step()
    push.next_step()
    assert push.next_step([READ_ONLY, READ_ONLY]) == (b"", 0, 2)
    assert (push.next_step([READ_ONLY, READ_ONLY]), push.go_on()) == (None, True)
    commands, *_ = push.next_step() or (b"",)
    assert names(commands) == [b"SADD", b"LPUSH"] * 2
    assert (push.next_step([1] * 4), push.go_on()) == (None, False)
    assert len(push.pushed) == 2 * BATCH


def waited(*refused: int) -> WaitingPush:
    """A push of three batches that waits for a replica. The first connection refuses some of them;
    the second takes these."""
    push, batch = WaitingPush(jobs(3 * BATCH), KEYS, wait=Wait(1, 100)), 0
    replies: list[object] = []
    while (step := push.next_step(replies)) is not None or push.go_on():
        replies = [1] * (step[2] if step else 0)
        if replies:
            if batch in refused:
                replies[:2] = [READ_ONLY, READ_ONLY]
            batch += 1
    assert len(push.pushed) == 3 * BATCH
    return push


def test_a_push_waits_for_replicas_once_with_its_last_batch() -> None:
    push = WaitingPush(jobs(BATCH + 1), KEYS, wait=Wait(2, 100))
    first, *_ = push.next_step() or (b"",)
    last, answers, awaited = push.next_step() or (b"", 0, 0)
    assert names(first) == [b"SADD", b"LPUSH"]
    assert decoded(last)[-1] == [b"WAIT", b"2", b"100"]
    assert (answers, awaited) == (3, 2)
    assert push.next_step([1, 1]) == (b"", 0, 3)
    assert (push.next_step([1, 1, 1]), push.go_on()) == (None, False)
    assert (push.replicated, push.unconfirmed) == (False, "1 of 2 replicas has it")
    assert len(push.pushed) == BATCH + 1


def test_after_a_failover_no_push_is_called_replicated_that_two_servers_took() -> None:
    """WAIT on the second connection knows nothing of the jobs that the first one has sent."""
    assert waited().replicated is True
    assert waited(0, 1, 2).replicated is True
    assert waited(2).replicated is False
    assert waited(2).unconfirmed == "there was a failover meanwhile"


def test_a_refused_wait_fails_no_push() -> None:
    push = WaitingPush(jobs(1), KEYS, wait=Wait(1, 100))
    push.next_step()
    refused = exceptions.NoPermissionError("no permissions")
    assert push.next_step([1, 1, refused]) is None
    assert (push.go_on(), push.replicated) == (False, False)
    assert push.unconfirmed == "WAIT is refused (no permissions)"
    assert push.pushed == ("0",)


def test_a_refusal_that_stands_ends_the_push_after_what_is_under_way() -> None:
    push = Push(jobs(5 * BATCH), KEYS)
    for _ in range(4):
        push.next_step()
    assert push.next_step([1, FULL]) == (b"", 0, 2)
    for _ in range(2):
        assert push.next_step([1, 1]) == (b"", 0, 2)
    assert push.next_step([1, 1]) is None
    with pytest.raises(exceptions.OutOfMemoryError):
        push.go_on()
    assert (len(push.pushed), push.unknown) == (3 * BATCH, ())


def test_a_damaged_key_is_named() -> None:
    push = Push(jobs(1), KEYS)
    push.next_step()
    push.next_step([1, exceptions.ResponseError("WRONGTYPE Operation against a key")])
    with pytest.raises(DamagedKey, match="app:queue:mail"):
        push.go_on()
