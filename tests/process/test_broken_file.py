"""A tree whose forkq.toml was broken after its start is still found by its pidfile."""

from __future__ import annotations

from tests.support.tree import StartTree


def test_status_quiet_and_stop_need_only_the_pidfile(tree: StartTree) -> None:
    forkq = tree("embedded", app="import forkq", config="[forkq]\ntimeout = 7")
    [pidfile] = forkq.runtime.glob("**/*.pid")
    (forkq.cwd / "forkq.toml").write_text("[forkq]\ntimout = 7")
    refused = forkq.run("status")
    assert refused.returncode == 2
    for command in ("status", "quiet", "stop"):
        done = forkq.run(command, "--pidfile", str(pidfile))
        assert done.returncode == 0, done.stderr
        assert "forkq.timout: unknown key" in done.stderr
    assert forkq.process.wait(timeout=30) == 0
