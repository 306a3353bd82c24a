"""A tree whose forkq.toml was broken after its start is still found, and told what to do."""

from __future__ import annotations

from tests.support.tree import StartTree


def test_status_quiet_and_stop_need_only_the_pidfile(tree: StartTree) -> None:
    forkq = tree("embedded", app="import forkq", config="[forkq]\ntimeout = 7")
    [pidfile] = forkq.runtime.glob("**/*.pid")
    (forkq.cwd / "forkq.toml").write_text("[forkq]\ntimout = 7")
    for command in (("status",), ("quiet", "--pidfile", str(pidfile)), ("stop",)):
        done = forkq.run(*command)
        assert done.returncode == 0, done.stderr
        (line,) = done.stderr.splitlines()
        assert "forkq.timout: unknown key" in line
        assert f"going by the pidfile {pidfile} alone" in line
    assert forkq.process.wait(timeout=60) == 0


def test_a_file_that_is_not_there_names_the_remedy(tree: StartTree) -> None:
    """It may not be this tree that was meant."""
    forkq = tree("embedded", app="import forkq")
    refused = forkq.run("stop", "-C", "another.toml")
    assert refused.returncode == 2
    assert "no such file (-C names it); --pidfile finds the master without it" in refused.stderr
    assert forkq.alive
