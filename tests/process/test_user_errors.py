"""What a user gets wrong is answered with a message that names the thing and the remedy, and an
exit code: never with a traceback, and nothing is left running."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.process.shared import APP, Journal, push, wait_settled
from tests.support.server import Server, client_of
from tests.support.tree import FORKQ, ForkqTree, StartTree
from tests.support.waiting import wait_until

PASSWORD = "sesame-opens"


@pytest.fixture
def shell() -> Iterator[ForkqTree]:
    """A folder to run commands in; nothing runs there."""
    tree = ForkqTree(app="import forkq\n")
    yield tree
    tree.close()


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Server]:
    """A server that wants a password."""
    server = Server(tcp=True).start()
    server.cli("CONFIG", "SET", "requirepass", PASSWORD)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["start", "--no-such-flag"], 2, ["--no-such-flag"]),
        (["start", "-r", "jobs", "-t", "soon"], 2, ["timeout", "soon"]),
        (["start", "-r", "jobs", "-t", "-1"], 2, ["--timeout", "-1"]),
        (["start", "-r", "jobs", "-c", "0"], 2, ["--concurrency", "0"]),
        (["start", "-r", "jobs", "-c", "many"], 2, ["concurrency", "many"]),
        (["start", "-r", "jobs", "-w", "-3"], 2, ["--workers", "-3"]),
        (["start", "-r", "jobs", "-q", "mail,often"], 2, ["mail,often"]),
        (["start", "-r", "jobs", "-q", "two words"], 2, ["two words"]),
        (["start", "-r", "jobs", "--log-level", "loud"], 2, ["loud", "warning"]),
        (["start", "-r", "jobs", "-C", "missing.toml"], 2, ["missing.toml"]),
        (["start", "-r", "jobs", "-C", "."], 2, ["directory"]),
        (["start", "-r", "jobs", "-C", "jobs.py"], 2, ["jobs.py"]),
        (
            ["start", "-r", "jobs", "--redis", "http://localhost"],
            2,
            ["http://localhost", "redis://"],
        ),
        (["start", "-r", "jobs", "--redis", "redis://localhost:port/0"], 2, ["redis"]),
        (["start", "-r", "jobs", "--redis", "redis://localhost:99999/0"], 2, ["99999"]),
        (["start", "-r", "jobs", "--redis", "redis://localhost/zero"], 2, ["zero"]),
        (["start"], 2, ["no app", "-r"]),
        (["startt"], 2, ["startt"]),
        (["strat"], 2, ["mean 'start'"]),
        (["stats", "--days", "x"], 2, ["'x' is not a valid whole number"]),
        (["stuck", "--minutes", "x"], 2, ["'x' is not a valid number"]),
        (["push"], 2, ["CLASS"]),
        (["push", "Job", "{bad", "--redis", "redis://localhost:1/0"], 2, ["{bad", "JSON"]),
        (["push", "Job", "text", "--redis", "redis://localhost:1/0"], 2, ["'\"text\"'"]),
        (["push", "Job", "NaN", "--redis", "redis://localhost:1/0"], 2, ["NaN"]),
        (["push", "", "--redis", "redis://localhost:1/0"], 1, ["class"]),
        (["push", "Job", "--in", "later"], 2, ["later"]),
        (["push", "Job", "--redis", "redis://localhost:1/0"], 6, ["localhost:1"]),
        (["push", "Job", "--redis", "unix:///nowhere/redis.sock"], 6, ["/nowhere/redis.sock"]),
        (["push", "Job", "--redis", "redis://no.such.host.invalid/0"], 6, ["no.such.host.invalid"]),
        (["push", "Job", "--redis", "embedded"], 6, ["embedded"]),
        (["config", "check", "-C", "missing.toml"], 2, ["missing.toml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_mistake_on_the_command_line(
    shell: ForkqTree, arguments: list[str], code: int, named: list[str]
) -> None:
    """Its exit code, and everything that a user must know to mend it, on standard error."""
    result = shell.run(*arguments)
    assert result.returncode == code, result.stderr
    for name in named:
        assert name in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout
    assert not shell.processes()
    assert not list(shell.runtime.rglob("*.pid"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("[forkq]\ntimout = 3\n", ["forkq.toml", "timout", "timeout"]),
        ('[forkq]\ntimeout = "long"\n', ["forkq.toml", "forkq.timeout", "long"]),
        ("[capsules.mail]\nconcurrency = 3\n", ["capsules.mail.queues"]),
        ('[redis]\nurl = "${NO_SUCH_VARIABLE}"\n', ["NO_SUCH_VARIABLE", "redis.url"]),
        ("[forkq\n", ["forkq.toml"]),
        ("[forkq]\ntimeout = 1\ntimeout = 2\n", ["forkq.toml", "line 3"]),
        ('[capsules.clock]\nqueues = ["a"]\n', ["clock"]),
    ],
    ids=["typo", "type", "missing", "variable", "syntax", "twice", "reserved"],
)
def test_a_mistake_in_the_configuration(shell: ForkqTree, config: str, named: list[str]) -> None:
    """Exit code 2, and nothing started; `config check` says the same."""
    (shell.cwd / "forkq.toml").write_text(config)
    for command in (["start", "-r", "jobs"], ["config", "check"]):
        result = shell.run(*command)
        assert result.returncode == 2
        for name in named:
            assert name in result.stderr
        assert "Traceback" not in result.stderr
        assert not shell.processes()


RECEIPT = """
import forkq

@forkq.job(name="Receipt")
def receipt(order: int, address: str, copies: int = 1) -> None: ...
"""


def test_a_periodic_job_that_keeps_a_child_from_booting(shell: ForkqTree) -> None:
    """`config check` and `doctor` say beforehand what the child would say at its start."""
    (shell.cwd / "jobs.py").write_text(RECEIPT)
    (shell.cwd / "forkq.toml").write_text(
        '[forkq]\napp = "jobs"\n[redis]\nurl = "redis://127.0.0.1:1/0"\n'
        '[[cron]]\njob = "Receipt"\ncron = "@daily"\nargs = [1]\n'
    )
    said = "[[cron]] 'Receipt': job 'Receipt' takes 2 to 3 arguments, but args has 1: [1]"
    checked = shell.run("config", "check")
    assert (checked.returncode, checked.stderr.count("\n")) == (2, 1)
    assert said in checked.stderr
    examined = shell.run("doctor")
    assert examined.returncode == 1
    [line] = [line for line in examined.stdout.splitlines() if line.split()[1] == "cron"]
    assert line.startswith("fail")
    assert f"{said}; children cannot boot" in line


def test_a_periodic_job_whose_job_the_app_does_not_have_is_a_warning(shell: ForkqTree) -> None:
    """In `config check` and in `doctor`, as at the start."""
    (shell.cwd / "jobs.py").write_text(RECEIPT)
    (shell.cwd / "forkq.toml").write_text(
        '[forkq]\napp = "jobs"\n[redis]\nurl = "redis://127.0.0.1:1/0"\n'
        '[[cron]]\njob = "Nope"\ncron = "@daily"\n'
    )
    said = "periodic jobs name jobs that this app has not registered"
    checked = shell.run("config", "check")
    assert (checked.returncode, checked.stderr) == (0, f"warning: {said}; they will fail: Nope\n")
    examined = shell.run("doctor").stdout.splitlines()
    [line] = [line for line in examined if line.split()[1] == "cron"]
    assert line.startswith("warn")
    assert f"{said}: Nope; they will fail" in line


def test_the_traceback_of_an_app_has_only_its_own_frames(shell: ForkqTree) -> None:
    """Of a command that imports it, as of `forkq start`."""
    (shell.cwd / "jobs.py").write_text("def price():\n    return 1 / 0\n\n\nprice()\n")
    result = shell.run("config", "check", "-r", "jobs")
    assert result.returncode == 3
    assert "the app jobs failed while it was imported:\nTraceback" in result.stderr
    assert "in price" in result.stderr
    assert "importlib" not in result.stderr
    assert "app_loader" not in result.stderr


def test_a_mistake_in_the_environment(shell: ForkqTree) -> None:
    """A variable that is nearly one of ours, and a value that is none."""
    shell.env["FORKQ_TIMEOT"] = "3"
    result = shell.run("start", "-r", "jobs")
    assert (result.returncode, "FORKQ_TIMEOUT" in result.stderr) == (2, True)
    del shell.env["FORKQ_TIMEOT"]
    shell.env["FORKQ_CONCURRENCY"] = "lots"
    result = shell.run("start", "-r", "jobs")
    assert result.returncode == 2
    assert "FORKQ_CONCURRENCY" in result.stderr
    assert "lots" in result.stderr


@pytest.mark.parametrize("given", ["", ":wrong-guess-1@"])
def test_a_wrong_or_missing_password_is_told_and_the_tree_waits(
    tree: StartTree, locked_server: Server, given: str
) -> None:
    """As a tree that runs does: a password may be changed just now. A command ends with exit code
    6. The password itself is not shown."""
    address = f"redis://{given}127.0.0.1:{locked_server.port}/0"
    forkq = tree(address, app="import forkq", ready=False)
    wait_until(
        lambda: re.search("redis: lost by .*[Pp]assword|auth", forkq.run("status").stdout),
        what="the status",
    )
    pushed = forkq.run("push", "Job", "1", "--redis", address)
    assert pushed.returncode == 6
    assert forkq.stop() == 0
    assert forkq.log_text().count("redis refuses; waiting for it") == 1
    assert "redis lost" not in forkq.log_text()
    for text in (forkq.log_text(), pushed.stderr):
        assert "Traceback" not in text
        assert "guess" not in text
        assert f"127.0.0.1:{locked_server.port}" in text
        assert "password" in text.lower() or "auth" in text.lower()
    forkq.assert_gone()


def test_a_master_that_starts_while_the_password_is_changed_waits(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    """As after a kill of the master in that moment."""
    own_server.cli("CONFIG", "SET", "requirepass", PASSWORD)
    forkq = tree(own_server, app=APP, env=journal.env, ready=False)
    forkq.wait_log("redis refuses; waiting for it")
    admin = client_of(own_server.url.replace("redis://", f"redis://:{PASSWORD}@"))
    admin.config_set("requirepass", "")
    admin.close()
    jid = push(own_server, "Quick", 0)
    journal.wait("end", [jid])
    assert "redis: lost" not in forkq.run("status").stdout
    assert forkq.stop() == 0


def test_an_unreachable_redis_is_named_without_its_password(tree: StartTree) -> None:
    """The master waits for it, and says where it looks; the password is no part of that."""
    address = f"redis://user:{PASSWORD}@127.0.0.1:1/0"
    forkq = tree(address, app="import forkq", args=["-t", "0"], ready=False)
    forkq.wait_log("redis cannot be reached; waiting for it")
    forkq.wait_log("redis lost")
    assert "127.0.0.1:1" in forkq.log_text()
    assert PASSWORD not in forkq.log_text()
    assert "Traceback" not in forkq.log_text()
    forkq.stop()
    forkq.assert_gone()


def test_a_disk_that_is_full_under_the_pidfile(shell: ForkqTree) -> None:
    """A limit on the size of files stands for it: the error comes from the same write."""
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *FORKQ, "start", "-r", "jobs"]
    result = subprocess.run(
        limited, cwd=shell.cwd, env=shell.env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "cannot write the pidfile" in result.stderr
    assert "File too large" in result.stderr
    assert "--pidfile" in result.stderr
    assert "Traceback" not in result.stderr
    assert not [path for path in shell.runtime.rglob("*") if path.is_file()]


def test_a_folder_that_the_embedded_server_cannot_have(shell: ForkqTree) -> None:
    """Named with the reason, and what to do."""
    (shell.cwd / "forkq.toml").write_text('[forkq]\nstate_dir = "/proc/no-such"\n')
    result = shell.run("start", "-r", "jobs", "--redis", "embedded")
    assert result.returncode == 2
    assert "/proc/no-such" in result.stderr
    assert "state_dir" in result.stderr
    assert "Traceback" not in result.stderr
    assert not shell.processes()
    assert not [path for path in shell.runtime.rglob("*") if path.is_file()]


def test_push_pushes(redis_server: Server, redis: Redis, tree: StartTree, journal: Journal) -> None:
    """And prints the jid: now, later, and to a queue by name."""
    address = ["--redis", redis_server.url]
    forkq = tree(redis_server, app=APP, args=["-q", "high", "-q", "default"], env=journal.env)
    now = forkq.run("push", "Quick", "0.001", *address)
    high = forkq.run("push", "Quick", "0", "--queue", "high", *address)
    later = forkq.run("push", "Quick", "0", "--in", "0.3", *address)
    jids = [result.stdout.strip() for result in (now, high, later)]
    assert all(len(jid) == 24 for jid in jids)
    journal.wait("end", jids)
    wait_settled(redis)
    assert push(redis_server, "Quick", 0)
    assert forkq.stop() == 0


def test_a_redis_that_is_no_redis(shell: ForkqTree, redis_server: Server) -> None:
    """A port where something else answers: a message, no traceback, no hanging."""
    address = f"rediss://127.0.0.1:{redis_server.port}/0"  # TLS, where none is spoken
    (shell.cwd / "forkq.toml").write_text("[redis]\ntimeout = 0.3\nconnect_timeout = 0.3\n")
    result = shell.run("push", "Job", "1", "--redis", address)
    assert result.returncode == 6
    assert address in result.stderr
    assert "Traceback" not in result.stderr
