"""systemd/README.md, followed to the letter on a machine that has never seen forkq."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, snippets
from tests.support.server import find_server
from tests.support.systemd_box import Box, NoBox, Unit, obstacle
from tests.support.waiting import wait_until

README = ROOT / "systemd" / "README.md"
PYTHON = "/usr/bin/python3"  # what the commands find in the box
SHIPPED = ("README.md", "LICENSE", "pyproject.toml", "bin", "forkq", "systemd", "deploy")
APP = """
import forkq, os, pathlib

@forkq.job(name="Touch")
def touch(name: str) -> None:
    pathlib.Path(os.environ["STATE_DIRECTORY"], name).touch()
"""
CONFIG = """
[forkq]
app = "jobs"
[redis]
url = "embedded"
"""

pytestmark = [
    pytest.mark.xdist_group("systemd"),
    pytest.mark.skipif(obstacle() is not None, reason=f"no systemd of our own: {obstacle()}"),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install .` needs beside the checkout: the box has no network."""
    if subprocess.run([PYTHON, "-c", "import ensurepip"], check=False).returncode:
        pytest.skip(f"{PYTHON} cannot make virtual environments: `make test-deps`")
    project = (ROOT / "pyproject.toml").read_text()
    [table] = re.findall(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    [build] = re.findall(r"^requires = \[(.*?)\]", project, re.MULTILINE | re.DOTALL)
    wanted = [*re.findall(r'"(.*?)"', build), *re.findall(r'^ +"(.*?)",', table, re.MULTILINE)]
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "download", "-q", "-d", str(folder)]
    limit = ["timeout", "120"]
    done = subprocess.run([*limit, *pip, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"pip got no packages for the box; is its index reachable? {done.stderr[-300:]}"
        )
    return folder


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Box]:
    """A booted machine with a checkout and an application, and no trace of forkq."""
    checkout, shop = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("shop")
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    (shop / "jobs.py").write_text(APP)
    for path in (checkout, shop):
        path.chmod(0o755)
    binds = {checkout: "/srv/forkq", shop: "/srv/shop", wheels: "/srv/wheels"}
    try:
        with Box(binds) as box:
            yield box
    except NoBox as reason:
        pytest.skip(f"no systemd came up (needs a privileged container or a machine): {reason}")


def run(box: Box, commands: str) -> str:
    """Types these lines as root in the checkout; each must succeed."""
    pip = ["PIP_CONFIG_FILE=/dev/null", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/srv/wheels"]
    return box.run("env", *pip, "bash", "-euxc", f"cd /srv/forkq\n{commands}").stdout


def test_the_commands_of_the_readme_install_and_start_forkq(box: Box) -> None:
    """On a fresh system, whose folders in /etc are missing; then a job runs."""
    shutil.rmtree(box.path("/etc/sysusers.d"), ignore_errors=True)
    install, start = (snippet.text for snippet in snippets(README, "sh"))
    [drop_in] = (snippet.text for snippet in snippets(README, "ini"))
    run(box, install)
    assert box.run("/usr/local/bin/forkq", "version").stdout.startswith("forkq ")
    assert box.path("/etc/forkq/forkq.env").stat().st_mode & 0o777 == 0o600

    if not any(box.path(f"/usr/bin/{name}").exists() for name in ("redis-server", "valkey-server")):
        shutil.copy(find_server(), box.path("/usr/local/bin/valkey-server"))
    box.write("/etc/forkq/forkq.toml", CONFIG)
    box.write("/etc/systemd/system/forkq.service.d/override.conf", drop_in)
    run(box, "ln -s /opt/forkq /srv/shop/.venv")
    unit = Unit(box, "forkq.service")
    run(box, start)
    assert unit.show("ActiveState") == "active"
    assert unit.show("UnitFileState") == "enabled"
    as_forkq = ["setpriv", "--reuid=forkq", "--regid=forkq", "--clear-groups"]
    url = box.path("/run/forkq/forkq.redis").read_text().strip()
    box.run(*as_forkq, "forkq", "push", "Touch", '"done"', "--redis", url)
    done = box.path("/var/lib/forkq/done")
    wait_until(done.exists, what="the job")
