"""A queue over several shards in the web UI: one queue, whose parts each shard's pages name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq import api
from tests.support.spread import PARTS, QUEUE, Spread, three_parts
from tests.support.waiting import wait_until
from tests.web.shared import act, client_of, confirm

PAGE = f"/queue?name={QUEUE}"


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Spread]:
    with three_parts(tmp_path) as found:
        for number, part in enumerate(PARTS, 1):
            found.push_to(part, number)
        yield found


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_the_pages_of_a_part_have_the_whole_queue_beside_it(spread: Spread) -> None:
    with client_of() as web:
        wait_until(lambda: "3 of 6 in 3 parts" in words(web.get("/queues").text), what="all parts")
        page = web.get(PAGE).text
        assert "b 1, c 2, default 3." in words(page)
        assert f'<a href="/shards/b{PAGE}">b</a>' in page
        of_b = web.get(f"/shards/b{PAGE}").text
        assert f'<a href="{PAGE}">default</a>' in of_b
        spread.servers["c"].kill()
        wait_until(lambda: "shard c is down" in words(web.get("/queues").text), what="the problem")


def test_what_no_shard_has_told_lately_is_not_shown(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of() as web:
        wait_until(lambda: "3 of 6 in 3 parts" in words(web.get("/queues").text), what="all parts")
        monkeypatch.setattr("forkq.screens.facts._OLD", -1.0)
        assert "of 0 in 3 parts without b and c and default" in words(web.get("/queues").text)


def test_actions_are_for_all_parts(spread: Spread) -> None:
    """On the page of any of them; the limit that no server could keep is refused there, too."""
    parts = [api.Queue(QUEUE, api.server(part)) for part in PARTS]
    with client_of() as web:
        act(web, "/shards/b/queue/pause", name=QUEUE)
        assert [part.paused for part in parts] == [True] * 3
        assert "Paused imports in all of its 3 parts" in words(web.get(f"/shards/b{PAGE}").text)
        act(web, "/queue/resume", name=QUEUE)
        assert [part.paused for part in parts] == [False] * 3
        refused = act(web, "/queue/limits", name=QUEUE, limit="3", rate="", process_limit="")
        told = refused.text if refused.status_code != 303 else web.get(PAGE).text
        assert "is spread over several shards" in words(told)
        act(web, "/queue/limits", name=QUEUE, limit="", rate="", process_limit="2")
        assert [part.process_limit for part in parts] == [2] * 3
        confirm(web, "/shards/c/queue/clear", name=QUEUE)
        assert [part.size for part in parts] == [0] * 3
        [undo] = re.findall(r'name="token" value="(\w+)"', web.get(f"/shards/c{PAGE}").text)[:1]
        act(web, "/shards/c/undo", token=undo)
        wait_until(lambda: [part.size for part in parts] == [1, 2, 3], what="all that was deleted")
