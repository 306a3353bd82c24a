"""How children ended is counted in Redis: a crash by the rescue, all else by the next child."""

from __future__ import annotations

import signal
from typing import Any

from redis import Redis

from tests.process.shared import APP, Journal, pass_time, title, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

# All threads of the child have been started, and the master does not know yet that it is ready.
SLOW_END_OF_BOOT = """
import time
from forkq.child.boot import BootWatch

end = BootWatch.end

def end_slowly(self):
    os.write(2, b"threads started\\n")
    time.sleep(1)
    end(self)

BootWatch.end = end_slowly
"""


def count(redis: Redis, how: str) -> int:
    found: Any = redis.hget("forkq:totals:children", f"{how}|n")
    return int(found or 0)


def test_a_crash_and_a_restart_are_counted_by_reason(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    workers(forkq)[0].kill()
    wait_until(lambda: count(redis, "crash|SIGKILL") == 1, what="the crash", deadline=60)
    wait_until(lambda: any("busy" in title(one) for one in workers(forkq)), what="its successor")
    workers(forkq)[0].send_signal(signal.SIGTERM)
    wait_until(lambda: count(redis, "restart|stopped") == 1, what="the restart", deadline=60)
    assert count(redis, "crash|SIGKILL") == 1
    assert forkq.stop() == 0


def test_a_child_that_ends_before_it_is_ready_leaves_no_record_and_no_count(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The rescue counts the crash: a second count would be one too many."""
    app = APP.read_text() + SLOW_END_OF_BOOT
    forkq = tree(redis_server, app=app, args=["-c", "1"], env=journal.env)
    workers(forkq)[0].kill()
    forkq.wait_log(r"(?s)threads started.*threads started")
    pass_time(0.3)  # a heartbeat that had begun would be over
    workers(forkq)[0].send_signal(signal.SIGTERM)
    wait_until(lambda: count(redis, "restart|stopped") == 1, what="the restart", deadline=60)
    assert count(redis, "crash|SIGKILL") == 1
    assert redis.scard("processes") == 1
    assert forkq.stop() == 0


def test_the_crash_of_a_child_that_none_follows_is_counted(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """As that of a solo child while no other suspect waits. Here the next child cannot boot."""
    door = journal.path.with_name("broken")
    app = f"import pathlib\nassert not pathlib.Path({str(door)!r}).exists()\n" + APP.read_text()
    app = app.replace("from __future__ import annotations\n", "")
    forkq = tree(redis_server, app=app, args=["-c", "1"], env=journal.env)
    door.touch()
    workers(forkq)[0].kill()
    wait_until(lambda: count(redis, "crash|SIGKILL") == 1, what="the crash")
    door.unlink()
    assert forkq.stop() == 0
