"""What documents print runs as printed: README and tour in a whole tree, docs/ snippet by snippet.

tests/architecture/test_documents.py checks what can be checked without running it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, name_of, run_program, runnable, snippets
from tests.support.server import Server
from tests.support.tree import ForkqTree

README = ROOT / "README.md"
LOCAL = "redis://localhost:6379/0"  # as documents have it; each test has a server of its own
TESTING = ROOT / "docs" / "testing.md"  # test_testing_page.py
TOUR = ROOT / "docs" / "tour.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"  # test_tutorial.py
GUIDES = [path for path in runnable() if path not in (README, TESTING, TOUR, TUTORIAL)]


def printed(language: str, *, naming: str, document: Path = README) -> str:
    """The document's one block in this language that contains these words."""
    [found] = [each.text for each in snippets(document, language) if naming in each.text]
    return found


@pytest.fixture
def folder() -> Iterator[ForkqTree]:
    """The quick start's two files in a folder, with the commands of this environment on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tree = ForkqTree(env={"PATH": path})
    (tree.cwd / "jobs.py").write_text(printed("python", naming="# jobs.py"))
    (tree.cwd / "forkq.toml").write_text(printed("toml", naming="# forkq.toml"))
    yield tree
    tree.close()


def shell(tree: ForkqTree, command: str) -> subprocess.CompletedProcess[str]:
    """Types one line in that folder."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=tree.cwd,
        env=tree.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_the_quick_start_runs_as_printed(folder: ForkqTree) -> None:
    start, push, status, stop = printed("", naming="forkq start  ").splitlines()
    assert start.split("#")[0].split() == ["forkq", "start"]
    folder.start().wait_ready()
    shell(folder, push)
    folder.wait_log("welcome 7")
    assert "default.0" in shell(folder, status).stdout
    shell(folder, stop)
    assert folder.wait() == 0
    folder.assert_gone()


def test_the_tour_goes_on_in_the_tree_of_the_quick_start(folder: ForkqTree) -> None:
    """Every block at once: periodic jobs, hooks and middleware, rules of queues, and the pushes."""
    app, pushes = folder.cwd / "jobs.py", ""
    for snippet in snippets(TOUR, "python"):
        if "from jobs import" in snippet.text:
            pushes = snippet.text
        else:
            app.write_text(f"{app.read_text()}\n\n{snippet.text}")
    file = folder.cwd / "forkq.toml"
    file.write_text(file.read_text() + printed("toml", naming="[limits]", document=TOUR))
    shell(folder, "forkq config check")
    folder.start().wait_ready()
    (address,) = folder.runtime.glob("**/*.redis")
    (folder.cwd / "pushes.py").write_text(pushes.replace(LOCAL, address.read_text().strip()))
    assert "welcome 7" in shell(folder, "python pushes.py").stdout
    shell(folder, "python -c 'import jobs; jobs.Import.perform_async(\"a.csv\")'")
    folder.wait_log(r"jobs\.Import \d")  # what the middleware prints
    for file_name in ("a.png", "b.png"):
        folder.wait_log(file_name)  # `print` in two threads mixes the parts of two lines
    assert "Traceback" not in folder.log_text()
    assert folder.stop() == 0


@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_the_snippets_of_a_guide_run_in_order(
    document: Path, redis_server: Server, tmp_path: Path
) -> None:
    """One after the other, as who reads the document would try them."""
    if document.name != "flask.md":  # it configures forkq in app.config
        # Else each push warns that nothing serves its queue.
        (tmp_path / "forkq.toml").write_text('[capsules.default]\nqueues = ["*"]\n')
    (tmp_path / "settings.py").touch()  # of the Django project that web.md has
    blocks = [(each.text, each.place) for each in snippets(document, "python")]
    program = (
        "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\n"
        "names = {'__name__': 'guide'}\n"  # jobs of __main__ are refused
        "for text, place in BLOCKS:\n    exec(compile(text, place, 'exec'), names)\n"
    )
    run_program(f"BLOCKS = {blocks!r}\n{program}", tmp_path, redis_server)
