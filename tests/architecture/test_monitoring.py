"""What deploy/ has for a monitoring system names metrics that exist, in words of `forkq doctor`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT

pytest.importorskip("prometheus_client", reason="missing: pip install --group test")
from forkq.doctor.service import SERVICE
from forkq.metrics.families import FAMILIES, SHARD
from forkq.screens.checks import CHECKS, REDIS_MEMORY

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus-rules.yaml"
METRIC = re.compile(r"\bforkq_\w+")
SERIES = {
    family.query_name + suffix: family
    for family in FAMILIES
    for suffix in (("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",))
}


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return found


def queries() -> Iterator[str]:
    """Every query of rules, dashboard and scaling."""
    yield from (rule["expr"] for rule in rules())
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    [trigger] = yaml.safe_load((DEPLOY / "keda.yaml").read_text())["spec"]["triggers"]
    yield trigger["metadata"]["query"]


def promtool(*arguments: str, folder: Path = ROOT) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus): `make test-deps`")
    command = [program, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_must() -> None:
    promtool("test", "rules", str(ROOT / "tests" / "architecture" / "prometheus_rules.yaml"))


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    """In place of Grafana's variable stands a range."""
    recorded = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    promtool("check", "rules", str(file))


def test_every_metric_and_label_of_a_query_exists() -> None:
    for query in queries():
        names = set(METRIC.findall(query))
        assert names, query
        assert names <= SERIES.keys(), query
        of_metrics = (each for name in names for each in SERIES[name].labels)
        labels = {"instance", SHARD, "le", *of_metrics}
        asked = set(re.findall(r"(\w+)(?:=~|!=|=(?!=))", query))
        grouped = {word for words in re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
                   for word in words.split(", ")}  # fmt: skip
        assert asked | grouped <= labels, query


def test_alerts_and_checks_are_one_list() -> None:
    """With the same limits, severities and words. Three are about what only Prometheus sees: of
    jobs that expire Redis keeps how many there were, and not when."""
    found = {rule["alert"]: rule for rule in rules()}
    known = {alert.name: (check, alert) for check in CHECKS for alert in check.alerts}
    assert found.keys() - known.keys() == {
        *("ForkqIsNotScraped", "ForkqRedisIsOut", "ForkqJobsExpire")
    }
    for name, (check, alert) in known.items():
        rule = found[name]
        assert f"{alert.limit:g}" in re.findall(r"[0-9.]+", rule["expr"]), name
        assert rule["labels"]["severity"] == ("critical" if alert.critical else "warning"), name
        assert check.words in rule["annotations"]["summary"], name
        assert (rule["annotations"]["why"], rule["annotations"]["remedy"]) == (
            check.why, check.remedy
        ), name  # fmt: skip
        assert check.critical or not alert.critical or check is REDIS_MEMORY, name


def test_an_alert_names_the_check_of_the_doctor() -> None:
    by_name = {alert.name: check.name for check in CHECKS for alert in check.alerts}
    told = {check.name for check in SERVICE} | {"redis-memory", "latency"}
    labels = {rule["alert"]: rule["labels"].get("check") for rule in rules()}
    assert labels.pop("ForkqRedisIsOut") == "redis"
    assert {one: check for one, check in labels.items() if check} == {
        one: check for one, check in by_name.items() if check in told
    }


def test_the_doctor_s_page_has_the_list() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    table = page.partition("## The running service")[2].partition("|---|---|---|---|---|\n")[2]
    assert table.partition("\n\n")[0].splitlines() == [
        f"| `{each.name}` | {each.measures} | {each.limit:g} | {'yes' if each.critical else ''} | "
        f"{', '.join(f'`{alert.name}`' for alert in each.alerts)} |"
        for each in CHECKS
    ]


def test_the_page_has_every_metric_as_it_is() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(forkq_\w+)` \| (\w+) \|([^|]*)\| (.+) \|$", page, re.MULTILINE)
    told = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), what)
        for name, kind, labels, what in rows
    ]
    assert told == [(each.query_name, each.kind, each.labels, each.help) for each in FAMILIES]


def test_every_alert_says_what_why_and_what_to_do() -> None:
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "why", "remedy"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_the_panels_of_the_dashboard_have_their_own_places() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_examples_scale_the_deployment_that_there_is() -> None:
    [deployment] = [each for each in manifests("kubernetes.yaml") if each["kind"] == "Deployment"]
    [scaled] = manifests("keda.yaml")
    [hpa] = manifests("hpa.yaml")
    for target in (scaled["spec"]["scaleTargetRef"], hpa["spec"]["scaleTargetRef"]):
        assert target["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["minReplicaCount"] == hpa["spec"]["minReplicas"] == 1


@pytest.mark.parametrize("name", ["kubernetes-metrics.yaml", "hpa.yaml"])
def test_kubernetes_knows_every_key_of_the_manifests(name: str) -> None:
    program = shutil.which("kubernetes-validate")
    if program is None:
        pytest.skip("kubernetes-validate is not installed: pip install kubernetes-validate")
    command = [program, "--strict", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pod_of_the_metrics_is_asked_over_http() -> None:
    deployment, policy = manifests("kubernetes-metrics.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    assert paths == ["/livez", "/readyz"]
    assert "--allow-remote" in container["args"]
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    known = [each["metadata"]["name"] for each in manifests("kubernetes.yaml")]
    assert container["env"][1]["valueFrom"]["secretKeyRef"]["name"] in known
