"""The package as others get it: built, installed from the wheel, and without the checkout."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.waiting import PATIENCE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# Where pip of a fresh environment is told to look, if the tester's own is told so.
PIP = [*("-m", "pip", "--disable-pip-version-check", "install", "-qq")]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **variables},
        capture_output=True, text=True, timeout=30 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made from the source distribution, and that."""
    pytest.importorskip("build", reason="pip install build hatchling hatch-fancy-pypi-readme")
    pytest.importorskip("hatch_fancy_pypi_readme", reason="pip install hatch-fancy-pypi-readme")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(name))


@pytest.mark.xdist_group("package")
def test_the_wheel_has_the_package_with_its_data_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, source = built
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folder = ROOT / "forkq"
    ours = [
        path
        for kind in ("*.py", "*.lua", "*.html", "*.css", "*.js", "*.svg", "*.tcss", "py.typed")
        for path in folder.rglob(kind)
    ]
    [probe] = [name for name in names if name.endswith(".data/scripts/forkq-probe")]
    assert names - {probe} == {str(path.relative_to(ROOT)) for path in ours}
    with tarfile.open(source) as unpacked:
        found = {name.split("/")[1] for name in unpacked.getnames() if "/" in name}
    beside = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert {"forkq", "bin"} <= found <= {"forkq", "bin", *beside}
    assert source.stat().st_size < 2 * wheel.stat().st_size


@pytest.mark.xdist_group("package")
def test_the_page_of_the_package_index_has_links_that_lead_out(built: tuple[Path, Path]) -> None:
    """Its readers have no checkout beside the page."""
    found = metadata(built[0])
    page = found.get_payload()
    assert isinstance(page, str)
    assert found["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^()\s]+)\)", page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)


@pytest.mark.xdist_group("package")
def test_what_only_a_checkout_needs_is_no_extra(built: tuple[Path, Path]) -> None:
    """`make` installs it by dependency groups, which no package index shows."""
    found = metadata(built[0])
    extras = set(found.get_all("Provides-Extra", []))
    assert {"django", "embedded", "web"} <= extras
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert extras.isdisjoint(groups)
    needed = " ".join(found.get_all("Requires-Dist", []))
    assert "redis" in needed
    assert "pytest" not in needed


@pytest.mark.xdist_group("package")
def test_the_wheel_works_without_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    """With the dependencies that this environment has."""
    target = tmp_path / "site"
    run(sys.executable, *PIP, "--no-deps", "--target", target, built[0], cwd=tmp_path)
    program = "import forkq; print(forkq.__file__, forkq.__version__)"
    file, version = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert Path(file).is_relative_to(target)
    assert os.access(target / "bin" / "forkq-probe", os.X_OK)
    shown = run(target / "bin" / "forkq", "--version", cwd=tmp_path, PYTHONPATH=str(target))
    assert shown == f"forkq {version}\n"
    remedy = "from forkq.errors import install; print(install('web'))"
    said = run(sys.executable, "-c", remedy, cwd=tmp_path, PYTHONPATH=str(target))
    assert said == "pip install 'forkq[web]'\n"


@pytest.mark.slow
@pytest.mark.xdist_group("package")
@pytest.mark.parametrize("version", VERSIONS)
def test_an_install_with_its_dependencies_on_every_python(
    built: tuple[Path, Path], tmp_path: Path, version: str
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here: install it, or put it into pyenv's versions")
    run(python, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    mine = tmp_path / "venv" / "bin" / "python"
    run(mine, *PIP, built[0], cwd=tmp_path)
    assert run(mine, "-m", "forkq", "--version", cwd=tmp_path).startswith("forkq ")
    (tmp_path / "jobs.py").write_text("import forkq\n@forkq.job\ndef tidy() -> None: ...\n")
    shown = run(mine.with_name("forkq"), "config", "check", "-r", "jobs", cwd=tmp_path)
    assert "jobs.tidy: queue default" in shown


def interpreter(version: str) -> str | None:
    """A Python of this version that can make virtual environments; as `make test-all` finds it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    usable = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in (f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))):
        try:
            done = subprocess.run(
                [candidate, "-c", usable], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if done.stdout.strip() == version:
            return candidate
    return None
