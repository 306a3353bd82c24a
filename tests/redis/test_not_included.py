"""What docs/not-included.md has its readers write does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import ROOT, run_program, snippets
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("preloaded_processes")

PAGE = ROOT / "docs" / "not-included.md"
# After the page's own pushes. `ran` has the class and arguments of each job that was run.
CHECKS = """
ran = []

@forkq.middleware.server.append
def note(job, call):
    ran.append((job["class"], *job["args"]))
    return call()

forkq.testing.drain()
again = add_points.perform_async(8, 1)
add_points.set(jid=again).perform_async(8, 1)
forkq.testing.drain()
assert ("Resize", "a.png", 200) in ran, "priorities"
assert ran.count(("AddPoints", 8, 1)) == 2
with sqlite3.connect("shop.db") as db:
    assert db.execute("SELECT * FROM points").fetchall() == [(7, 100), (8, 1)], "exactly once"
db.close()
import logging
logging.getLogger("forkq").setLevel(logging.CRITICAL)  # the failure is meant
add_points.set(retry=0).perform_async(None, 1)
forkq.testing.drain(check=False)
assert len(forkq.testing.recorded().dead) == 1, "a wrong row is no row that was written before"
"""


def test_every_recipe_does_what_it_promises(redis_server: Server, tmp_path: Path) -> None:
    # Else a push warns that nothing serves its queue.
    (tmp_path / "forkq.toml").write_text('[capsules.default]\nqueues = ["*"]\n')
    page = "\n\n".join(each.text for each in snippets(PAGE, "python"))
    program = (
        "import forkq.testing\n"
        "names = {'__name__': 'recipes'}\n"  # jobs of __main__ are refused
        "with forkq.testing.fake():\n    exec(PAGE, names)\n    exec(CHECKS, names)\n"
    )
    run_program(f"PAGE, CHECKS = {page!r}, {CHECKS!r}\n{program}", tmp_path, redis_server)
