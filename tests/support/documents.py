"""What the project's Markdown files print: fenced snippets, links and headings."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import preloaded
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(```)(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_SPAN = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block: its language ("" if it names none), its text, and where it begins."""

    language: str
    text: str
    place: str


def documents() -> list[Path]:
    """Every Markdown file of the project, but what was made: `make bench` installs its peers."""
    folders = (path for path in sorted(ROOT.iterdir()) if path.is_dir() and path.name[0] != ".")
    ours = (folder for folder in folders if folder.name not in {"build", "dist", "site"})
    deeper = (found for folder in ours for found in sorted(folder.rglob("*.md")))
    return [*sorted(ROOT.glob("*.md")), *deeper]


def redis_rights(user: str) -> list[str]:
    """The rules for that user in docs/redis.md, for ACL SETUSER on this host; its password is x."""
    found = re.search(
        rf"ACL SETUSER {user} (on [^`]*)```", (ROOT / "docs" / "redis.md").read_text()
    )
    assert found is not None
    return found[1].replace("PASSWORD", "x").replace("HOSTNAME", socket.gethostname()).split()


def name_of(document: Path) -> str:
    """As the project names it: "docs/jobs.md"."""
    return str(document.relative_to(ROOT))


def snippets(document: Path, *languages: str) -> list[Snippet]:
    """The document's fenced blocks in these languages, in order."""
    text = document.read_text()
    return [
        Snippet(found[2], found[3], f"{name_of(document)}:{text.count(chr(10), 0, found.start(3))}")
        for found in _FENCE.finditer(text)
        if found[2] in languages
    ]


def runnable() -> list[Path]:
    """The documents whose Python a reader can run as it stands. internals.md shows excerpts of
    forkq itself, django.md the files of a project (tests/contrib/django/test_guide.py)."""
    found = [path for path in documents() if path.name not in {"internals.md", "django.md"}]
    return [path for path in found if snippets(path, "python")]


def links(document: Path) -> Iterator[str]:
    """The targets of its links within the project."""
    text = _SPAN.sub("", _FENCE.sub("", document.read_text()))
    return (found for found in _LINK.findall(text) if not re.match(r"[a-z]+:", found))


def anchors(document: Path) -> set[str]:
    """What can stand after "#" in a link to it, as GitHub makes it of the headings."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def run_program(program: str, folder: Path, server: Server) -> None:
    """Runs a document's Python in a process of its own, as a reader would: in an empty folder, with
    that server. It must end well and write nothing to standard error."""
    env = {**os.environ, "FORKQ_REDIS": server.url}
    if preloaded.can_run((), env):
        done = preloaded.run_python(program, folder, env, 60)
    else:
        path = filter(None, (str(ROOT), env.get("PYTHONPATH")))
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env={**env, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
