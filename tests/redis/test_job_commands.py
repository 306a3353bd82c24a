"""``forkq dead``, ``retries``, ``scheduled``, ``jobs``, ``queues``, ``processes``, ``retry`` and
``undo``: what they do to Redis, what they say, and their exit codes."""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import Any

import pytest
from redis import Redis

from forkq import api
from forkq.cli import bulk
from forkq.errors import InvalidJob
from tests.redis.shell import Shell
from tests.support.server import Server

KEYS = {"scheduled": "schedule", "retries": "retry", "dead": "dead"}
SETS = list(KEYS)
WHO = "web1:17:0123456789ab"
pytestmark = pytest.mark.usefixtures("environment")


def job(jid: str, **more: Any) -> str:
    past = time.time() - 7200
    known = {"class": "shop.Mail", "args": [{"password": "hidden"}, jid], "queue": "mail"}
    times = {"created_at": past, "enqueued_at": past, "failed_at": past, "retried_at": past}
    error = {"error_class": "shop.Refused", "error_message": "no such box", "retry_count": 2}
    return json.dumps({**known, "jid": jid, "retry": True, **times, **error, **more})


def fill(redis: Redis, *jids: str, group: str = "dead", **more: Any) -> None:
    score = time.time() + (600 if group != "dead" else -7200)
    redis.zadd(KEYS[group], {job(jid, **more): score + at for at, jid in enumerate(jids)})


def push(redis: Redis, queue: str, *jids: str) -> None:
    redis.sadd("queues", queue)
    redis.lpush(f"queue:{queue}", *(job(jid, queue=queue, retry_count=None) for jid in jids))


def isolate(redis: Redis, queue: str, *jids: str) -> None:
    """Adds suspects, as the rescue of a dead child does."""
    suspects = (job(jid, queue=queue, forkq={"suspect": True}) for jid in jids)
    redis.lpush(f"{{queue:{queue}}}:suspects", *suspects)
    redis.sadd("forkq:suspects", queue)


def queued(redis: Redis, queue: str = "mail") -> list[str]:
    """The jids in a queue, the next one first."""
    return [json.loads(raw)["jid"] for raw in redis.lrange(f"queue:{queue}", 0, -1)][::-1]


def inside(redis: Redis, group: str = "dead") -> list[str]:
    return [found["jid"] for found in members(redis, group)]


def members(redis: Redis, group: str) -> list[dict[str, Any]]:
    """What stands in a set, by score."""
    found: Any = redis.zrange(KEYS[group], 0, -1)
    return [json.loads(raw) for raw in found]


# Looking


def stack(lines: int) -> str:
    calls = "".join(f'\n  File "app.py", line {at} in call_{at}' for at in range(1, lines))
    return f"Current thread 0x7f01 (most recent call first):{calls}"


@pytest.mark.parametrize("command", ["dead show a", "find a"])
def test_of_a_long_stack_the_first_lines_are_shown(
    redis: Redis, shell: Shell, command: str
) -> None:
    crashes = [{"at": 1.5e9, "signal": 9, "stack": stack(lines)} for lines in (12, 13, 40)]
    trace = base64.b64encode(zlib.compress(json.dumps([f"line {n}" for n in range(30)]).encode()))
    fill(redis, "a", forkq={"crashes": crashes}, error_backtrace=trace.decode())
    assert shell(command) == 0
    shown = [line.strip() for line in shell.out.splitlines()]
    assert len([line for line in shown if line.startswith("Current thread")]) == 3
    assert len([line for line in shown if "in call_11" in line]) == 3
    assert not any("in call_12" in line or line == "line 12" for line in shown)
    assert [line for line in shown if "more line" in line] == [
        "and 18 more lines: --json has all of them",
        "and 1 more line: --json has all of them",
        "and 28 more lines: --json has all of them",
    ]
    assert shell(f"{command} --json") == 0
    found = json.loads(shell.out)
    assert found["crashes"][2]["stack"] == stack(40)
    assert len(found["backtrace"]) == 30


@pytest.mark.parametrize("group", SETS)
def test_a_bare_group_lists_and_a_filter_that_matches_nothing_says_so(
    group: str, redis: Redis, shell: Shell
) -> None:
    assert shell(group) == 0
    one = {"retries": "retrying"}.get(group, group)
    assert shell.out == f"there is no {one} job\n"
    fill(redis, "a", "b", group=group)
    assert shell(f"{group} --class Mail") == 0
    assert "shop.Refused: no such box" in shell.out
    assert [line.split()[0] for line in shell.out.splitlines()] in (
        ["JID", "a", "b"], ["JID", "b", "a"],
    )  # fmt: skip
    assert shell(f"{group} list --class Other") == 1
    assert shell.out == f"no {one} job matches\n"


def test_each_filter_is_obeyed(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    fill(redis, "b", **{"class": "Pay", "queue": "pay", "error_class": "Timeout"})
    redis.zadd("dead", {job("c", args=["needle"]): time.time() - 5})
    for words, found in {
        "--class Pay": "b", "--error Timeout": "b", "--queue pay": "b", "--jid a": "a",
        "--match NEEDLE": "c", "--older-than 1h --class Mail": "a", "--limit 1 --jid c": "c",
    }.items():  # fmt: skip
        assert shell(f"dead list --json {words}") == 0, words
        assert [json.loads(line)["jid"] for line in shell.out.splitlines()] == [found]
    assert shell("dead --older-than 2020-01-01") == 1


def test_a_long_list_says_that_there_is_more(redis: Redis, shell: Shell) -> None:
    fill(redis, *map(str, range(60)))
    assert shell("dead") == 0
    assert len(shell.out.splitlines()) == 52
    assert shell.out.endswith("and more: these are the first 50; --limit N shows N\n")
    assert (shell("dead --limit 7 --json"), len(shell.out.splitlines())) == (0, 7)
    assert (shell("dead --limit 60"), len(shell.out.splitlines())) == (0, 61)


def test_show_masks_secrets_and_a_list_has_no_arguments(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    assert shell("dead show a") == 0
    assert '[{"password": "***"}, "a"]' in shell.out
    assert "error_message   no such box" in shell.out
    assert (shell("dead show a --json"), json.loads(shell.out)["attempts"]) == (0, 3)
    assert (shell("dead list --json"), "args" in shell.out) == (0, False)
    assert shell("dead show b") == 1
    assert shell.err == "b is no dead job; `forkq find b` looks everywhere\n"


def test_find_shows_error_message_and_attempts(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    assert shell("find a") == 0
    assert "error_message   no such box" in shell.out
    assert "attempts        3" in shell.out


# Acting


@pytest.mark.parametrize("group", ["retries", "scheduled"])
def test_kill_moves_to_the_dead_set(group: str, redis: Redis, shell: Shell) -> None:
    fill(redis, "a", "b", group=group)
    assert shell(f"{group} kill a") == 0
    assert (inside(redis, group), inside(redis)) == (["b"], ["a"])


@pytest.mark.parametrize("group", ["retries", "scheduled", "jobs"])
def test_kill_says_what_goes_for_good(group: str, redis: Redis, shell: Shell) -> None:
    redis.zadd("forkq:dead:bounds", {"3 180": time.time()})
    fill(redis, "x", "y")
    if group == "jobs":
        push(redis, "mail", "a", "b", "c")
    else:
        fill(redis, "a", "b", "c", group=group)
    assert (shell(f"{group} kill --all --limit 1 --dry-run"), shell.err) == (0, "")
    assert shell(f"{group} kill --all --dry-run") == 0
    says = (
        "The dead set keeps 3 jobs: of {}, forkq deletes the oldest {} for good when the next "
        "job dies.\n"
    )
    assert shell.err == says.format(5, 2)
    assert (shell(f"{group} kill a"), shell.err) == (0, "")
    assert (shell(f"{group} kill b"), shell.err) == (0, says.format(4, 1))
    assert shell(f"{group} kill --all --yes --json") == 0
    assert shell.err == says.format(5, 2)
    assert inside(redis) == ["x", "y", "a", "b", "c"]


@pytest.mark.parametrize("group", SETS)
def test_retry_and_move(group: str, redis: Redis, shell: Shell) -> None:
    fill(redis, "a", "b", "c", group=group)
    assert shell(f"{group} retry --all --limit 1 --yes") == 0
    assert shell.out.startswith("1 ")
    assert (queued(redis), inside(redis, group)) == (["a"], ["b", "c"])
    push(redis, "pay", "x")
    assert shell(f"{group} move b --to pay") == 0
    assert shell.out.endswith("job moved to pay\n")
    if group == "dead":
        assert queued(redis, "pay") == ["x", "b"]
    else:
        assert members(redis, group)[0]["queue"] == "pay"


@pytest.mark.parametrize("group", [*SETS, "jobs"])
def test_what_is_deleted_can_be_put_back(group: str, redis: Redis, shell: Shell) -> None:
    if group == "jobs":
        push(redis, "mail", "a", "b")
        push(redis, "pay", "c")
    else:
        fill(redis, "a", "b", "c", group=group)
    assert shell(f"{group} delete --all --yes") == 0
    deleted, undo = shell.out.splitlines()
    assert deleted.startswith("3 ")
    assert (queued(redis), queued(redis, "pay"), redis.exists(*KEYS.values())) == ([], [], 0)
    command = undo.removeprefix("to put back within ten minutes: forkq ").split()
    assert shell("undo unknown", *command[1:]) == 1  # the others are put back all the same
    assert "nothing is kept under 'unknown'" in shell.err
    found = [*queued(redis), *queued(redis, "pay")] if group == "jobs" else inside(redis, group)
    assert sorted(found) == ["a", "b", "c"]


@pytest.mark.parametrize("group", ["scheduled", "retries", "jobs"])
def test_jobs_that_wait_are_cancelled_by_a_filter(group: str, redis: Redis, shell: Shell) -> None:
    """They stay until the leader ends them. A job that is none has no jid, and is left out."""
    if group == "jobs":
        push(redis, "mail", "a", "b")
        redis.lpush("queue:mail", job("c", **{"class": "shop.Other"}), "no job")
    else:
        fill(redis, "a", "b", group=group)
        fill(redis, "c", group=group, **{"class": "shop.Other"})
    assert shell(f"{group} cancel --class Mail --dry-run") == 0
    assert not redis.exists("forkq:cancelled")
    one = {"retries": "retrying", "jobs": "queued"}.get(group, group)
    assert shell(f"{group} cancel --class Mail") == 2
    assert "`cancel` asks first" in shell.err
    assert shell(f"{group} cancel --class Mail -y") == 0
    assert shell.out == f"2 {one} jobs cancelled\n"
    assert sorted(redis.hkeys("forkq:cancelled")) == [b"jid:a", b"jid:b"]
    assert shell(f"{group} cancel c") == 2  # of one job, too
    assert shell(f"{group} cancel c -y") == 0
    assert redis.hlen("forkq:cancelled") == 3
    if group == "jobs":
        assert shell("jobs cancel --all -y") == 0
        assert "3 queued jobs cancelled; 1 left as they are" in shell.out
    assert shell(f"{group} cancel --class None -y") == 1


def test_several_jobs_are_cancelled_at_once(redis: Redis, shell: Shell) -> None:
    fill(redis, "a", "b", group="scheduled")
    assert shell("cancel a b --wait 0 --json") == 1  # no leader runs
    found = [json.loads(line) for line in shell.out.splitlines()]
    assert found == [{"jid": jid, "outcome": "pending"} for jid in ("a", "b")]
    assert sorted(redis.hkeys("forkq:cancelled")) == [b"jid:a", b"jid:b"]
    assert shell("cancel a --class shop.Mail") == 2
    assert "pass jids, --class NAME or --batch BATCH, not two of them" in " ".join(
        shell.err.split()
    )
    assert shell("cancel a --grace 3") == 2
    assert "--grace means nothing without --force" in " ".join(shell.err.split())
    assert shell("cancel") == 2


def test_a_pattern_is_no_class_to_cancel(redis: Redis, shell: Shell) -> None:
    assert shell("cancel --class shop.*") == 2
    assert "`forkq jobs cancel`, `retries cancel` and `scheduled cancel` take patterns" in " ".join(
        shell.err.split()
    )
    assert not redis.exists("forkq:cancelled")


def test_queued_jobs_are_moved_and_killed(redis: Redis, shell: Shell) -> None:
    push(redis, "mail", "a", "b")
    push(redis, "pay", "c", "d")
    assert (shell("jobs kill --all --limit 3 --dry-run"), shell.out[:2]) == (0, "3 ")
    assert shell("jobs move --all --to pay --yes") == 0
    assert (queued(redis), queued(redis, "pay")) == ([], ["c", "d", "a", "b"])
    assert shell("jobs kill c d") == 0
    assert (inside(redis), queued(redis, "pay")) == (["c", "d"], ["a", "b"])
    assert shell("jobs --queue mail") == 1
    assert (shell("jobs kill --queue pay --limit 1 --yes"), queued(redis, "pay")) == (0, ["b"])
    assert (shell("jobs delete b"), queued(redis, "pay")) == (2, ["b"])  # it asks


def test_a_dry_run_changes_nothing(redis: Redis, shell: Shell) -> None:
    fill(redis, "a", "b")
    for words, said in {
        "delete --all": "2 dead jobs would be deleted\n",
        "retry --jid a": "1 dead job would be enqueued\n",
        "clear": "2 dead jobs would be deleted\n",
    }.items():
        assert (shell(f"dead {words} --dry-run"), shell.out) == (0, said)
    assert inside(redis) == ["a", "b"]
    assert shell("dead retry --class Other --dry-run") == 1
    assert "no dead job matches: nothing was changed" in shell.err


def test_clear_of_an_empty_queue_names_it(redis: Redis, shell: Shell) -> None:
    push(redis, "mail", "a")
    assert shell("queues clear mial --yes") == 1
    assert shell.err == (
        'warning: no job has been pushed to "mial" so far; the nearest is "mail"\n'
        'the queue "mial" is empty: nothing to do\n'
    )
    assert queued(redis) == ["a"]


def test_clear(redis: Redis, shell: Shell) -> None:
    assert (shell("dead clear"), shell.err) == (1, "there is no dead job: nothing to do\n")
    fill(redis, "a", "b")
    push(redis, "mail", "c")
    undo = []
    for command, said in {
        "dead clear": "2 dead jobs deleted",
        "queues clear mail": '1 "mail" job deleted',
    }.items():
        assert shell(f"{command} --yes") == 0
        deleted, back = shell.out.splitlines()
        assert deleted == said
        undo.append(back.removeprefix("to put back within ten minutes: forkq "))
    assert (inside(redis), queued(redis)) == ([], [])
    assert [shell(line) for line in undo] == [0, 0]
    assert (inside(redis), queued(redis)) == (["a", "b"], ["c"])


@pytest.mark.parametrize("command", ["dead clear", "queues clear mail"])
def test_more_than_redis_should_keep_is_cleared_for_good(
    command: str, redis: Redis, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_UNDONE", 2)
    fill(redis, "a", "b", "c")
    push(redis, "mail", "a", "b", "c")
    assert (shell(f"{command} --yes"), "undo" in shell.out) == (0, False)
    assert shell.out.startswith("3 ")
    assert redis.keys("forkq:undo:*") == []
    push(redis, "mail", "a", "b", "c")
    fill(redis, "a", "b", "c")
    assert (shell(f"{command} --yes --json"), json.loads(shell.out)) == (0, {"done": 3})


@pytest.mark.parametrize("command", ["dead clear", "queues clear mail"])
def test_without_undo_redis_keeps_nothing(command: str, redis: Redis, shell: Shell) -> None:
    fill(redis, "a", "b")
    push(redis, "mail", "a", "b")
    assert (shell(f"{command} --yes --no-undo"), "undo" in shell.out) == (0, False)
    assert redis.keys("forkq:undo:*") == []


def test_without_a_terminal_nothing_is_asked(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    fill(redis, "a", group="retries")
    push(redis, "mail", "a")
    lines = ("dead retry --all", "dead delete a", "dead clear", "retries kill --class Mail")
    for line in (*lines, "jobs delete --all", "queues clear mail"):
        assert shell(line) == 2, line
        assert "add --yes to do it" in shell.err
    assert (inside(redis), inside(redis, "retries"), queued(redis)) == (["a"], ["a"], ["a"])


def test_a_job_in_a_queue_of_a_strange_name_hides_no_other(redis: Redis, shell: Shell) -> None:
    """Sidekiq pushes to a queue of any name; here it looks like a pattern."""
    fill(redis, "a")
    for name in ("mail", "m*"):
        redis.sadd("queues", name)
        redis.lpush(f"queue:{name}", job(f"in-{name}", queue=name))
    assert shell("jobs") == 0
    assert {"in-mail", "in-m*"} <= set(shell.out.split())
    assert shell("jobs delete --yes --queue m*") == 0
    assert redis.llen("queue:m*") == 0
    assert shell("queues show m*") == 0


TEXTS = ("--class", "--error", "--queue", "--jid", "--match")


def test_wrong_words_are_refused(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    for line, said in {
        "dead retry": "which jobs? Give jids, a filter",
        "dead retry a --class Mail": "name jobs in three ways: give one",
        "dead retry --all --class Mail": "name jobs in three ways: give one",
        "dead retry a --limit 1": "--limit bounds a filter or --all, not jids",
        "dead --older-than soon": "'soon' is neither a length of time",
        "dead --older-than 2026-13-01": "is neither a length of time",
        "dead --limit 0": "--limit",
        "dead delete --older-than 2999-01-01 --yes": "2999-01-01 is in the future",
        **{f"dead delete --yes {name}=": "it is empty" for name in TEXTS},
        "jobs -q a,b": "'a,b' is not a queue: expected a name of",
        "dead move a --to m*": '"m*" is a pattern',
        "dead move a --to a,b": "'a,b' is not a queue: expected a name of",
        "dead kill a": "No such command 'kill'",
        "dead -x": "No such option",
    }.items():
        assert shell(line) == 2, line
        assert said in shell.err
    assert inside(redis) == ["a"]


def test_unknown_jids_are_named_and_the_others_done(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    assert shell("dead retry a nope") == 1
    assert "nope is no dead job" in shell.err
    assert queued(redis) == ["a"]
    assert shell("dead retry nope") == 1


def test_a_class_that_no_child_has_is_asked_about(redis: Redis, shell: Shell) -> None:
    redis.hset("forkq:parameters", mapping={"shop.Mail": "{}", "shop.Invoice": "{}"})
    for given, meant in (("Mail", "shop.Mail"), ("shop.Invoic", "shop.Invoice")):
        assert shell(f"cancel --class {given}") == 0
        assert shell.err == f"no child has a job of that name: is {meant} meant?\n"
    assert shell("cancel --class shop.Mail --json") == 0
    assert (json.loads(shell.out), shell.err) == (
        {"class": "shop.Mail", "outcome": "pending"},
        "",
    )
    with pytest.raises(InvalidJob, match="is a pattern"):
        api.cancel_class("shop.*")


def test_retry_takes_a_job_from_wherever_it_is(redis: Redis, shell: Shell) -> None:
    fill(redis, "a")
    fill(redis, "b", group="retries")
    fill(redis, "c", group="scheduled")
    assert shell("retry a b c --fresh") == 0
    assert shell.out.splitlines()[0] == "a (shop.Mail) was dead, is in mail"
    assert queued(redis) == ["a", "b", "c"]
    assert not any(b"error_class" in raw for raw in redis.lrange("queue:mail", 0, -1))
    assert shell("retry a nope") == 1
    assert shell.err.splitlines() == [
        "a waits in the queue mail already",
        "nope is nowhere: it has ended, was replaced or deleted, or was never pushed",
    ]


def test_a_part_of_a_jid_is_called_so_and_can_be_looked_for(redis: Redis, shell: Shell) -> None:
    """At a terminal the lines of the log have the first eight digits only."""
    jid = "53cb1549aa12bb34cc56dd78"
    fill(redis, jid)
    said = "53cb1549 is nowhere: a jid has 24 digits, this is a part of one; `--match` of "
    assert (shell("find 53cb1549"), shell.out.startswith(said)) == (1, True)
    assert (shell("retry 53cb1549"), shell.err.startswith(said)) == (1, True)
    assert (shell("dead --match 53cb1549"), jid in shell.out) == (0, True)
    assert (shell("find " + jid[::-1]), "it has ended" in shell.out) == (1, True)


def test_a_job_that_is_no_job_can_be_seen_and_deleted(redis: Redis, shell: Shell) -> None:
    redis.zadd("dead", {"no job": 1.0})
    assert (shell("dead"), "(no job: not JSON" in shell.out) == (0, True)
    assert shell("dead retry --all --yes") == 1
    assert "1 left as they are: their payloads are no jobs" in shell.out
    assert shell("dead delete --all --yes --json") == 0
    assert json.loads(shell.out)["done"] == 1


def test_without_redis_the_code_is_6(redis_server: Server, shell: Shell) -> None:
    for line in ("dead", "jobs", "queues", "processes", "retry a", "undo a", "dead clear --yes"):
        assert shell(f"{line} --redis redis://127.0.0.1:1") == 6, line
        assert shell.err.startswith("forkq: Redis at redis://127.0.0.1:1: ")


# Queues and processes


def test_queues_say_why_they_wait(redis: Redis, shell: Shell) -> None:
    assert (shell("queues"), shell.out) == (0, "no job has been pushed to any queue\n")
    push(redis, "mail", "a", "b")
    assert shell("queues") == 0
    assert "no living process serves it" in shell.out.splitlines()[1]
    assert shell("queues --json") == 0
    assert json.loads(shell.out)["size"] == 2
    assert shell("queues show mail") == 0
    assert "why it waits  no living process serves it" in shell.out
    assert (shell("queues show mial"), 'the nearest is "mail"' in shell.err) == (0, True)


def test_suspects_are_told_with_the_jobs_of_their_queue(redis: Redis, shell: Shell) -> None:
    push(redis, "mail", "a", "b")
    isolate(redis, "mail", "s")
    assert shell("jobs") == 0
    _, first, second, _ = shell.out.splitlines()
    assert first.startswith("s ")
    assert first.endswith("suspect; shop.Refused: no such box")
    assert "suspect" not in second
    assert shell("jobs --json") == 0
    alone = [json.loads(line).get("runs_alone") for line in shell.out.splitlines()]
    assert alone == [True, None, None]
    assert shell("find s") == 0
    assert "runs_alone" in shell.out
    assert shell("stats") == 0
    assert "enqueued          3" in shell.out
    assert shell("queues show mail") == 0
    assert "suspects      1" in shell.out
    assert shell("queues --json") == 0
    assert json.loads(shell.out)["suspects"] == 1
    assert shell("jobs delete a b --yes") == 0
    assert shell("queues show mail") == 0
    assert "1 suspect waits to run alone" in shell.out


def test_a_queue_that_was_deleted_is_told_while_it_has_suspects(redis: Redis, shell: Shell) -> None:
    isolate(redis, "mail", "s")
    assert shell("queues") == 0
    assert "no living process serves it" in shell.out.splitlines()[1]
    assert (shell("jobs"), shell.out.splitlines()[1][:2]) == (0, "s ")
    assert shell("jobs move s --to low") == 0
    assert (shell("queues clear low --yes --no-undo"), redis.keys("*queue*")) == (0, [])


def beat(redis: Redis) -> None:
    info = {"hostname": "web1", "pid": 17, "tag": "shop", "concurrency": 2, "queues": ["mail"],
            "started_at": 1700000000.5, "labels": [], "version": "forkq 1",
            "master": 9}  # fmt: skip
    redis.sadd("processes", WHO)
    fields: dict[Any, Any] = {
        "info": json.dumps(info),
        "busy": 0,
        "rss": 40 << 10,
        "beat": time.time(),
        "quiet": "false",
    }
    redis.hset(WHO, mapping=fields)
    redis.expire(WHO, 600)


def test_processes_take_orders(redis: Redis, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (shell("processes"), shell.out) == (0, "no process runs jobs on this Redis\n")
    beat(redis)
    assert shell("processes") == 0
    titles, row = shell.out.splitlines()
    assert titles.split()[2:5] == ["TREE", "BUSY", "RSS"]
    assert row.split()[:7] == ["web1", "17", "shop", "9", "0", "of", "2"]
    assert row.split()[7] == "40MB"
    assert (shell("processes --json"), json.loads(shell.out)["pid"]) == (0, 17)
    assert (shell("processes show web1:17"), f"identity    {WHO}" in shell.out) == (0, True)
    monkeypatch.setattr("forkq.cli.processes._ANSWER_LIMIT", 0.2)
    assert shell("processes quiet web1") == 1  # there is no process behind the record
    assert shell.out == "1 process told to go quiet, with the next heartbeat\n"
    assert "no answer from web1:17 in 0.2 s" in shell.err
    assert (shell("processes stop web1"), shell("processes stop web1 --yes")) == (2, 1)
    assert shell("processes stacks", WHO) == 1
    assert redis.lrange(f"{WHO}-signals", 0, -1) == [b"TTIN", b"TERM", b"TSTP"]
    assert shell("processes stop gone --yes") == 1
    assert "no living process is called gone" in shell.err


# Interrupted


def test_ctrl_c_says_what_was_done_and_how_to_put_it_back(
    redis: Redis, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(redis, *map(str, range(300)))
    seen = []

    class Interrupting(bulk.ActionProgress):
        def __call__(self, outcome: api.Outcome) -> None:
            super().__call__(outcome)
            seen.append(outcome.done)
            raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "ActionProgress", Interrupting)
    assert shell("dead delete --all --yes") == 130
    said, undo = shell.err.splitlines()
    assert said == f"interrupted: {seen[0]} dead jobs deleted so far, perhaps one batch more"
    assert 0 < seen[0] < 300
    assert len(inside(redis)) == 300 - seen[0]
    assert shell(undo.removeprefix("to put back within ten minutes: forkq ")) == 0
    assert len(inside(redis)) == 300
