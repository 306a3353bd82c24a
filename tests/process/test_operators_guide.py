"""docs/operators-guide.md: each incident is staged with real parts, its commands are run in their
order, and print what the page shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis

import forkq
from forkq import api, default_client
from forkq.errors import ServerFull
from tests.process.shared import payloads
from tests.support.documents import ROOT, Snippet, snippets
from tests.support.printed import same_shape
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import NotInTime, wait_until
from tests.web.shared import client_of

pytestmark = pytest.mark.xdist_group("operators-guide")  # the tests share a tree

PAGE = ROOT / "docs" / "operators-guide.md"
JID = re.compile(r"\b[0-9a-f]{24}\b")
# What changes something is done once; what shows something is asked until it shows that.
ACTS = {"set", "reset", "pause", "resume", "restart", "retry", "delete", "clear"}
PATIENCE = 60
DAY = 86_400
CONFIG = """
[forkq]
app = "jobs"
tag = "shop"

[limits]
mail = 2

[capsules.default]
queues = ["default", "mail"]
concurrency = 4
"""
# A heartbeat comes twice a second, so that no test waits ten for what one tells.
APP = """
import ctypes
import time
from pathlib import Path

import forkq
from forkq.child.heartbeat import beat

beat.INTERVAL = 0.5
HERE = Path(__file__).parent
kept = []

@forkq.job(name="shop.Mail", queue="mail")
def mail(number):
    while not (HERE / "mails go").exists():
        time.sleep(0.02)

@forkq.job(name="shop.Import")
def read(megabytes):
    kept.append(bytearray(b"x") * (megabytes << 20))

@forkq.job(name="shop.Thumbnail")
def thumbnail(path):
    if "broken" in (HERE / path).read_text():
        ctypes.string_at(0)

@forkq.job(name="shop.Receipt", queue="mail")
def receipt(order): ...
"""
RIGHT_RELEASE = f"""{APP}
@forkq.job(name="shop.Invoice", queue="mail")
def invoice(order): ...
"""


class Shop(NamedTuple):
    """A tree and its Redis. The release that runs does not know shop.Invoice."""

    server: Server
    tree: ForkqTree
    redis: Redis

    def push(self, name: str, *rows: Any, **more: Any) -> list[str]:
        """Pushes one job for each argument."""
        job = {"class": name, "args": [[row] for row in rows], **more}
        return default_client.default().push_bulk(job)

    def wait_done(self) -> None:
        """Until nothing waits and nothing runs."""
        keys = ("queue:default", "queue:mail", "{queue:default}:inflight", "{queue:mail}:inflight")
        wait_until(lambda: not self.redis.exists(*keys), deadline=PATIENCE, what="the jobs' end")

    def print(self, line: str) -> tuple[int, str]:
        """Runs a line of the page; its exit code and what it prints."""
        words = shlex.split(line)
        if words[0] == "redis-cli":
            return 0, str(self.server.cli(*words[1:]), "utf-8")
        if "|" not in words:
            done = self.tree.run(*words[1:])
            return done.returncode, done.stdout + done.stderr
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**self.tree.env, "PATH": path}
        piped = subprocess.run(
            ["sh", "-c", line], cwd=self.tree.cwd, env=env, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        return piped.returncode, piped.stdout


@pytest.fixture(scope="module")
def _tree() -> Iterator[tuple[Server, ForkqTree]]:
    with ExitStack() as stack:
        server = Server(tcp=True).start()
        stack.callback(server.close)
        trees = StartTree()
        stack.callback(trees.close)
        env = {"FORKQ_REDIS": server.url, "FORKQ_LOG_FORMAT": "console"}
        yield server, trees(app=APP, config=CONFIG, env=env)


@pytest.fixture
def shop(_tree: tuple[Server, ForkqTree]) -> Iterator[Shop]:
    server, tree = _tree
    forkq.configure(server.url, environ={})
    client = server.client()
    client.delete("queue:default", "queue:mail", "retry", "dead")
    yield Shop(server, tree, client)
    (tree.cwd / "mails go").touch()
    server.close_clients()
    default_client.forget()


def section(heading: str) -> list[Snippet]:
    """The commands and outputs under this heading of the page."""
    before = PAGE.read_text().partition(f"\n## {heading}\n")[0].count("\n")
    after = [n for n, text in enumerate(PAGE.read_text().split("\n")) if text.startswith("## ")]
    end = next((n for n in after if n > before + 1), 1 << 30)
    found = snippets(PAGE, "sh", "text")
    inside = [each for each in found if before < int(each.place.rpartition(":")[2]) < end]
    assert inside, heading
    return inside


def walk(shop: Shop, heading: str, jid: str = "") -> Iterator[str]:
    """Runs the commands of a section, in turn. Yields each before it is run, for the test to stage
    what comes then. ``jid`` takes the place of that on the page."""
    blocks = section(heading)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "sh":
            continue
        line = block.text.strip()
        yield line
        shown = following.text if following and following.language == "text" else ""
        run(shop, JID.sub(jid or "0", line), shown)


def run(shop: Shop, line: str, shown: str) -> None:
    """Each line of ``shown`` is part of what the command prints."""
    lines = [shape(each) for each in shown.splitlines() if each.strip()]
    acts = bool(ACTS & set(shlex.split(line)))
    printed: list[str] = []

    def told() -> bool:
        code, text = shop.print(line)
        text = text.replace(str(shop.tree.cwd), "/srv/shop")
        printed.append(text)
        return all(each in shape(text) for each in lines) and not (acts and code)

    try:
        wait_until(told, deadline=0 if acts else PATIENCE, every=0.2, what=line)
    except NotInTime:
        raise AssertionError(f"{line} prints not\n{shown}but\n{printed[-1]}") from None


def shape(printed: str) -> str:
    """Without the token of an undo, with the host of the page, and each length of time in s."""
    printed = re.sub(r"(?<=\d) (ms|min|h)\b", " s", printed)
    printed = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "web1", printed)
    return same_shape(re.sub(r"undo [0-9a-f]{16}", "undo TOKEN", printed))


def front_page() -> str:
    """The dashboard of the web UI, whose first line says what is wrong."""
    with client_of() as web:
        return str(web.get("/").text)


def bury(shop: Shop, name: str, error: str, count: int) -> None:
    """Fills the dead set with jobs that have failed 40 days ago."""
    at = time.time() - 40 * DAY
    known = {"class": name, "queue": "mail", "retry": True, "retry_count": 25, "created_at": at}
    failed = {"error_message": "invoices/7.txt", "failed_at": at, "retried_at": at}
    known |= {"error_class": error, **failed}
    jobs = [
        {**known, "args": [n], "jid": f"{name.encode().hex()[-4:]}{n:020x}"} for n in range(count)
    ]
    shop.redis.zadd("dead", {json.dumps(job): at + n / 1000 for n, job in enumerate(jobs)})


def test_the_alerts_and_reasons_that_the_page_names_are_those_of_forkq() -> None:
    page = PAGE.read_text()
    rules = (ROOT / "deploy" / "prometheus-rules.yaml").read_text()
    alerts = set(re.findall(r"`(Forkq\w+)`", page))
    assert len(alerts) == 6
    assert alerts <= set(re.findall(r"alert: (\w+)", rules))
    source = re.sub(r"\{[^}]*\}", "N", (ROOT / "forkq" / "api" / "queue_report.py").read_text())
    rows = page.partition("| why it waits |")[2].partition("\n\n")[0].splitlines()[2:]
    reasons = [reason for row in rows for reason in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(reasons) == 11
    assert [reason for reason in reasons if reason not in source] == []
    elsewhere = {block.text for block in section("The wrong release")}
    assert {block.text for block in section("Upgrade")} <= elsewhere


def test_a_queue_that_does_not_drain(shop: Shop) -> None:
    (shop.tree.cwd / "mails go").unlink(missing_ok=True)
    shop.push("shop.Mail", *range(40), queue="mail")
    for line in walk(shop, "A queue does not drain"):
        if line == "forkq queues":
            (shop.tree.cwd / "mails go").touch()
    shop.wait_done()


def test_memory_that_grows(shop: Shop) -> None:
    def memory() -> int:
        """Of the largest child, in KiB."""
        return max((process.rss for process in api.ProcessSet()), default=0)

    shop.push("shop.Import", 60, 60, 60, 60)
    shop.wait_done()
    [rule] = [each.text for each in snippets(PAGE, "toml") if "max_memory" in each.text]
    [logged] = [each.text for each in section("Memory grows") if "recycling" in each.text]
    for line in walk(shop, "Memory grows"):
        if line.startswith("forkq restart"):
            wait_until(lambda: memory() > 240 << 10, deadline=PATIENCE, what="the large child")
            (shop.tree.cwd / "forkq.toml").write_text(CONFIG + rule.partition("\n")[2])
        if line.startswith("forkq metrics"):
            shop.push("shop.Import", 60, 60, 60)
            shop.wait_done()
            wait_until(
                lambda: same_shape(logged) in same_shape(shop.tree.log_text()),
                deadline=PATIENCE,
                what="the line of the log",
            )
            wait_until(
                lambda: shop.redis.hexists("forkq:totals:children", "restart|max_memory|n"),
                deadline=PATIENCE,
                what="the count of the replaced child",
            )
    wait_until(lambda: memory() < 120 << 10, deadline=PATIENCE, what="a small child")


def test_a_poison_job(shop: Shop) -> None:
    (shop.tree.cwd / "a.png").write_text("broken")
    [jid] = shop.push("shop.Thumbnail", "a.png")
    wait_until(lambda: shop.redis.zcard("dead") == 1, deadline=PATIENCE, what="the burial")
    for line in walk(shop, "A poison job", jid):
        if line.startswith("forkq retry"):
            assert "child died" in shop.tree.log_text()
            (shop.tree.cwd / "a.png").write_text("mended")
    shop.wait_done()
    assert not shop.redis.exists("dead", "retry")


def test_a_full_redis(shop: Shop) -> None:
    bury(shop, "shop.Newsletter", "smtplib.SMTPServerDisconnected", 3000)
    used: Any = shop.redis.info("memory")
    shop.server.cli("CONFIG", "SET", "maxmemory", used["used_memory"] - 500_000)
    try:
        with pytest.raises(ServerFull):
            shop.push("shop.Receipt", 1, queue="mail")
        assert "full (noeviction)" in front_page()
        for line in walk(shop, "Redis is full"):
            assert line
        assert not shop.redis.exists("dead")
        assert not shop.redis.keys("forkq:undo:*")
        shop.push("shop.Receipt", 1, queue="mail")
    finally:
        shop.server.cli("CONFIG", "SET", "maxmemory", 0)


def test_the_wrong_release(shop: Shop) -> None:
    shop.push("shop.Invoice", 1, 2, queue="mail")
    wait_until(lambda: shop.redis.zcard("retry") == 2, deadline=PATIENCE, what="both failures")
    members: Any = shop.redis.zrange("retry", 0, -1)
    shop.redis.zadd(
        "retry", dict.fromkeys(members, time.time() + 1300), xx=True
    )  # no try meanwhile
    for line in walk(shop, "The wrong release"):
        if "doctor" in line:
            shop.push("shop.Invoice", 3, queue="mail")
        if line.startswith("forkq restart"):
            (shop.tree.cwd / "jobs.py").write_text(RIGHT_RELEASE)
    shop.wait_done()
    assert not payloads(shop.redis, "retry")


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq on PATH: `make test-deps`")
def test_a_million_dead_jobs_but_fewer(shop: Shop) -> None:
    for name, error, count in (
        ("shop.Newsletter", "smtplib.SMTPServerDisconnected", 300),
        ("shop.Receipt", "smtplib.SMTPServerDisconnected", 200),
        ("shop.Invoice", "FileNotFoundError", 100),
    ):
        bury(shop, name, error, count)
    for line in walk(shop, "A million dead jobs"):
        if "dead delete" in line and "--yes" in line:
            assert shop.redis.zcard("dead") == 600
        if "limits set" in line:
            assert shop.redis.zcard("dead") == 300
        if line == "forkq stats" and shop.redis.zcard("dead") < 600:
            assert shop.redis.zcard("dead") == 100
            shop.wait_done()
