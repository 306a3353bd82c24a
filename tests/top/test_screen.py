"""What the screen shows, and that nothing in Redis breaks it."""

from __future__ import annotations

import time

import pytest
from redis import Redis
from rich.cells import cell_len

import forkq
from forkq import default_client
from forkq.api import Queue
from forkq.store.deploys import mark
from tests.support.server import Server
from tests.top.data import dead, failed, job, process, queued, retrying
from tests.top.screen import Screen, drive

HOSTILE = (
    "[red]x[/red] \x1b[31m\x1b]0;t\x07 \u202eevil \u200bz\ufe0f [@click=app.bell]go[/] \n\t\x00"
)


def test_the_six_questions_are_answered(client: Redis) -> None:
    """By their numbers, and by the letters of the web UI."""
    queued(client, "mail", job("m1", enqueued_at=int(time.time() * 1000) - 900_000))
    retrying(client, failed("r1"))
    dead(client, failed("d1"))
    process(client, job("runs", "Report"), done=40, total=120, note="rows")
    connection = default_client.default()
    with connection.connection() as wire:
        mark(wire, connection.keys, "v12", time.time() - 600)

    async def scenario(screen: Screen) -> None:
        await screen.shows("Is anything wrong?", "queue mail is 1", "v12", "to retry")
        assert "All well." not in screen.text()
        await screen.press("2")
        await screen.shows("mail  Nothing is known", "1 process on web-1, 1 of 5 threads busy")
        await screen.press("g", "b")
        await screen.shows("web-1", "1 of 5", "42%", "84MB", "Report", "40 of 120 rows")
        await screen.press("4")
        await screen.shows("1  retrying  Mail", "1  dead      Mail", "Timeout")
        await screen.press("5")
        await screen.shows("Did the deploy change anything?", "v12")
        await screen.press("g", "s")
        await screen.shows("What will happen next?", "No job is scheduled.")

    drive(scenario)


def test_a_job_is_looked_into_and_its_secrets_stay_secret(client: Redis) -> None:
    dead(client, failed("d1"))

    async def scenario(screen: Screen) -> None:
        await screen.press("4")
        await screen.shows("1  dead")
        await screen.press("enter")
        await screen.shows("1 of 1 in the dead set: Mail Timeout")
        await screen.press("enter")
        await screen.shows("Its life", "died", "no answer", "/srv/shop/mail.py:7:in perform", "***")
        assert "s3cret" not in screen.text()
        await screen.press("r")
        await screen.shows("Retried 1 job of the dead set.", "0 of 0 in the dead set")
        await screen.press("escape")
        await screen.shows("What fails, and since when?")

    drive(scenario, size=(80, 40))
    assert client.llen("queue:default") == 1


def test_what_is_in_redis_sets_no_colour_and_moves_no_cursor(client: Redis) -> None:
    hostile = failed(
        "h1", HOSTILE, error_class=HOSTILE, error_message=HOSTILE * 500, args=[HOSTILE]
    )
    dead(client, hostile, b"no json " + HOSTILE.encode())
    queued(client, "[red]q[/]\x1b[31m" + "q" * 300, hostile)
    process(client, job(HOSTILE, HOSTILE), done=1, note=HOSTILE)

    async def scenario(screen: Screen) -> None:
        for keys in ("1", "2", "3", "4", "gd", "5", "6"):
            await screen.press(*keys)
            await screen.until(lambda: screen.app._seen is not None)
            check(screen)
        await screen.press("g", "d")
        await screen.shows("[red]x[/red] \\x1b[31m")
        for _ in range(2):  # the job, and what is none
            await screen.press("enter")
            await screen.shows("What has become of this job?", "  dead")
            check(screen)
            await screen.press("escape")
            await screen.shows("2 of 2 in the dead set")
            await screen.press("j")
        await screen.press("3")
        await screen.shows("[red]x[/red]")
        await screen.press("d", "x", "p")  # no key of this page
        check(screen)

    drive(scenario)


def check(screen: Screen) -> None:
    """Each line is as wide as the screen, and has what a terminal shows and no more."""
    for line in screen.segments():
        text = "".join(part.text for part in line)
        assert text.isprintable(), repr(text)
        assert cell_len(text) == 80, repr(text)
    reds = [p.text for line in screen.segments() for p in line if "[red]" in p.text]
    assert all("[/red]" in text or "[/]" in text or "…" in text for text in reds), reds


def test_letters_beyond_ascii_have_a_stand_in_where_the_terminal_has_none(client: Redis) -> None:
    dead(client, failed("d1", "Größe", error_message="数据 ошибка"))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "d")
        await screen.shows("1 of 1 in the dead set")
        await screen.until(lambda: "Gr" in screen.text())
        written = screen.app.get_line_filters()[-1].apply(
            [part for line in screen.segments() for part in line],
            screen.app.screen.background_colors[0],
        )
        shown = "".join(part.text for part in written)
        assert shown.isascii()
        assert "Grosse" in shown or "Gro?e" in shown
        assert len(shown) == 80 * 24

    drive(scenario, ascii_only=True)


def test_it_fits_a_screen_that_grows_and_shrinks_and_takes_the_mouse(client: Redis) -> None:
    dead(client, *(failed(f"d{number}") for number in range(120)))

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "d")
        await screen.shows("50 of 120 in the dead set")
        await screen.press(">")
        await screen.press("end", ">")
        await screen.pilot.resize_terminal(40, 12)
        await screen.until(lambda: screen.app.size.width == 40)
        await screen.shows("in the dead set")
        await screen.pilot.resize_terminal(140, 50)
        await screen.shows("Timeout no answer")
        await screen.pilot.click("#tabs Link")  # the first
        await screen.shows("Is anything wrong?")
        await screen.press("?")
        await screen.asked("Everywhere")
        await screen.answer("escape")

    drive(scenario)


def test_redis_goes_and_comes_back(own_server: Server) -> None:
    forkq.configure(own_server.url)
    client = own_server.client()
    queued(client, "mail", job("m1"))

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("mail")
        own_server.stop()
        await screen.shows("Redis has not answered since", "away")
        own_server.start()
        await screen.shows("live", "mail")
        await screen.until(lambda: "Redis has not answered" not in screen.text())

    drive(scenario)
    client.close()
    default_client.forget()


def test_while_redis_hangs_the_keys_work(own_server: Server) -> None:
    forkq.configure(own_server.url)
    Queue("mail").pause()

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("paused")
        own_server.pause()
        await screen.shows("Redis has not answered since")
        await screen.press("p")
        await screen.shows("Asking Redis ...")
        await screen.press("3")
        await screen.shows("What is running, and is it moving?")
        own_server.resume()
        await screen.until(lambda: "Redis has not answered" not in screen.text())

    drive(scenario)
    default_client.forget()


def test_rows_that_look_alike_are_all_shown(client: Redis) -> None:
    """Nothing in Redis is unique because a person believes so: no name, no id, no payload."""
    dead(client, failed("d1", "A B", error_class="C"), failed("d2", "A", error_class="B C"))
    for number in range(2):
        client.hset("{queue:default}:inflight", f"gone-1:7:aa/{number}", job("twice"))
    client.sadd("queues", "default")

    async def scenario(screen: Screen) -> None:
        await screen.press("4")
        await screen.until(lambda: screen.text().count("1  dead   A ") == 2)
        await screen.press("3")
        await screen.until(lambda: screen.text().count("Mail") == 2)

    drive(scenario)


def test_a_score_that_is_no_moment_is_shown(client: Redis) -> None:
    for location in ("dead", "retry", "schedule"):
        client.zadd(location, {"early": "-inf", "late": "inf", "far": 1e300})

    async def scenario(screen: Screen) -> None:
        for letter in "drs":
            await screen.press("g", letter)
            await screen.shows("3 of 3 in")

    drive(scenario)


def test_it_ends_while_its_cursor_still_moves(client: Redis) -> None:
    """An error in the app would be raised here."""
    process(client, job("runs"))

    async def scenario(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("default 312")
        listing = screen.app.view.listing
        for _ in range(200):
            listing.call_later(listing.action_cursor_down)
            listing.call_later(listing.action_cursor_up)

    drive(scenario)


def test_a_queue_that_moves_drains_and_one_beside_free_threads_does_not(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.screens.flow._LOOK", 2.0)
    stamp = int(time.time() * 1000) - 900_000
    queued(client, "mail", *(job(f"m{number}", enqueued_at=stamp) for number in range(3)))
    process(client)

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows(
            "mail  It does not drain", "5 threads are free for it, but none has taken"
        )
        client.rpop("queue:mail")
        await screen.shows("mail  It drains", "Jobs have left it in the last")
        forkq.api.Queue("mail").pause()
        await screen.shows("mail  Why it does not drain", "it is paused")

    drive(scenario, size=(120, 30))


def test_a_dead_fleet_is_told_and_a_sound_one_says_what_it_is(client: Redis) -> None:
    client.zadd("retry", {str(number): time.time() - 3600 for number in range(50)})

    async def scenario(screen: Screen) -> None:
        await screen.shows(
            "no process runs jobs: 50 jobs waiting, start forkq",
            "no clock leads",
            "50 retries, due for up to 60 min, have not been moved to their queues",
        )
        assert "All well" not in screen.text()
        client.delete("retry")
        process(client)
        await screen.shows("All well: 1 process, 0 queues, clock on web-1.")

    drive(scenario, size=(120, 30))
