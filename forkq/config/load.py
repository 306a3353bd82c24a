"""From forkq.toml, variables and flags to the ``Config``: one fold over settings.

Read and check the file, overlay its environment, overlay variables and flags, expand, build.
Precedence: flags, variables, the environment's tables, the rest of the file, defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ConfigError, configuration, nearest
from ..limits.rules import Rulebook
from . import provided
from .capsule import (
    ASYNC_CONCURRENCY,
    DEFAULT_NAME,
    QUEUE_LIST,
    Capsule,
    check_kinds,
    check_time_limits,
)
from .check import Checker, names_given_twice
from .config import (
    CAPSULE,
    DEFAULT_ENVIRONMENT,
    FILE,
    INHERITED,
    PLAIN_TABLES,
    Config,
    LogSettings,
    RedisSettings,
)
from .cron_tables import ROWS, entry_of
from .file import find_file, read_file, read_what_is_right
from .flags import misspelt_variables, read_options
from .limit_tables import check_blocking, rulebook
from .password_keys import PASSWORD_KEYS, password_source
from .paths import default_pidfile, default_state_dir
from .recycling import RECYCLING, Recycling
from .settings import ConfigProblems, Origin, Setting, Settings, mapped, origins, overlaid, table_of
from .shards import DEFAULT_SHARD, Shard, check_blocking_on, on_shards, shards_of
from .shards import ROWS as SHARDS
from .spread import check_rules, with_parts
from .web_table import WebTable


def load(
    path: Path | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    near: Iterable[Path] = (),
) -> Config:
    """The whole configuration. Raises ConfigError, which lists all that is wrong, one problem a
    line.

    ``flags`` are the parsed flags by name (None or empty: not given), ``environ`` is the process's
    environment. forkq.toml is looked for upwards from ``cwd``, then from the folders ``near``.
    """
    source, folder, document = _document(path or flags.get("config"), environ, cwd, near)
    settings, problems = _folded(source, document, flags, environ)
    if problems:
        raise ConfigError("\n".join(problems))
    return _build(settings, source, environ, folder)


def _document(
    named: Path | str | None, environ: Mapping[str, str], cwd: Path, near: Iterable[Path]
) -> tuple[Path | None, Path, dict[str, Any]]:
    """What configures this process, the folder at which relative paths start, and its text."""
    source, folder = find_file(named, environ, cwd, near)
    is_named = bool(named or environ.get("FORKQ_CONFIG"))
    given = provided.found(source, cwd, is_named=is_named)
    if given is not None:
        return given[0], cwd, given[1]
    return source, folder, read_file(source, _named_by(named)) if source else {}


def config_despite_errors(
    flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path
) -> Config:
    """The pidfile, the tag and the file of a wrong configuration, by what is right in it: the
    commands that look after a running tree need no more. Raises ConfigError if no flag or variable
    names the pidfile and the file cannot be read."""
    options = read_options(PLAIN_TABLES["forkq"], flags, environ, ConfigProblems())
    folder, source, document = cwd, None, {}
    if "pidfile" not in options:
        named = flags.get("config")
        source, folder = find_file(named, environ, cwd)
        document = read_what_is_right(source, _named_by(named)) if source else {}
    settings, _ = _folded(None, document, flags, environ)
    right = table_of(settings, "forkq")
    values = {
        key: one.value
        for key, one in right.items()
        if isinstance(one, Setting) and not one.hint and key in ("pidfile", "tag")
    }
    values["pidfile"] = _pidfile(values, environ, folder)
    given = dict(origins({"forkq": right}))
    return Config(**values, state_dir=folder, source=source, origins=given)


def _named_by(path: Path | str | None) -> str:
    return "-C" if path else "FORKQ_CONFIG"


def _folded(
    source: Path | None,
    document: Mapping[str, Any],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[Settings, ConfigProblems]:
    """The settings that are in force, and what is wrong."""
    problems = ConfigProblems()
    options, capsule = _options(flags, environ, problems)
    checker = Checker(source, FILE, problems)
    settings = checker.table(FILE, document)
    problems += misspelt_variables(environ, checker.variables)
    environment = _environment(settings, options, environ)
    is_asked_for = bool(flags.get("environment"))
    settings = _with_environment(settings, environment, is_asked_for, source, problems)
    settings = overlaid(settings, options)
    settings = overlaid(settings, _for_capsule(settings, capsule, problems))
    return _expanded(settings, environ, problems), problems


def _pidfile(forkq: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> Path:
    tag = forkq.get("tag", "")
    return folder / (forkq.get("pidfile") or default_pidfile(environ, folder, tag))


def _options(
    flags: Mapping[str, Any], environ: Mapping[str, str], problems: ConfigProblems
) -> tuple[Settings, Settings]:
    """The settings of flags and variables: keys of whole tables, and keys of one capsule."""
    options: Settings = {
        name: read_options(keys, flags, environ, problems) for name, keys in PLAIN_TABLES.items()
    }
    return options, read_options(CAPSULE, flags, environ, problems)


def _environment(settings: Settings, options: Settings, environ: Mapping[str, str]) -> str:
    """The environment that is in force. A wrong name is reported when all settings are expanded."""
    setting = table_of(overlaid(settings, options), "forkq").get("environment")
    if isinstance(setting, Setting):
        with suppress(ConfigError):
            return str(setting.expanded(environ).value)
    return DEFAULT_ENVIRONMENT


def _with_environment(
    settings: Settings, name: str, is_asked_for: bool, source: Path | None, problems: ConfigProblems
) -> Settings:
    """The file's settings, with its tables of the environment ``name`` laid over them. An
    environment that -e names must exist; one of FORKQ_ENV must not be a misspelling."""
    environments = table_of(settings, "environments")
    near = nearest(name, environments, 0.75)
    known = name in environments or name == DEFAULT_ENVIRONMENT
    if name not in environments and near is not None:
        problems.append(
            f"{source}: environments: there is none called {name}, the nearest one is {near}; if "
            f"both exist, add an empty table [environments.{name}]"
        )
    elif is_asked_for and not known:
        nothing = f"there is no {configuration.place}, so it"
        there = ", ".join([DEFAULT_ENVIRONMENT, *environments])
        problems.append(
            f"-e {name}: {source or nothing} has no [environments.{name}]; there is {there}"
        )
    base = {key: table for key, table in settings.items() if key != "environments"}
    return overlaid(base, table_of(environments, name))


def _for_capsule(settings: Settings, capsule: Settings, problems: ConfigProblems) -> Settings:
    """The keys of -q and -c, for the capsule that they mean: ``default``, or the only one."""
    names = list(table_of(settings, "capsules"))
    if not capsule:
        return {}
    if len(names) == 1:
        return {"capsules": {names[0]: capsule}}
    if names and DEFAULT_NAME not in names and "queues" not in capsule:
        problems.append(
            f"--concurrency (FORKQ_CONCURRENCY): of which capsule? The file has {', '.join(names)} "
            f"and none called {DEFAULT_NAME}; give it there, or add -q to run one more capsule"
        )
    return {"capsules": {DEFAULT_NAME: capsule}}


def _expanded(settings: Settings, environ: Mapping[str, str], problems: ConfigProblems) -> Settings:
    """All settings with their variables expanded; what is wrong joins ``problems``."""

    def expand(setting: Setting) -> Setting:
        try:
            return setting.expanded(environ)
        except ConfigError as error:
            problems.append(f"{setting.origin}: {error}")
            return setting

    changed: Settings = mapped(settings, expand)
    lists = (ROWS, changed.get("cron")), (SHARDS, table_of(changed, "redis").get("shards"))
    for kind, rows in lists:
        if not problems and isinstance(rows, list):
            problems += names_given_twice(kind, rows)
    return changed


def _build(
    settings: Settings, source: Path | None, environ: Mapping[str, str], folder: Path
) -> Config:
    """The Config of the checked settings. A value that was not given is its dataclass's default."""
    values = mapped(settings, lambda setting: setting.value)
    forkq = _with_places(values["forkq"], environ, folder)
    rules = rulebook(values, source)
    shared = {key: forkq[key] for key in INHERITED if key in forkq}
    recycling = {key: forkq.pop(key) for key in RECYCLING if key in forkq}
    capsules = _capsules(values.get("capsules"), shared, rules, source)
    given = dict(origins(settings))
    check_kinds(capsules, given)
    check_time_limits(capsules, given)
    check_blocking(rules, capsules, given)
    rows = values["redis"].pop("shards", ())
    redis = _redis(values["redis"], given, folder)
    shards = with_parts(_shards(rows, redis, given, folder), values.get("spread", {}), given)
    check_rules(shards, rules, given)
    check_blocking_on(shards, rules, given)
    config = Config(
        **forkq,
        recycling=Recycling(**recycling),
        redis=redis,
        log=LogSettings(**values["log"]),
        web=WebTable(**values["web"]),
        capsules=on_shards(capsules, shards),
        shards=shards,
        shard=DEFAULT_SHARD if shards else "",
        cron=tuple(entry_of(row, forkq.get("cron_tz", "UTC")) for row in values.get("cron", ())),
        rules=rules,
        expire=values.get("expire", {}),
        source=source,
        folder=folder,
        origins=given,
    )
    _check_together(config)
    return config


def _shards(
    rows: Sequence[Mapping[str, Any]],
    redis: RedisSettings,
    given: Mapping[str, Origin],
    folder: Path,
) -> tuple[Shard, ...]:
    """The shards of these rows beside the server of ``[redis]``; none without rows."""
    default = Shard(DEFAULT_SHARD, redis.url, (), redis.password_source, redis.prefix)
    return shards_of(default, rows, redis.cluster_shards, given, folder)


def _with_places(table: dict[str, Any], environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The values of ``[forkq]``, with its app, pidfile and folder of state where none is given."""
    state_dir = table.get("state_dir") or default_state_dir(environ, folder, table.get("tag", ""))
    return {
        **table,
        "pidfile": _pidfile(table, environ, folder),
        "app": provided.with_app(table.get("app", ())),
        "state_dir": folder / state_dir,
    }


def _redis(table: dict[str, Any], given: Mapping[str, Origin], folder: Path) -> RedisSettings:
    url = table.get("url", RedisSettings().url)
    source = password_source(table, url, given, "redis", folder)
    rest = {key: value for key, value in table.items() if key not in PASSWORD_KEYS}
    return RedisSettings(**rest, password_source=source)


def _check_together(config: Config) -> None:
    """Raises ConfigError for values that do not go together."""
    _check_silence(config)
    _check_one_process(config)


def _check_silence(config: Config) -> None:
    """Raises ConfigError for a limit of silence that ends before a child counts as silent."""
    kill_after, silent_after = config.kill_silent_after, config.silent_after
    if 0 < kill_after < silent_after:
        raise ConfigError(
            f"{config.origins['forkq.kill_silent_after']}: expected 0, or at least the "
            f"{silent_after:g} s of silent_after, found {kill_after:g}"
        )


def _check_one_process(config: Config) -> None:
    """Raises ConfigError for what one process cannot do: it has one child, and no other process
    could end that."""
    if not config.in_one_process:
        return
    place = config.origins["forkq.processes"]
    if len(config.own_capsules) > 1 or config.shards:
        what = "[[redis.shards]]" if config.shards else "more than one capsule"
        raise ConfigError(f'{place}: "one" process cannot serve {what}; leave `processes` out')
    ending = ("job_hard_timeout", *RECYCLING)
    for key in ("workers", *ending):
        if (found := _given(config, key)) is not None:
            why = "ends no child" if key in ending else "has one child"
            raise ConfigError(f'{found}: processes = "one" {why}; leave {key} or `processes` out')


def _given(config: Config, key: str) -> Origin | None:
    """Where ``key`` was given, for all capsules or for one, if its value asks for something."""
    [capsule] = config.own_capsules
    limits = capsule.recycling if key in RECYCLING else capsule
    value = getattr(limits, key, None) or getattr(config, key, None)
    places = (f"capsules.{capsule.name}.{key}", f"forkq.{key}")
    origin = next((config.origins[place] for place in places if place in config.origins), None)
    return origin if value and value != 1 else None


def _capsules(
    tables: dict[str, dict[str, Any]] | None,
    shared: dict[str, Any],
    rules: Rulebook,
    source: Path | None,
) -> tuple[Capsule, ...]:
    """The capsules of the file. ``shared`` has the values of ``[forkq]`` for capsules without their
    own."""
    tables = tables or {DEFAULT_NAME: {}}
    for name, table in tables.items():
        if "queues" not in table and name != DEFAULT_NAME:
            raise ConfigError(f"{source}: capsules.{name}.queues: missing, expected {QUEUE_LIST}")
    return tuple(
        _capsule(name, {**shared, **table}, rules, source) for name, table in tables.items()
    )


def _capsule(name: str, values: dict[str, Any], rules: Rulebook, source: Path | None) -> Capsule:
    recycling = Recycling(**{key: values.pop(key) for key in RECYCLING if key in values})
    recycling.check(f"{source or 'forkq'}: capsules.{name}")
    if values.get("kind") == "async":
        values.setdefault("concurrency", ASYNC_CONCURRENCY)
    return Capsule(name, **values, recycling=recycling, rules=rules)
