"""The rules of queues in forkq.toml: what arrives, what is refused, and what is only warned of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from forkq.cli.config import config as config_command
from forkq.config.config import Config
from forkq.config.limit_tables import warnings
from forkq.config.load import load
from forkq.errors import ConfigError
from forkq.limits.rules import NO_RULES, Rate, Rulebook, Rules

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = re.findall(r"```toml\n(.*?)```", (DOCS / "limits.md").read_text(), re.DOTALL)
TOUR = (DOCS / "tour.md").read_text()
QUEUES = """
    [capsules.default]
    queues = ["critical", "webhooks", "reports", "tenant-*"]
"""

Loader = Callable[..., Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Loads a text as ./forkq.toml of an environment."""

    def load_text(text: str, environment: str | None = None, **environ: str) -> Config:
        (tmp_path / "forkq.toml").write_text(text, encoding="utf-8")
        return load(None, {"environment": environment}, environ, tmp_path)

    return load_text


@pytest.fixture
def problems(loaded: Loader, tmp_path: Path) -> Callable[[str], list[str]]:
    """Loads what must fail; the lines of the message, the file's own path shortened to FILE."""

    def fail(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            loaded(text)
        return str(caught.value).replace(str(tmp_path / "forkq.toml"), "FILE").splitlines()

    return fail


Failer = Callable[[str], list[str]]


# What arrives


def test_every_table_reaches_every_capsule(loaded: Loader) -> None:
    """One Rulebook for all, whichever capsule a queue is in."""
    config = loaded(
        QUEUES
        + """
        [capsules.other]
        queues = ["other"]
        [limits]
        webhooks = 2
        "tenant-*" = 0
        [process_limits]
        webhooks = 1
        [rates]
        webhooks = "100/minute"
        reports = { rate = "10/30s", burst = 5 }
        [blocking]
        critical = true
        webhooks = ["reports", "tenant-*"]
        [fair]
        "tenant-*" = true
        """
    )
    assert config.rules.entries == {
        "critical": Rules(blocking=True),
        "webhooks": Rules(
            limit=2, process_limit=1, rate=Rate(100, 60), blocking=("reports", "tenant-*")
        ),
        "reports": Rules(rate=Rate(10, 30, burst=5)),
        "tenant-*": Rules(limit=0, fair=True),
    }
    assert [capsule.rules for capsule in config.capsules] == [config.rules] * 2
    assert warnings(config.rules, config.capsules) == []


def test_without_any_there_are_none(loaded: Loader) -> None:
    config = loaded("")
    assert config.rules == config.capsules[0].rules == Rulebook()
    assert config.rules.of("anything") == NO_RULES


@pytest.mark.parametrize(
    ("text", "count", "seconds"),
    [
        ("100/minute", 100, 60),
        ("5/second", 5, 1),
        ("1000/hour", 1000, 3600),
        ("3/day", 3, 86_400),
        ("10/30s", 10, 30),
        ("1 / 2 h", 1, 7200),
        ("7/m", 7, 60),
    ],
)
def test_a_rate_is_so_many_in_so_many_seconds(
    loaded: Loader, text: str, count: int, seconds: int
) -> None:
    config = loaded(f'[rates]\ndefault = "{text}"')
    assert config.rules.of("default").rate == Rate(count, seconds)


def test_an_environment_changes_single_rules_and_leaves_the_others(loaded: Loader) -> None:
    config = loaded(
        QUEUES
        + """
        [limits]
        webhooks = 2
        reports = 4
        [rates]
        webhooks = "100/minute"
        [environments.production.limits]
        webhooks = "${LIMIT:-20}"
        "tenant-big*" = 9
        [environments.production.rates]
        webhooks = { rate = "1/s", burst = "${BURST}" }
        """,
        "production",
        BURST="3",
    )
    assert config.rules.of("webhooks") == Rules(limit=20, rate=Rate(1, 1, burst=3))
    assert config.rules.of("reports") == Rules(limit=4)
    assert config.rules.of("tenant-bigger") == Rules(limit=9)


def test_the_pattern_with_more_letters_counts_wherever_it_stands(loaded: Loader) -> None:
    """And a name before any pattern, rule by rule."""
    for tables in (
        '"*" = 1\n"tenant-*" = 2\n"tenant-b*" = 3\ntenant-big = 4',
        'tenant-big = 4\n"tenant-b*" = 3\n"tenant-*" = 2\n"*" = 1',
    ):
        book = loaded(f'[limits]\n{tables}\n[process_limits]\n"tenant-?*" = 7').rules
        assert book.of("tenant-big") == Rules(limit=4, process_limit=7)
        assert book.of("tenant-bob") == Rules(limit=3, process_limit=7)
        assert book.of("tenant-a") == Rules(limit=2, process_limit=7)
        assert book.of("mail") == Rules(limit=1)


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nq = -1", "limits.q: expected a whole number from 0 to 1000000, found the who"),
        ("[limits]\nq = 2.5", "limits.q: expected a whole number from 0 to 1000000, found the num"),
        ("[limits]\nq = true", "limits.q: expected a whole number from 0 to 1000000, found the tr"),
        ('[limits]\nq = "2"', "limits.q: expected a whole number from 0 to 1000000, found the str"),
        ("[process_limits]\nq = -3", "process_limits.q: expected a whole number from 0 to 1000000"),
        ("limits = 3", "limits: expected a table, found the whole number 3"),
        ("[limit]\nq = 3", "limit: unknown key, the nearest valid one is limits "),
        ('[limits]\n"a b" = 3', 'limits."a b": "a b" is not a queue: expected NAME'),
        ('[limits]\n"a,2" = 3', 'limits."a,2": "a,2" has a weight, which only queues take'),
        ('[limits]\n"tenant-[ab" = 3', 'limits."tenant-[ab": "tenant-[ab" is a bad pattern: its'),
        ('[limits]\n"t[]" = 3', 'limits."t[]": "t[]" is a bad pattern'),
        ('[capsules.default]\nqueues = ["t-["]', 'capsules.default.queues: "t-[" is a bad pattern'),
        ('[rates]\nq = "fast"', 'rates.q: expected a rate like "100/minute"'),
        ('[rates]\nq = "0/minute"', "rates.q: expected a rate like"),
        ('[rates]\nq = "-5/minute"', "rates.q: expected a rate like"),
        ('[rates]\nq = "5/week"', "rates.q: expected a rate like"),
        ('[rates]\nq = "5/0s"', "rates.q: expected a rate like"),
        ("[rates]\nq = 5", "rates.q: expected a rate like"),
        ("[rates]\nq = { burst = 5 }", "rates.q.rate: missing, expected a rate like"),
        ('[rates]\nq = { rate = "5/s", brust = 5 }', "the nearest valid one is rates.q.burst"),
        ('[rates]\nq = { rate = "5/s", burst = 0 }', "rates.q.burst: expected a whole number"),
        ('[rates]\nq = { rate = "5/x" }', "rates.q.rate: expected a rate like"),
        ('[blocking]\nq = "r"', "blocking.q: expected true, false or a list of the names of later"),
        ("[blocking]\nq = []", "blocking.q: names no queue that waits"),
        ('[blocking]\nq = ["x y"]', 'blocking.q: "x y" is not a queue'),
        ("[fair]\nq = true", 'fair.q: "q" is one queue, and only queues of a pattern take'),
        ('[fair]\n"q*" = 1', 'fair."q*": expected true or false, found the whole number 1'),
        (
            "[environments.production.limits]\nq = -1",
            "environments.production.limits.q: expected a whole number from 0",
        ),
    ],
)  # fmt: skip
def test_what_no_rule_can_be_is_refused_with_its_place(
    problems: Failer, text: str, message: str
) -> None:
    """File, key path, what was expected and what was found: one line."""
    [problem] = problems(text)
    assert problem.startswith("FILE: ")
    assert message in problem


@pytest.mark.parametrize(
    ("blocking", "waiting"),
    [
        ("webhooks", "critical"),
        ("webhooks", "webhooks"),
        ("tenant-*", "reports"),
        ("tenant-*", "tenant-a"),
        ("tenant-a", "reports"),
    ],
)
def test_only_a_later_queue_can_be_made_to_wait(
    problems: Failer, blocking: str, waiting: str
) -> None:
    [problem] = problems(f'{QUEUES}\n[blocking]\n"{blocking}" = ["{waiting}"]')
    assert re.match(rf'FILE: blocking\.\S+: "{re.escape(waiting)}" does not stand after', problem)
    assert "the capsule default" in problem


def test_a_wrong_order_is_reported_where_the_rule_stands(problems: Failer) -> None:
    """In the environment's table, if that has it."""
    table = '[environments.development.blocking]\nwebhooks = ["critical"]'
    [problem] = problems(f"{QUEUES}\n{table}")
    assert problem.startswith("FILE: environments.development.blocking.webhooks: ")


# What is warned of


@pytest.mark.parametrize(
    ("rule", "warning"),
    [
        (
            "[limits]\nwebhook = 2",
            'limits.webhook: no capsule works on "webhook"; the nearest queue is "webhooks"',
        ),
        (
            '[rates]\nzzz = "1/s"',
            (
                'rates.zzz: no capsule works on "zzz"; '
                "there are: critical, webhooks, reports, tenant-*"
            ),
        ),
        (
            '[fair]\n"tenat-*" = true',
            'fair."tenat-*": no capsule works on "tenat-*"; the nearest queue is "tenant-*"',
        ),
        (
            '[fair]\n"tenant-b*" = true',
            (
                'fair."tenant-b*": "tenant-b*" is not how any capsule writes its pattern; '
                'the nearest queue is "tenant-*"'
            ),
        ),
        (
            '[blocking]\ncritical = ["report"]',
            (
                'blocking.critical: no capsule works on both "critical" and "report"; '
                'the nearest queue is "reports"'
            ),
        ),
    ],
)
def test_a_rule_that_changes_nothing_is_warned_of(loaded: Loader, rule: str, warning: str) -> None:
    """With the nearest name; and it is no error, since the queue may be another host's."""
    config = loaded(f"{QUEUES}\n{rule}")
    assert warnings(config.rules, config.capsules) == [warning]


@pytest.mark.parametrize(
    "rule",
    [
        "[limits]\ntenant-a = 2",
        '[limits]\n"tenant-b*" = 2',
        '[limits]\n"*" = 2',
        '[fair]\n"*" = true',
        '[blocking]\ncritical = ["tenant-a"]',
    ],
)
def test_a_name_that_a_pattern_stands_for_is_known(loaded: Loader, rule: str) -> None:
    config = loaded(f"{QUEUES}\n{rule}")
    assert warnings(config.rules, config.capsules) == []


def test_config_check_shows_rules_and_warns_without_failing(tmp_path: Path) -> None:
    file = tmp_path / "forkq.toml"
    file.write_text(
        f'{QUEUES}\n[limits]\nwebhook = 2\n"tenant-*" = 0\n[process_limits]\nreports = 1\n'
        '[rates]\nreports = {rate = "10/30s", burst = 5}\n[blocking]\nreports = true\n'
        '[fair]\n"tenant-*" = true'
    )
    done = CliRunner().invoke(config_command, ["check", "-C", str(file)])
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("rules ")] == [
        "rules        reports: 1 per child, 10/30s, burst 5, blocks all later queues",
        "rules        tenant-* (each): limit 0, in turn",
        "rules        webhook: limit 2",
    ]
    assert f'warning: {file}: limits.webhook: no capsule works on "webhook"' in done.stderr


# The documentation


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_limits_md_are_valid(loaded: Loader, text: str) -> None:
    """Those with queues without a warning, too."""
    config = loaded(text)
    assert config.rules.entries
    if "queues" in text:
        assert warnings(config.rules, config.capsules) == []


def test_limits_md_has_examples_and_that_of_the_tour_is_valid(loaded: Loader) -> None:
    assert len(EXAMPLES) >= 5
    [text] = [t for t in re.findall(r"```toml\n(.*?)```", TOUR, re.DOTALL) if "[limits]" in t]
    assert loaded(text).rules.of("tenant-a") == Rules(limit=2, fair=True)
