"""The units under a real systemd, as systemd/README.md describes them.

One machine is booted for all tests of this file (tests/support/systemd_box.py); each test has the
unit to itself, freshly started, with an embedded server and no jobs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import forkq
from tests.support.server import client_of, find_server
from tests.support.systemd_box import Box, NoBox, Unit, obstacle
from tests.support.waiting import wait_until, within

ROOT = Path(__file__).parents[2]
TIMEOUT = 2  # seconds, in the configuration below
WORKERS = 2
ROUNDS = 20
ASK_EVERY = 0.2  # seconds between two questions that start systemctl
CONFIG = f"""
[forkq]
app = "systemd_app"
timeout = {TIMEOUT}
[redis]
url = "embedded"
[capsules.default]
queues = ["default"]
concurrency = 2
workers = {WORKERS}
"""
# As the README describes for an application in a folder of its own. The watchdog is short, so that
# the tests are.
DROP_IN = ["WorkingDirectory=/srv/forkq/app", "WatchdogSec=2"]
FORKQ = """#!/bin/sh
export PYTHONPATH=/srv/forkq/lean:/srv/site-packages LD_LIBRARY_PATH={python}/lib
exec {python}/bin/python{version} /srv/forkq/bin/forkq "$@"
"""

pytestmark = [
    pytest.mark.xdist_group("systemd"),
    pytest.mark.skipif(obstacle() is not None, reason=f"no systemd of our own: {obstacle()}"),
]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A booted machine with forkq, its units and its user installed."""
    checkout = checkout_copy(tmp_path_factory.mktemp("box"))
    binds = {checkout: "/srv/forkq", Path(sysconfig.get_path("purelib")): "/srv/site-packages"}
    python = (
        "/usr"  # the system's own is there; any other may lie below /root, which units cannot see
    )
    if sys.base_prefix != python:
        python = "/srv/python"
        binds[Path(sys.base_prefix)] = python
    try:
        with Box(binds) as box:
            install(box, python)
            yield box
    except NoBox as reason:
        pytest.skip(f"no systemd came up (needs a privileged container or a machine): {reason}")


def checkout_copy(folder: Path) -> Path:
    """A copy of the checkout that the user forkq can read, compiled: that user cannot write it, so
    each start would compile all that it imports."""
    for name in ("bin", "forkq"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "tests" / "support" / "lean", folder / "lean")
    (folder / "app").mkdir()
    shutil.copy(ROOT / "tests" / "support" / "systemd_app.py", folder / "app")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    return folder


def install(box: Box, python: str) -> None:
    """As systemd/README.md says, with the command /usr/local/bin/forkq."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    box.write("/usr/local/bin/forkq", FORKQ.format(python=python, version=version), 0o755)
    box.write("/etc/sysusers.d/forkq.conf", (ROOT / "systemd" / "forkq.sysusers").read_text())
    box.run("systemd-sysusers")
    for name in ("forkq.service", "forkq@.service"):
        box.write(f"/etc/systemd/system/{name}", (ROOT / "systemd" / name).read_text())


@pytest.fixture
def unit(box: Box) -> Iterator[Unit]:
    """forkq.service, configured and not yet started; stopped and emptied afterwards."""
    yield from configured(Unit(box, "forkq.service"), "forkq")


@pytest.fixture
def instance(box: Box) -> Iterator[Unit]:
    """forkq@mail.service, as above."""
    yield from configured(Unit(box, "forkq@mail.service"), "mail")


def configured(unit: Unit, name: str) -> Iterator[Unit]:
    """The unit with its forkq.toml and drop-in, and without jobs."""
    unit.box.write(f"/etc/forkq/{name}.toml", CONFIG)
    unit.drop_in(DROP_IN)
    yield unit
    unit.ask("kill", "--signal=KILL", check=False)
    unit.ask("stop", check=False)
    unit.ask("reset-failed", check=False)
    shutil.rmtree(unit.box.path(unit.state), ignore_errors=True)


@pytest.fixture
def running(unit: Unit) -> Unit:
    """forkq.service, started."""
    unit.ask("start")
    return unit


def notes(unit: Unit) -> list[str]:
    """What the jobs and the application wrote down so far, line by line."""
    file = unit.box.path(f"{unit.state}/notes")
    return file.read_text().splitlines() if file.exists() else []


def server_url(unit: Unit) -> str:
    """The socket of the unit's embedded server, as it can be used from outside."""
    url = unit.box.path(f"{unit.runtime}/forkq.redis").read_text().strip()
    return url.replace("unix://", f"unix://{unit.box.path('')}")


def push(unit: Unit, count: int, seconds: float) -> None:
    """Push jobs 0 to count - 1 that take so many seconds, from outside, through the socket."""
    client = forkq.Client(url=server_url(unit))
    for number in range(count):
        client.push({"class": "Note", "args": [number, seconds]})


def ended(unit: Unit) -> set[int]:
    """The numbers of the jobs that came to their end."""
    return {int(line.split()[1]) for line in notes(unit) if line.startswith("end ")}


def children(unit: Unit) -> set[int]:
    """The pids (outside) of the children that run jobs."""
    return {pid for pid, title in unit.processes().items() if title.startswith("forkq child")}


def master(unit: Unit) -> int:
    """The master's pid (outside)."""
    (pid,) = (pid for pid, title in unit.processes().items() if title.startswith("forkq master"))
    return pid


def wait_restarted(unit: Unit) -> None:
    """Wait until systemd has started the unit anew, once."""
    wait_until(
        lambda: unit.number("NRestarts") == 1, deadline=60, every=ASK_EVERY, what="a restart"
    )


def wait_active(unit: Unit) -> None:
    """Wait until the unit is ready."""
    wait_until(
        lambda: unit.show("ActiveState") == "active", deadline=60, every=ASK_EVERY, what="readiness"
    )


def wait_logged(unit: Unit, text: str, more_than: int = 0) -> None:
    """Wait until the journal of the unit has this text more often than so many times. What was
    written is there a moment later."""
    wait_until(
        lambda: unit.log().count(text) > more_than, every=ASK_EVERY, what=f"{text!r} in the journal"
    )


@pytest.fixture(scope="class")
def started(box: Box) -> Iterator[Unit]:
    """forkq.service, started once for the tests of a class."""
    for unit in configured(Unit(box, "forkq.service"), "forkq"):
        unit.ask("start")
        yield unit


class TestOneStart:
    """What a started unit shows, in this order: the last test leaves it quiet."""

    def test_start_returns_when_every_child_is_ready(self, started: Unit) -> None:
        """READY=1 comes after the imports, not before: after `start`, all children are there."""
        assert sum(line.startswith("boot ") for line in notes(started)) == WORKERS
        assert len(children(started)) == WORKERS
        assert started.show("ActiveState") == "active"

    def test_status_shows_the_masters_own_line(self, started: Unit) -> None:
        """STATUS= tells the number of children."""

        def shows_it() -> bool:
            text = started.show("StatusText")
            return "children" in text and f'Status: "{text}"' in started.ask("status")

        wait_until(
            shows_it,
            every=ASK_EVERY,
            what="systemctl's status with the master's line, which changes meanwhile",
        )

    def test_a_job_runs_in_the_sealed_box(self, started: Unit) -> None:
        """The hardening leaves forkq its socket, state folder and pidfile, and no capability."""
        push(started, 1, 0)
        wait_until(lambda: ended(started) == {0}, what="the job")
        pidfile = started.box.path(f"{started.runtime}/forkq.pid")
        assert pidfile.read_text().strip() == started.show("MainPID")
        owner = pidfile.stat().st_uid
        assert owner != 0
        for pid in started.processes():
            told = Path(f"/proc/{pid}/status").read_text().split()
            assert told[told.index("Uid:") + 1] == str(owner)
            assert told[told.index("CapEff:") + 1] == "0" * 16
            assert told[told.index("NoNewPrivs:") + 1] == "1"
            assert told[told.index("Seccomp:") + 1] == "2"

    def test_the_master_feeds_the_watchdog(self, started: Unit) -> None:
        """The unit lives longer than WatchdogSec=, busy or idle, as the master's loop pings."""
        begin = started.number("WatchdogTimestampMonotonic")
        push(started, 4, 3)
        wait_until(
            lambda: started.number("WatchdogTimestampMonotonic") > begin + 5_000_000,
            deadline=60,
            every=ASK_EVERY,
            what="pings for longer than the watchdog's time",
        )
        assert started.show("ActiveState") == "active"
        assert started.number("NRestarts") == 0

    def test_the_commands_reach_the_master_of_the_unit(self, started: Unit) -> None:
        """`forkq status` and `quiet` with the unit's file, as its user and as root, and with its
        pidfile, as the README says."""
        as_forkq = ["setpriv", "--reuid=forkq", "--regid=forkq", "--clear-groups", "forkq"]
        pidfile = ["--pidfile", "/run/forkq/forkq.pid"]
        file = ["-C", "/etc/forkq/forkq.toml"]
        for command in ([*as_forkq, "status", *pidfile], [*as_forkq, "status", *file]):
            assert "default.0" in started.box.run(*command).stdout
        assert "default.0" in started.box.run("forkq", "status", *file).stdout
        other = started.box.run("forkq", "status", *file, "--tag", "other", check=False)
        assert other.returncode == 4
        started.box.run(*as_forkq, "quiet", *pidfile)
        wait_until(
            lambda: "quiet" in started.show("StatusText"), every=ASK_EVERY, what="a quiet master"
        )
        assert started.show("ActiveState") == "active"


def test_reload_replaces_the_children_and_loses_nothing(running: Unit) -> None:
    """USR2: new children come, the old ones end, the master stays, and jobs go on."""
    old, pid = children(running), master(running)
    push(running, 40, 0.1)
    running.ask("reload")
    assert running.show("SubState") == "running"
    wait_until(lambda: not old & children(running), deadline=60, what="the old children's end")
    wait_until(lambda: ended(running) == set(range(40)), deadline=60, what="all jobs")
    assert len(children(running)) == WORKERS
    assert master(running) == pid
    assert running.number("NRestarts") == 0
    assert len([line for line in notes(running) if line.startswith("end ")]) == 40


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CONFIG.replace("systemd_app", "no_such_app"), "no_such_app"),
        ("[forkq\n", "not valid TOML"),
    ],
    ids=["app", "file"],
)
def test_a_reload_that_was_rolled_back_fails_and_says_why(
    running: Unit, text: str, reason: str
) -> None:
    """The unit stays active, with its old children, and stops as ever."""
    old, told = children(running), "rolled back, the old children go on"
    before = running.log().count(told)
    running.box.write("/etc/forkq/forkq.toml", text)
    assert running.box.run("systemctl", "reload", running.name, check=False).returncode == 1
    wait_logged(running, told, more_than=before)
    wait_logged(running, reason)
    wait_until(lambda: children(running) == old, what="the old children alone")
    assert running.show("ActiveState") == "active"
    assert running.show("SubState") == "running"
    running.ask("stop")
    assert running.show("Result") == "success"


def test_a_stop_during_a_reload_succeeds(running: Unit) -> None:
    """systemd ends the command of the reload together with the master; neither is a failure."""
    running.ask("reload", "--no-block")
    wait_until(lambda: running.show("SubState") == "reload", what="the reload's command")
    running.ask("stop")
    assert running.show("Result") == "success"
    assert running.show("ActiveState") == "inactive"
    assert running.processes() == {}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_master_that_hangs_or_is_killed_is_replaced_and_its_jobs_run_again(
    running: Unit, number: signal.Signals
) -> None:
    """The watchdog aborts a stopped master; the jobs that ran are not lost."""
    push(running, 2, 4)
    wait_until(lambda: {"begin 0", "begin 1"} <= set(notes(running)), what="both jobs under way")
    os.kill(master(running), number)
    wait_restarted(running)
    wait_active(running)
    wait_until(lambda: ended(running) == {0, 1}, deadline=60, what="all jobs")
    assert notes(running).count("begin 0") == 2


def test_stop_is_over_in_time_and_puts_unfinished_jobs_back(running: Unit) -> None:
    """Within time-out + 5 s no process is left, systemd has killed none, and the jobs wait."""
    push(running, 2, 60)
    wait_until(lambda: {"begin 0", "begin 1"} <= set(notes(running)), what="both jobs under way")
    begin = time.monotonic()
    running.ask("stop")
    assert time.monotonic() - begin < within(TIMEOUT + 5)
    assert running.show("Result") == "success"
    assert running.processes() == {}
    assert not running.box.path("/run/forkq").exists()

    running.ask("start")
    wait_until(lambda: notes(running).count("begin 0") == 2, what="the job to begin again")
    assert ended(running) == set()


def test_a_longer_time_out_needs_no_other_unit(unit: Unit) -> None:
    """While it drains, the master asks for the time it needs: no kill at TimeoutStopSec=."""
    unit.drop_in([*DROP_IN, "TimeoutStopSec=1"])
    unit.ask("start")
    push(unit, 1, TIMEOUT - 0.5)
    wait_until(lambda: "begin 0" in notes(unit), what="a job under way")
    unit.ask("stop")
    assert unit.show("Result") == "success"
    assert ended(unit) == {0}


def test_a_longer_boot_needs_no_other_unit(unit: Unit) -> None:
    """While children boot, the master asks for the time they need: no kill at TimeoutStartSec=."""
    limit = round(within(4))  # seconds, in which the master itself must have started
    unit.drop_in([*DROP_IN, f"TimeoutStartSec={limit}", f"Environment=IMPORT_SECONDS={limit + 2}"])
    unit.ask("start")
    assert unit.show("ActiveState") == "active"
    assert unit.number("NRestarts") == 0


def test_the_journal_keeps_every_line(running: Unit) -> None:
    """A burst that journald would cut, with its limit lowered so that the test is short. The last
    line is the one about a failure."""
    limit = "[Journal]\nRateLimitIntervalSec=60\nRateLimitBurst=10\n"
    running.box.write("/etc/systemd/journald.conf.d/test.conf", limit)
    running.box.run("systemctl", "restart", "systemd-journald")
    before = running.log().count("event=done")  # of other tests
    push(running, 500, 0)
    wait_until(lambda: len(ended(running)) == 500, deadline=60, what="all jobs")
    forkq.Client(url=server_url(running)).push({"class": "NoSuchJob", "args": [], "retry": False})
    wait_logged(running, "NoSuchJob")
    assert running.log().count("event=done") - before == 500


def test_an_idle_unit_stops_at_once(running: Unit) -> None:
    """It waits for no time-out when no job runs, even with the embedded server to stop."""
    begin = time.monotonic()
    running.ask("stop")
    assert time.monotonic() - begin < within(TIMEOUT)
    assert running.show("Result") == "success"


def test_a_killed_child_is_replaced_and_the_unit_stays_active(running: Unit) -> None:
    """The master replaces a killed child, not systemd; another child runs its jobs again."""
    old, pid = children(running), master(running)
    push(running, 4, 1)
    wait_until(lambda: len(notes(running)) >= WORKERS + 4, what="all jobs under way")
    victim = min(old)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in children(running), what="the child's end")
    wait_until(lambda: len(children(running)) == WORKERS, what="a new child")
    wait_until(lambda: ended(running) == {0, 1, 2, 3}, deadline=60, what="all jobs")
    assert running.show("ActiveState") == "active"
    assert master(running) == pid
    assert running.number("NRestarts") == 0


@pytest.fixture
def small(unit: Unit) -> Unit:
    """forkq.service in small mode, started: master, child and clock are one process."""
    config = CONFIG.replace("[forkq]", '[forkq]\nprocesses = "one"')
    unit.box.write("/etc/forkq/forkq.toml", config.replace(f"workers = {WORKERS}", ""))
    unit.ask("start")
    return unit


def test_one_process_starts_reloads_and_stops_as_a_unit(small: Unit) -> None:
    """The reload returns when the process has loaded its code again; running jobs end before, and
    those that a stop cuts off wait for the next start."""
    pid, forkqs = small.show("MainPID"), small.processes()
    assert [title.split()[1] for title in forkqs.values() if title.startswith("forkq")] == [
        "master"
    ]
    push(small, 3, 1)
    wait_until(lambda: "begin 0" in notes(small), what="a job under way")
    small.ask("reload")
    assert sum(line.startswith("boot ") for line in notes(small)) == 2
    assert (small.show("MainPID"), small.number("NRestarts")) == (pid, 0)
    wait_until(lambda: ended(small) == {0, 1, 2}, deadline=60, what="all jobs")
    assert notes(small).count("begin 0") == 1

    push(small, 1, 60)
    wait_until(lambda: notes(small).count("begin 0") == 2, what="a long job under way")
    begin = time.monotonic()
    small.ask("stop")
    assert time.monotonic() - begin < within(TIMEOUT + 5)
    assert small.show("Result") == "success"
    assert small.processes() == {}
    small.ask("start")
    wait_until(lambda: notes(small).count("begin 0") == 3, what="the job to begin again")


def test_one_process_that_is_stopped_in_a_reload_ends_well(small: Unit) -> None:
    push(small, 1, 60)
    wait_until(lambda: "begin 0" in notes(small), what="a job under way")
    small.ask("reload", "--no-block")
    wait_until(lambda: small.show("SubState") == "reload", what="the reload's command")
    small.ask("stop")
    assert (small.show("Result"), small.processes()) == ("success", {})


@pytest.mark.parametrize("how", ["hang", "crash"])
def test_one_process_that_hangs_or_crashes_is_started_again(small: Unit, how: str) -> None:
    """The watchdog sees a job that holds the interpreter. The jobs of a dead process run again."""
    forkq.Client(url=server_url(small)).push({"class": "FailsOnce", "args": [how]})
    wait_restarted(small)
    wait_active(small)
    wait_until(lambda: ended(small) == {0}, deadline=60, what="the job's second run")
    assert notes(small).count(f"begin {how}") == 2
    assert small.show("ActiveState") == "active"


@pytest.mark.slow
def test_a_job_that_takes_all_memory_costs_children_and_never_the_master(unit: Unit) -> None:
    """20 rounds under MemoryMax=, each until the job is buried. Each run costs a child, and the
    kernel may take others, too, before the memory of the first is free. While a child is left, it
    takes neither the master nor the clock nor the server. The watchdog is the unit's own."""
    config = CONFIG.replace(f"workers = {WORKERS}", "workers = 4")
    unit.box.write("/etc/forkq/forkq.toml", config)
    unit.drop_in(DROP_IN[:1])
    unit.ask("start")
    unit.box.run("systemctl", "set-property", "--runtime", unit.name, "MemoryMax=280M")
    stay = set(unit.processes()) - children(unit)
    client = forkq.Client(url=server_url(unit))
    with closing(client_of(server_url(unit))) as redis:
        for number in range(1, ROUNDS + 1):
            client.push({"class": "Hog", "args": [400]})

            def is_over(number: int = number) -> bool:
                return bool(stay - set(unit.processes()) or redis.zcard("dead") >= number)

            wait_until(is_over, deadline=60, what="the burial of the job")
            gone = stay - set(unit.processes())
            assert not gone, f"round {number}, {gone} of {stay}: {unit.log()[-5000:]}"
    push(unit, 1, 0)
    wait_until(lambda: ended(unit) == {0}, deadline=60, what="a job of the tree that lives on")
    assert unit.number("NRestarts") == 0
    assert "out of memory" in unit.log()


def test_a_killed_master_comes_back_and_no_job_is_lost(running: Unit) -> None:
    """systemd kills the tree, the embedded server too, and starts it anew: every job is done."""
    push(running, 60, 0.1)
    wait_until(lambda: len(ended(running)) >= 10, what="some jobs")
    before = running.processes()
    os.kill(master(running), signal.SIGKILL)
    wait_restarted(running)
    wait_active(running)
    wait_until(lambda: ended(running) == set(range(60)), deadline=30, what="all jobs")
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]


def test_a_wrong_configuration_fails_once_and_says_why(unit: Unit) -> None:
    """Exit code 2 is not tried again, and the journal names the key."""
    unit.box.write("/etc/forkq/forkq.toml", CONFIG.replace("timeout =", "timeot ="))
    unit.ask("start", check=False)
    assert_failed_once(unit, 2)
    wait_logged(unit, "timeot")


def test_an_application_that_cannot_boot_fails_and_says_why(unit: Unit) -> None:
    """Exit code 3 is not tried again either: the app that it names is not there."""
    unit.box.write("/etc/forkq/forkq.toml", CONFIG.replace("systemd_app", "no_such_app"))
    unit.ask("start", check=False)
    assert_failed_once(unit, 3)
    wait_logged(unit, "no_such_app")


def test_an_application_that_waits_for_its_database_is_started_again(unit: Unit) -> None:
    """The master tries until boot_timeout, and then systemd starts it again (exit code 8)."""
    app = "import forkq\n@forkq.on('startup')\ndef connect(): open('/opt/shop/database').close()\n"
    unit.box.write("/opt/shop/slow_app.py", app)
    quick = CONFIG.replace("systemd_app", "slow_app").replace(
        "[forkq]", "[forkq]\nboot_timeout = 2"
    )
    unit.box.write("/etc/forkq/forkq.toml", quick)
    unit.drop_in([*DROP_IN, "WorkingDirectory=/opt/shop"])
    unit.ask("start", check=False)
    wait_until(lambda: unit.number("NRestarts") >= 1, every=ASK_EVERY, what="a restart")
    wait_logged(unit, "exit_code=8")
    unit.box.write("/opt/shop/database", "")
    wait_active(unit)


def test_a_wrong_password_is_told_and_waited_for(unit: Unit) -> None:
    """The remedy is in the journal. The unit works when the server takes the password."""
    where = ["--bind", "127.0.0.1", "--port", "6399"]
    server = [str(find_server()), *where, "--requirepass", "right", "--save", ""]
    unit.box.run("systemd-run", "--unit=redis-with-password", *server)
    wait_until(lambda: port_is_open(unit.box, 6399), every=ASK_EVERY, what="the server")
    refused = CONFIG.replace('"embedded"', '"redis://:wrong@127.0.0.1:6399/0"')
    unit.box.write("/etc/forkq/forkq.toml", refused)
    unit.ask("start")
    wait_logged(unit, "give the right password")
    assert unit.show("ActiveState") == "active"
    unit.ask("stop")
    unit.box.run("systemctl", "stop", "redis-with-password")


def port_is_open(box: Box, port: int) -> bool:
    """Whether something in the box listens there."""
    return f"127.0.0.1:{port}" in box.run("ss", "--listening", "--tcp", "--numeric").stdout


def test_a_unit_that_would_cut_a_stop_short_is_told_at_the_start(unit: Unit) -> None:
    """Without sd_notify the master cannot ask for more time. Root may ask systemd for the limit."""
    alone = ["WatchdogSec=0", "Type=exec", "NotifyAccess=none", "User=root", "Group=root"]
    unit.drop_in([*DROP_IN, *alone, "TimeoutStopSec=3"])
    unit.ask("start")
    told = "forkq.service: TimeoutStopSec is 3 s, a stop takes up to 7 s"
    wait_logged(unit, told)


@pytest.mark.parametrize(
    ("status", "setting"),
    [
        (200, "WorkingDirectory=/srv/nowhere"),
        (203, "ExecStart=/usr/local/bin/nothing"),
        (217, "User=stranger"),
    ],
)
def test_a_failure_that_a_restart_cannot_repair_is_not_repeated(
    unit: Unit, status: int, setting: str
) -> None:
    """systemd's own exit codes: the next start would fail in the same way."""
    unit.drop_in([*DROP_IN, f"{setting.partition('=')[0]}=", setting])
    unit.ask("start", check=False)
    assert_failed_once(unit, status)


def test_a_unit_that_ends_again_and_again_is_given_up(unit: Unit) -> None:
    """After StartLimitBurst= starts the unit has failed, and is not started again."""
    # "+": outside the unit's sandbox, which systemd would build fifty times.
    unit.drop_in([*DROP_IN, "ExecStart=", "ExecStart=+/bin/false", "RestartSec=0"])
    unit.ask("start", check=False)
    wait_until(
        lambda: unit.show("ActiveState") == "failed", deadline=60, every=ASK_EVERY, what="the end"
    )
    assert 40 <= unit.number("NRestarts") <= 50
    assert unit.number("ExecMainStatus") == 1


def assert_failed_once(unit: Unit, status: int) -> None:
    """It has ended with this exit status and is not started again."""
    wait_until(lambda: unit.show("ActiveState") == "failed", every=ASK_EVERY, what="its failure")
    assert unit.number("ExecMainStatus") == status
    assert unit.number("NRestarts") == 0


def test_an_instance_has_folders_of_its_own(running: Unit, instance: Unit) -> None:
    """forkq@mail runs beside forkq, with its tag, and neither ends with the other."""
    instance.ask("start")
    push(instance, 1, 0)
    wait_until(lambda: ended(instance) == {0}, what="the job")
    assert ended(running) == set()
    assert "mail" in instance.processes()[master(instance)]
    running.ask("stop")
    assert len(children(instance)) == WORKERS
    assert instance.box.path("/run/forkq-mail/forkq.pid").exists()
    instance.ask("stop")
    assert instance.show("Result") == "success"
