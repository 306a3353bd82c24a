"""Each key does in Redis what the screen says."""

from __future__ import annotations

import pytest
from redis import Redis

from forkq.api import DeadSet, cron
from tests.top.data import WHO, dead, failed, job, process, queued, retrying
from tests.top.screen import Screen, drive


def test_a_failed_job_is_retried_deleted_and_put_back(client: Redis) -> None:
    retrying(client, failed("one"), failed("two"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "r")
        await screen.shows("2 of 2 in the retries", "Timeout no answer", "3 of 25", "one")
        await screen.press("r")
        await screen.shows("Retried 1 job of the retries.", "1 of 1 in the retries", "two")
        assert client.llen("queue:default") == 1
        await screen.until(lambda: not screen.app.view.has_jumped)
        await screen.press("d")
        await screen.shows("Deleted 1 job of the retries.", "u undoes it")
        assert client.zcard("retry") == 0
        await screen.press("u")
        await screen.shows("Put 1 job back.", "1 of 1 in the retries")
        assert client.zcard("retry") == 1
        await screen.press("K")
        await screen.shows("Killed 1 job of the retries.")
        assert (client.zcard("retry"), client.zcard("dead")) == (0, 1)

    drive(scenario)


def test_many_jobs_are_asked_about_first(client: Redis) -> None:
    dead(client, *(failed(f"d{number}") for number in range(5)))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "d")
        await screen.shows("5 of 5 in the dead set")
        await screen.press("x", "x", "d")
        await screen.asked("Delete 2 jobs of the dead set?")
        await screen.answer("enter")  # No has the focus
        await screen.shows("Nothing was changed.")
        assert client.zcard("dead") == 5
        await screen.press("d")
        await screen.asked("They can be put back for ten minutes.")
        await screen.answer("y")
        await screen.shows("Deleted 2 jobs of the dead set.", "3 of 3")
        await screen.press("a", "r")
        await screen.asked("Retry 3 jobs of the dead set?")
        await screen.answer("y")
        await screen.shows("Retried 3 jobs", "No job is dead.")
        assert client.llen("queue:default") == 3

    drive(scenario)


def test_all_that_the_search_finds_are_meant_and_no_other(client: Redis) -> None:
    dead(client, failed("a", "Mail"), failed("b", "Invoice"), failed("c", "Mail"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "d")
        await screen.shows("3 of 3 in the dead set")
        await screen.press("/", *"invoice", "enter")
        await screen.shows("1 of 3 in the dead set: invoice")
        await screen.press("a", "d")
        await screen.asked("Delete 1 job of the dead set?")
        await screen.answer("y")
        await screen.shows("Deleted 1 job", "Nothing here has 'invoice' in it.")
        await screen.press("escape")
        await screen.shows("2 of 2 in the dead set")

    drive(scenario)


def test_the_cursor_is_on_the_job_that_was_looked_at(client: Redis) -> None:
    """A key after Escape must not act on another job."""
    dead(client, *(failed(jid, "Invoice") for jid in "abc"), failed("d", "Other"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "d")
        await screen.shows("4 of 4 in the dead set")
        await screen.press("/", *"invoice", "enter")
        await screen.shows("3 of 4 in the dead set: invoice")
        await screen.press("j", "j")
        row = screen.app.view.current
        assert row is not None
        looked_at = DeadSet().get(row.key)
        await screen.press("enter")
        await screen.shows("What has become of this job?", "  dead")
        await screen.press("escape")
        await screen.shows("3 of 4 in the dead set: invoice")
        await screen.press("d")
        await screen.shows("Deleted 1 job")
        assert looked_at is not None
        assert looked_at.raw not in client.zrange("dead", 0, -1)
        assert client.zcard("dead") == 3

    drive(scenario)


def test_the_suspects_of_a_queue_are_told_and_cleared_with_it(client: Redis) -> None:
    queued(client, "mail", job("m1"))
    client.lpush("{queue:mail}:suspects", job("s1", forkq={"suspect": True}))
    client.sadd("forkq:suspects", "mail")

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("mail", "1 of its 2 jobs is a suspect: it runs alone")
        await screen.press("enter")
        await screen.shows("suspect", "s1", "m1")
        await screen.press("escape")
        await screen.shows("Why it does not drain")
        await screen.press("C")
        await screen.asked("Delete 2 jobs from mail?")
        await screen.answer("y")
        await screen.shows("Deleted 2 jobs from mail.")
        assert not client.exists("{queue:mail}:suspects", "forkq:suspects")

    drive(scenario)


def test_a_queue_is_paused_resumed_and_cleared(client: Redis) -> None:
    queued(client, "mail", job("m1"), job("m2"))

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("mail", "Why it does not drain", "no living process serves it")
        await screen.press("p")
        await screen.shows("Paused mail: no process takes its jobs.")
        assert client.smembers("paused") == {b"mail"}
        await screen.press("u")
        await screen.shows("Resumed mail.")
        assert client.smembers("paused") == set()
        await screen.press("p")
        await screen.until(lambda: client.smembers("paused"))
        await screen.shows("Paused mail")
        await screen.press("p")
        await screen.until(lambda: not client.smembers("paused"))
        await screen.shows("Resumed mail.")
        await screen.press("C")
        await screen.asked("Delete 2 jobs from mail?")
        await screen.answer("y")
        await screen.shows("Deleted 2 jobs from mail.")
        assert client.llen("queue:mail") == 0
        await screen.press("u")
        await screen.shows("Put 2 jobs back.")
        assert client.llen("queue:mail") == 2

    drive(scenario)


@pytest.mark.parametrize(
    ("key", "order", "says"),
    [
        ("t", b"TTIN", "look into its log"),
        ("Q", b"TSTP", "Quiet process 312 on web-1?"),
        ("S", b"TERM", "Stop process 312 on web-1?"),
    ],
)
def test_a_child_is_given_an_order(client: Redis, key: str, order: bytes, says: str) -> None:
    process(client, job("runs"))

    async def scenario(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("default 312")
        await screen.press(key)
        await screen.shows("Choose a child, or a job of one")  # the cursor is on the host
        await screen.press("j", "j", key)  # its child's job
        if key != "t":
            await screen.asked(says)
            assert "This cannot be undone." in screen.text()
            await screen.answer("y")
        await screen.shows("Told process 312 on web-1")

    drive(scenario)
    assert client.lrange(f"{WHO}-signals", 0, -1) == [order]


def test_selected_jobs_are_cancelled_after_a_question(client: Redis) -> None:
    """They are noted, and stay until the leader ends them."""
    retrying(client, failed("one"), failed("two"), failed("three"))
    dead(client, failed("four"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "r")
        await screen.shows("3 of 3 in the retries")
        await screen.press("x", "x", "c")
        await screen.asked("Cancel 2 jobs of the retries?")
        assert "This cannot be undone." in screen.text()
        await screen.answer("enter")  # No has the focus
        await screen.shows("Nothing was changed.")
        assert not client.exists("forkq:cancelled")
        await screen.press("c")
        await screen.asked("No tree runs, so none is removed until one does")
        await screen.answer("y")
        await screen.shows("Cancelled 2 jobs of the retries.")
        assert client.hlen("forkq:cancelled") == 2
        assert client.zcard("retry") == 3
        await screen.press("g", "d")
        await screen.shows("1 of 1 in the dead set")
        assert "c Cancel" not in screen.text()  # it has ended

    drive(scenario)


def test_a_running_job_is_cancelled_and_a_child_is_not(client: Redis) -> None:
    process(client, job("runs"))
    client.sadd("queues", "default")

    async def scenario(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("default 312")
        await screen.press("c")
        await screen.shows("Choose a job: hosts and children are not cancelled.")
        await screen.press("j", "j", "c")
        await screen.asked("Cancel Mail, which runs for 3")
        assert "It is the job runs. It gets forkq.Cancelled" in screen.text()
        await screen.answer("y")
        await screen.shows("Cancelled Mail: it is told within a second.")
        assert client.hkeys("forkq:cancelled") == [b"jid:runs"]
        await screen.press("enter")
        await screen.shows("running, being cancelled")

    drive(scenario)


def test_a_queued_job_is_cancelled_in_its_queue_and_on_its_page(client: Redis) -> None:
    queued(client, "mail", job("m1", queue="mail"), job("m2", queue="mail"))

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("mail")
        await screen.press("enter")
        await screen.shows("Its jobs, the next one first", "m1", "m2")
        await screen.press("c")
        await screen.asked("Cancel 1 job of the queue mail?")
        assert "It is the job m1." in screen.text()
        await screen.answer("y")
        await screen.shows("Cancelled 1 job of the queue mail.")
        await screen.press("j", "enter")
        await screen.shows("What has become of this job?", "m2")
        await screen.press("c")
        await screen.asked("It is the job m2.")
        await screen.answer("y")
        await screen.shows("Cancelled 1 job of the queue mail.", "Its jobs, the next one first")
        assert sorted(client.hkeys("forkq:cancelled")) == [b"jid:m1", b"jid:m2"]

    drive(scenario)


def test_a_group_of_failures_is_acted_on_as_one(client: Redis) -> None:
    retrying(client, failed("a"), failed("b"), failed("c", error_class="KeyError"))
    dead(client, failed("d"))

    async def scenario(screen: Screen) -> None:
        await screen.press("4")
        await screen.shows("2  retrying  Mail", "1  dead", "KeyError")
        await screen.press("r")
        await screen.asked("Retry 2 jobs of the retries?")
        await screen.answer("y")
        await screen.shows("Retried 2 jobs of the retries.")
        assert (client.zcard("retry"), client.zcard("dead")) == (1, 1)

    drive(scenario)


def test_a_periodic_job_is_run_and_paused(client: Redis) -> None:
    cron.add("nightly", "0 3 * * *", "Report")

    async def scenario(screen: Screen) -> None:
        await screen.press("6")
        await screen.shows("nightly", "0 3 * * *", "runs Report")
        await screen.press("n")
        await screen.asked("Run nightly now? 1 job is pushed.")
        await screen.answer("y")
        await screen.shows("Pushed a job of nightly.")
        assert client.llen("queue:default") == 1
        await screen.press("p")
        await screen.shows("Paused nightly: none of its ticks is enqueued.")
        await screen.until(lambda: "paused" in screen.line("0 3 * * *"))
        await screen.press("u")
        await screen.shows("Resumed nightly.")
        assert cron.get("nightly").paused is False

    drive(scenario)


def test_a_page_is_chosen_in_one_breath_and_no_letter_of_it_acts(client: Redis) -> None:
    """The d of g d deletes nothing, however fast it is typed."""
    retrying(client, failed("one"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "r")
        await screen.shows("1 of 1 in the retries")
        await screen.press("g", "d")
        await screen.shows("No job is dead.")
        await screen.press("g", "q")  # not to quit
        await screen.shows("Why does this queue not drain?")

    drive(scenario)
    assert client.zcard("retry") == 1


def test_q_and_control_c_quit_with_zero(client: Redis) -> None:
    async def scenario(key: str, screen: Screen) -> None:
        await screen.press("2", "slash" if key == "ctrl+c" else "1", key)
        await screen.until(lambda: screen.app._exit)

    for key in ("q", "ctrl+c"):
        drive(lambda screen, key=key: scenario(key, screen))  # type: ignore[misc]
