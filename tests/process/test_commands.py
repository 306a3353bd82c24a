"""The commands that look into Redis and steer what is there, as a user types them."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.api import cron
from forkq.cron.entry import Entry
from forkq.cron.history import line
from tests.process.shared import push, wait_events, wait_settled
from tests.support.printed import objects
from tests.support.server import Server
from tests.support.tree import CHECKOUT, ForkqTree, StartTree
from tests.support.waiting import wait_until

WIDTH = 100
SECRET = "hunter2"
APP = """
import time
import forkq

@forkq.job(name="Crawl", queue="slow")
def crawl(secret: str) -> None:
    job = forkq.current_job()
    pages = 0
    while not forkq.stopping():
        pages += 1
        job.progress(pages, 1_000_000, "pages")
        time.sleep(0.01)

@forkq.job(name="Report")
def report(number: int) -> None: ...
"""


@pytest.fixture
def shell(redis: Redis, redis_server: Server) -> Iterator[ForkqTree]:
    """A folder to run commands in, on an empty server."""
    tree = ForkqTree(app=APP, env={"FORKQ_REDIS": redis_server.url, "TZ": "Asia/Tokyo"})
    yield tree
    tree.close()


def output(shell: ForkqTree, *arguments: str, code: int = 0, width: int = WIDTH) -> str:
    """What a command prints; what has names of usual length is no wider than a terminal."""
    result = shell.run(*arguments)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert all(len(line) <= width for line in result.stdout.splitlines())
    return result.stdout.strip()


def output_json(shell: ForkqTree, *arguments: str, code: int = 0) -> Any:
    result = shell.run(*arguments, "--json")
    assert result.returncode == code, result.stderr
    assert SECRET not in result.stdout
    return json.loads(result.stdout)


def output_objects(shell: ForkqTree, *arguments: str) -> list[dict[str, Any]]:
    result = shell.run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert SECRET not in result.stdout
    return objects(result.stdout)


def add(server: Server, **more: Any) -> None:
    """A periodic job, added as an app does it."""
    entry = {"name": "nightly", "cron": "30 3 * * *", "job": "Report", "args": [SECRET], **more}
    forkq.configure(server.url, environ={})
    try:
        cron.add(**entry)
    finally:
        default_client.forget()


def test_an_empty_server_is_reported_in_words(shell: ForkqTree) -> None:
    """Never by silence."""
    assert output(shell, "running") == "no job is running"
    assert output(shell, "running", "--longer-than", "1h30m") == (
        "no job is running for more than 90 min"
    )
    assert output(shell, "stuck") == "no job has been silent for more than 10 min"
    assert output(shell, "cron").startswith("no periodic job is known")
    assert output(shell, "cron", "list").startswith("no periodic job is known")
    assert output(shell, "cron", "next").startswith("no periodic job is known")
    assert "no job has been pushed to any queue" in output(shell, "stats")
    assert "is nowhere" in output(shell, "find", "f" * 24, code=1)
    assert output_objects(shell, "running") == output_objects(shell, "stuck") == []
    assert output_objects(shell, "cron", "list") == output_objects(shell, "cron", "next") == []
    assert output_json(shell, "find", "f" * 24, code=1)["location"] is None


def test_running_and_stuck_show_a_real_job(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """With the progress that its heartbeat brought, and without its arguments."""
    forkq = tree(redis_server, app=APP, args=["-q", "slow"], env={"FORKQ_REDIS": redis_server.url})
    jid = push(redis_server, "Crawl", SECRET, queue="slow")
    [job] = wait_until(
        lambda: [job for job in output_objects(forkq, "running") if job["progress"]],
        deadline=60,
        every=0.2,
        what="a heartbeat that tells of progress",
    )
    assert (job["jid"], job["job"], job["queue"]) == (jid, "Crawl", "slow")
    assert job["progress"]["done"] > 0
    table = output(forkq, "running", width=110)  # with an estimate of the end
    assert jid in table
    assert "pages" in table
    assert output(forkq, "running", "--longer-than", "1d") == "no job is running for more than 24 h"
    assert output(forkq, "stuck", "--minutes", "5") == "no job has been silent for more than 5 min"
    assert jid in output(forkq, "stuck", "--minutes", "0", code=1, width=110)
    shown = output(forkq, "find", jid)
    assert re.search(r"location +running", shown)
    assert re.search(r"running_since +\d{4}-.* (ago\)|\(just now\))", shown)
    progress = r"progress +[\d,]+ of 1,000,000 pages(, about .+ left)? \((.* ago|just now)\)"
    assert re.search(progress, shown), shown
    assert output_json(forkq, "find", jid)["progress"]["done"] > 0
    assert re.search(r"^busy +1$", output(forkq, "stats"), re.MULTILINE)
    assert forkq.stop() == 0


def test_find_says_where_a_job_is(shell: ForkqTree, redis_server: Server) -> None:
    queued = push(redis_server, "Mail", SECRET, queue="mail")
    later = push(redis_server, "Mail", SECRET, at=3600)
    shown = output(shell, "find", queued)
    assert re.search(r"location +queued\n", shown)
    assert re.search(r"queue +mail\n", shown)
    found = output_json(shell, "find", later)
    assert (found["location"], found["job"]) == ("scheduled", "Mail")
    assert found["at"] == pytest.approx(time.time() + 3600, abs=60)
    assert re.search(r"at +\d{4}-.* JST \(in (59|60) min", output(shell, "find", later))


def test_stats_show_counts_queues_and_days(shell: ForkqTree, redis: Redis) -> None:
    redis.mset({"stat:processed": 12345, "stat:failed": 67})
    redis.sadd("queues", "mail", "m" * 150)
    redis.lpush("queue:mail", "{}", "{}")
    shown = output(shell, "stats", "--days", "3", width=200)
    assert "m" * 150 in shown
    assert "as of the last heartbeats" in shown
    assert "12,345" in shown
    assert re.search(r"^mail +2 ", shown, re.MULTILINE)
    assert len(re.findall(r"^\d{4}-\d\d-\d\d +0 +0$", shown, re.MULTILINE)) == 3
    found = output_json(shell, "stats", "--days", "2")
    assert (found["processed"], found["enqueued"], len(found["history"])) == (12345, 2, 2)


def test_cron_list_and_next_show_ticks_in_their_own_zone(
    shell: ForkqTree, redis_server: Server
) -> None:
    """Not in the operator's, which is Tokyo's here."""
    add(redis_server, tz="America/New_York")
    add(redis_server, name="often", cron="*/10 * * * * *", enabled=False)
    listed = output(shell, "cron", "list")
    assert re.search(r"^nightly .* 03:30 E[SD]T  in .*  -  +Report$", listed, re.MULTILINE)
    assert re.search(r"^often .*disabled", listed, re.MULTILINE)
    ticks = output(shell, "cron", "next", "nightly", "-n", "3").splitlines()[1:-1]
    assert len(ticks) == 3
    assert all(re.fullmatch(r"\S+ 03:30:00 E[SD]T  in .*  nightly", tick) for tick in ticks)
    assert "often" not in output(shell, "cron", "next")
    asleep = shell.run("cron", "next", "often", "-n", "2")
    assert "disabled" in asleep.stderr
    assert len(asleep.stdout.splitlines()) == 4
    coming = output_objects(shell, "cron", "next", "-n", "4")
    assert [tick["tick"] for tick in coming] == sorted(tick["tick"] for tick in coming)
    [nightly, often] = output_objects(shell, "cron", "list")
    assert (nightly["tz"], nightly["next"]) == ("America/New_York", coming[0]["tick"])
    assert (often["next"], often["enabled"]) == (None, False)


def test_cron_pause_and_resume(shell: ForkqTree, redis_server: Server) -> None:
    add(redis_server)
    add(redis_server, name="second")
    assert output(shell, "cron", "pause", "nightly", "second") == (
        "nightly is paused\nsecond is paused"
    )
    assert output(shell, "cron", "pause", "nightly") == "nightly was paused already"
    assert re.search(r"^nightly .*paused", output(shell, "cron", "list"), re.MULTILINE)
    assert output(shell, "cron", "next").splitlines()[0] == "no tick is coming"
    assert output(shell, "cron", "resume", "nightly").startswith("nightly goes on; next: 2")
    assert output(shell, "cron", "resume", "nightly").startswith("nightly was not paused")


def test_cron_list_tells_of_the_latest_run_and_cuts_no_name(
    shell: ForkqTree, redis: Redis, redis_server: Server
) -> None:
    long = "refresh the prices of all " + "shops " * 10 + "on earth"
    add(redis_server, name=long, job=long)
    add(redis_server, name="shop.jobs.refresh", job="shop.jobs.refresh")
    redis.lpush("forkq:cron:runs:shop.jobs.refresh", line("dead", jid="a", elapsed=1.0))
    listed = output(shell, "cron", "list", width=200)
    assert re.search(rf"^{long} .*  -  +-$", listed, re.MULTILINE)
    dead = r"^shop.jobs.refresh .*  dead (\d.* s ago|just now)  +-$"
    assert re.search(dead, listed, re.MULTILINE)
    [_, latest] = output_objects(shell, "cron", "list")
    assert (latest["last"]["event"], latest["last"]["jid"]) == ("dead", "a")


def test_without_a_leader_cron_says_that_nothing_will_happen(
    shell: ForkqTree, redis: Redis, redis_server: Server
) -> None:
    add(redis_server)
    for command in ("list", "next"):
        assert "no clock leads" in output(shell, "cron", command).splitlines()[-1]
    redis.set("forkq:leader", "another", ex=60)
    for command in ("list", "next"):
        assert "no clock leads" not in output(shell, "cron", command)


def test_an_entry_of_an_app_that_does_not_run_sleeps_and_can_be_removed(
    shell: ForkqTree, redis: Redis
) -> None:
    for name, enabled in (("left", True), ("off", False)):
        job = {"class": "Old", "args": []}
        entry = Entry.make(name=name, cron="@daily", job=job, enabled=enabled, origin="code:old")
        redis.hset("forkq:cron", name, entry.encode())
    redis.set("forkq:cron:origin:old", "runs", ex=60)
    refused = shell.run("cron", "remove", "left")
    assert refused.returncode == 1
    assert "defined by the code of old, which runs: change it there or pause it" in refused.stderr
    redis.delete("forkq:cron:origin:old")
    assert re.search(r"^left +@daily +asleep", output(shell, "cron", "list"), re.MULTILINE)
    assert output(shell, "cron", "resume", "left") == (
        "left was not paused, but it is asleep: no running tree has the app that defines it"
    )
    output(shell, "cron", "pause", "off")
    assert output(shell, "cron", "resume", "off") == (
        "off is no longer paused, but it is disabled where it is defined: nothing is enqueued"
    )
    assert output(shell, "cron", "remove", "left") == "left is removed"
    assert redis.hkeys("forkq:cron") == [b"off"]


MISTYPED_APP = """
import forkq

@forkq.every("@daily", name="nightly", queue="nihgtly")
@forkq.job(name="Good", queue="mail")
def good(): ...

@forkq.job(name="Mistyped", queue="mial")
def mistyped(): ...

@forkq.job(name="Retried", queue="mail", retry_queue="lwo")
def retried(): ...
"""
MISTYPED_FILE = """
[capsules.default]
queues = ["mail", "low"]
workers = 2
[capsules.other]
queues = ["other"]
[[cron]]
job = "Good"
cron = "@daily"
queue = "malls"
"""
NO_CAPSULE = "no capsule of this tree works on these queues: jobs wait until another tree does"
# With the queue that was probably meant.
MISTYPED = {
    "'malls' of the periodic job 'Good'": "mail",
    "'mial' of the job 'Mistyped'": "mail",
    "'lwo' of retries of the job 'Retried'": "low",
    "'nihgtly' of the periodic job 'nightly'": "",
}


def test_config_check_names_all_that_goes_to_a_queue_of_no_capsule(shell: ForkqTree) -> None:
    (shell.cwd / "forkq.toml").write_text(f'[forkq]\napp = "jobs"\n{MISTYPED_FILE}')
    (shell.cwd / "jobs.py").write_text(MISTYPED_APP)
    result = shell.run("config", "check")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert len(lines) == len(MISTYPED)
    for told, (named, meant) in zip(lines, MISTYPED.items(), strict=True):
        hint = f"did you mean {meant!r}?" if meant else "they work on mail, low, other"
        assert f"works on the queue {named}; {hint}" in told


@pytest.mark.parametrize("preload", [False, True])
def test_the_start_warns_once_of_all_that_goes_to_a_queue_of_no_capsule(
    redis_server: Server, tree: StartTree, preload: bool
) -> None:
    env = {"FORKQ_PRELOAD": "true"} if preload else {}
    args = ["--log-format", "json"]
    forkq = tree(redis_server, app=MISTYPED_APP, config=MISTYPED_FILE, args=args, env=env)
    [told] = wait_events(forkq, NO_CAPSULE)
    assert told["level"] == "warning"
    assert told["queues"] == [
        f"{named} (did you mean {meant!r}?)" if meant else named
        for named, meant in MISTYPED.items()
    ]
    assert told["served"] == ["mail", "low", "other"]


def test_config_check_names_an_entry_on_a_queue_of_no_capsule(shell: ForkqTree) -> None:
    (shell.cwd / "forkq.toml").write_text(
        '[capsules.default]\nqueues = ["mail"]\n'
        '[[cron]]\njob = "A"\ncron = "@daily"\nqueue = "mail"\n'
        '[[cron]]\njob = "B"\ncron = "@daily"\nqueue = "mial"\n'
        '[[cron]]\njob = "C"\ncron = "@daily"\n'
    )
    result = shell.run("config", "check")
    assert result.returncode == 1
    [warning] = result.stderr.splitlines()
    assert "works on the queue 'mial' of the periodic job 'B'; did you mean 'mail'?" in warning


def test_a_misspelt_name_changes_nothing(
    shell: ForkqTree, redis: Redis, redis_server: Server
) -> None:
    """Not even for those that were spelt right."""
    add(redis_server)
    for command in ("pause", "resume"):
        result = shell.run("cron", command, "nightly", "nihgtly")
        assert result.returncode == 1
        assert "'nihgtly'" in result.stderr
        assert "'nightly'" in result.stderr
    assert redis.exists("forkq:cron:paused") == 0


def test_cron_run_and_history(shell: ForkqTree, redis: Redis, redis_server: Server) -> None:
    add(redis_server, queue="low")
    assert output(shell, "cron", "history", "nightly") == "nightly has not run yet"
    jid = output(shell, "cron", "run", "nightly")
    assert redis.llen("queue:low") == 1
    assert re.search(rf"run by hand .*{jid}", output(shell, "cron", "history", "nightly"))
    [run] = output_objects(shell, "cron", "history", "nightly")
    assert (run["jid"], run["by_hand"], run["event"]) == (jid, True, "run by hand")
    assert output(shell, "cron", "remove", "nightly") == "nightly is removed"
    assert redis.exists("forkq:cron", "forkq:cron:runs:nightly") == 0


def test_mark_deploy_marks_once(shell: ForkqTree, redis: Redis) -> None:
    """By its label, or by the latest commit where there is one."""
    assert output(shell, "mark-deploy", "v1.2") == "marked: v1.2"
    assert output(shell, "mark-deploy", "v1.2").startswith("marked already, less than a minute ago")
    [key] = redis.keys("*-marks")
    assert redis.hvals(key) == [b"v1.2"]
    second = output(shell, "mark-deploy", "v1.3")
    marks: Any = redis.hvals(key)
    shown = b" ".join(marks)
    if len(marks) == 1:  # but for a minute that has just ended
        assert second == "marked: v1.3 (this minute says: v1.2, v1.3)"
    assert b"v1.2" in shown
    assert b"v1.3" in shown
    refused = shell.run("mark-deploy")
    assert refused.returncode == 1
    assert "forkq mark-deploy LABEL" in refused.stderr
    redis.flushall()
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "One"],
    ):
        subprocess.run(["git", *command], cwd=shell.cwd, check=True, timeout=60)
    assert re.fullmatch(r"marked: [0-9a-f]{4,} One", output(shell, "mark-deploy"))


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["running", "--longer-than", "90"], 2, ["'90'", "90s"]),
        (["running", "--longer-than", "soon"], 2, ["soon", "1h"]),
        (["stuck", "--minutes", "-1"], 2, ["-1"]),
        (["stats", "--days", "0"], 2, ["0"]),
        (["find"], 2, ["JID"]),
        (["config"], 2, ["check", "show"]),
        (["cron", "pause"], 2, ["NAME"]),
        (["cron", "next", "-n", "many"], 2, ["many"]),
        (["cron", "run", "x"], 1, ["'x'", "none at all"]),
        (["cron", "history", "x"], 1, ["'x'"]),
        (["stats", "--redis", "redis://:hunter2@127.0.0.1:1/0"], 6, ["127.0.0.1:1"]),
        (["running", "--redis", "redis://:hunter2@127.0.0.1:1/0"], 6, ["127.0.0.1:1"]),
        (["cron", "list", "--redis", "embedded"], 6, ["embedded"]),
        (["find", "x", "-C", "missing.toml"], 2, ["missing.toml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_mistake_is_a_message(
    shell: ForkqTree, arguments: list[str], code: int, named: list[str]
) -> None:
    result = shell.run(*arguments)
    assert result.returncode == code, result.stderr
    shown = result.stderr + result.stdout  # a group without a command shows its help
    for name in named:
        assert name in shown
    assert "Traceback" not in result.stderr
    assert SECRET not in shown


def test_names_from_redis_cannot_control_the_terminal(shell: ForkqTree, redis: Redis) -> None:
    redis.sadd("queues", "a\x1b[2Jb")
    assert "\x1b" not in output(shell, "stats")


def test_the_recipe_finds_rows_whose_job_is_gone(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """The very code of docs/recipes.md, on real jobs: one is alive, one gone, one done."""
    recipes = (CHECKOUT / "docs" / "recipes.md").read_text()
    [app, *_] = re.findall(r"```python\n(.*?)```", recipes, re.DOTALL)
    forkq = tree(redis_server, app=app, env={"FORKQ_REDIS": redis_server.url})
    alive = push(redis_server, "Export", 1, queue="exports")
    database = sqlite3.connect(forkq.cwd / "shop.db")
    database.execute("CREATE TABLE exports (id INTEGER, status TEXT, jid TEXT)")
    rows = [(1, "running", alive), (2, "running", "f" * 24), (3, "done", "e" * 24)]
    database.executemany("INSERT INTO exports VALUES (?, ?, ?)", rows)
    database.commit()
    push(redis_server, "FindLostExports")
    wait_settled(redis)
    found = dict(database.execute("SELECT id, status FROM exports").fetchall())
    database.close()
    assert found == {1: "running", 2: "lost", 3: "done"}
    assert forkq.stop() == 0


def test_an_order_to_a_process_waits_for_the_answer(
    redis_server: Server, redis: Redis, tree: StartTree
) -> None:
    """Eight orders before it do not keep it from the process."""
    forkq = tree(redis_server, app="import forkq", args=["-c", "1"])
    identity: Any = wait_until(lambda: redis.smembers("processes"), what="the record").pop()
    redis.lpush(identity + b"-signals", *["TTIN"] * 8)
    done = forkq.run("processes", "quiet", identity.decode(), "--redis", redis_server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("the order is taken\n")
    wait_until(lambda: redis.hget(identity, "quiet") == b"true", what="a quiet child")
    assert not redis.exists(identity + b"-signals")
    assert len(re.findall("order from a web UI or a command.*TTIN", forkq.log_text())) == 1
    assert forkq.stop() == 0
