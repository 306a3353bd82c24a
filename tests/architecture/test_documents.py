"""The documents keep to what there is: links lead somewhere, snippets are understood.

tests/process/test_documents.py runs them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from forkq.cli.main import cli
from forkq.config.load import load
from tests.support.documents import (
    ROOT,
    Snippet,
    anchors,
    documents,
    links,
    name_of,
    runnable,
    snippets,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTION = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")


def test_links_within_the_project_lead_somewhere() -> None:
    """The file is there, and the heading that the link names."""
    for document in documents():
        for link in links(document):
            path, _, anchor = link.partition("#")
            target = document.parent / path if path else document
            where = f"{name_of(document)} links to {link}"
            assert target.exists(), f"{where}, which does not exist"
            assert not anchor or anchor in anchors(target), f"{where}: no such heading"


def all_of(*languages: str) -> list[Snippet]:
    return [found for document in documents() for found in snippets(document, *languages)]


def place(snippet: Snippet) -> str:
    return snippet.place


def test_python_is_python() -> None:
    for snippet in all_of("python"):
        compile(snippet.text, snippet.place, "exec")


def test_forkq_takes_every_configuration(tmp_path: Path) -> None:
    """Each block by itself is a forkq.toml, or the part of one."""
    for snippet in all_of("toml"):
        file = tmp_path / f"{snippet.place.replace('/', '-')}.toml"  # an error names it
        file.write_text(snippet.text)
        load(file, {}, {"HOME": "/nonexistent"}, tmp_path)


def test_every_command_of_forkq_and_its_options_exist() -> None:
    """In a synopsis as in an example."""
    for snippet in all_of("", "sh"):
        for line in commands(snippet.text):
            where = f"{snippet.place}: forkq {line}"
            own = line.partition(" | ")[0]  # then comes another program
            assert set(OPTION.findall(own)) <= options_of(line, where), where


def options_of(line: str, where: str) -> set[str]:
    """The options of the commands that a line names, some of them with `a|b`."""
    found: list[click.Command] = [cli]
    for word in words(line):
        groups = [command for command in found if isinstance(command, click.Group)]
        if not groups:
            break
        found = [command_of(group, name, where) for group in groups for name in word.split("|")]
    own = {name for command in found for parameter in command.params for name in parameter.opts}
    return own | {"-h", "--help", "--version"}


def command_of(group: click.Group, name: str, where: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"{where}: {group.name} has no command {name}"
    return command


def commands(text: str) -> Iterator[str]:
    """What follows "forkq" in each command; on one line they stand two and more spaces apart."""
    for line in text.splitlines():
        for part in re.split(r"\s{2,}|&&|\|\|", line.partition("#")[0]):
            if found := re.match(r"(?:\S*/)?forkq (.+)", part.strip()):
                yield found[1]


def words(line: str) -> list[str]:
    """The words before the first argument or option."""
    plain = re.split(r"\s(?=[\[-]|[A-Z])|\.\.\.", f"{line} ")[0]
    return plain.split()


def test_every_target_of_make_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.compile(r"(?:^|`)make ([a-z-]+)(?=\s*(?:#|`|$))", re.MULTILINE)
    for document in documents():
        for target in named.findall(document.read_text()):
            assert f"\n{target}:" in makefile, f"{name_of(document)}: make {target}"


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for snippet in all_of("", "sh"):
        for line in snippet.text.splitlines():
            if "pip install" in line:
                for word in shlex.split(line, comments=True):
                    for extras in re.findall(r"(?:forkq|\.)\[([\w,]+)\]", word):
                        known = project["optional-dependencies"]
                        assert set(extras.split(",")) <= known.keys(), snippet.place


def test_python_uses_no_name_that_its_document_has_not_introduced(tmp_path: Path) -> None:
    """What a definition uses is missed only when it is called; ruff sees it before."""
    ruff = shutil.which("ruff", path=sysconfig.get_path("scripts")) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed: `make check` installs it")
    for document in runnable():
        text = "\n\n".join(snippet.text for snippet in snippets(document, "python"))
        (tmp_path / f"{name_of(document).replace('/', '-')}.py").write_text(text)
    command = [ruff, "check", "--isolated", "--no-cache", "--select=F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
