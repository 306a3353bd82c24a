"""The options of a Redis URL: forkq refuses those that would raise a traceback or hang."""

from __future__ import annotations

from urllib.parse import SplitResult, quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.connection import parse_url

from forkq.client import Client
from forkq.errors import ConfigError
from forkq.wire import redis_url
from forkq.wire.redis_url import (
    checked_url,
    cluster_url,
    database_of,
    redacted_url,
    sentinel_url,
)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?db=3",
        "redis://h/3?protocol=3&client_name=web",
        "unix:///run/redis.sock?db=1&username=u&password=p",
        "rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_min_version=772",
        "rediss://u:p@h:6380/1?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/c&ssl_keyfile=/k",
        "sentinel://h/main",
        "sentinel://u:p@h1,h2:26380,[::1]:5/main/3?sentinel_username=q&sentinel_password=s",
        "sentinels://h1/main/0?ssl_certfile=/c&client_name=web",
        "cluster://h",
        "cluster://u:p@h1,h2:7000,[::1]:5/0?client_name=web",
        "clusters://h1,h2/?ssl_certfile=/c",
    ],
)
def test_what_redis_py_and_forkq_understand_is_taken(url: str) -> None:
    assert checked_url(url) == url
    Client(url, prefix="{forkq}:").close()


def test_a_list_of_hosts_is_taken_by_pythons_that_check_brackets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those from 3.11.12, 3.12.9 and 3.13.2 on, and those of distributions."""

    def checking(url: str) -> SplitResult:
        before, bracket, _ = urlsplit(url).netloc.rpartition("@")[2].partition("[")
        if before and bracket:
            raise ValueError("Invalid IPv6 URL")
        return urlsplit(url)

    monkeypatch.setattr(redis_url, "urlsplit", checking)
    found = redis_url.sentinel_url(checked_url("sentinel://u:p@h1,[::1]:5,h2:1/main/3"))
    assert found is not None
    assert found.sentinels == ("redis://h1:26379", "redis://[::1]:5", "redis://h2:1")
    assert found.master_url("m", 7) == "redis://u:p@m:7/3"


@pytest.mark.parametrize("scheme", ["sentinel", "redis"])
@pytest.mark.parametrize("password", ["s\u2100cret", "s]cret", "s[cret"])
def test_a_password_that_must_be_quoted_is_refused_unseen(scheme: str, password: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_url(f"{scheme}://u:{password}@h/3")
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://h?foo=1", '"foo": use one of username, password'),
        ("redis://h?passwort=1", '"passwort": the nearest one is password'),
        ("redis://h?protocol=2", '"protocol" of a Redis URL must be 3, .*not "2"'),
        ("redis://h?db=ten", '"db" of a Redis URL must be a whole number'),
        ("redis://h?db=", '"db" of a Redis URL has no value'),
        ("redis://h?ssl_ca_certs=/x", "must begin with rediss://"),
        ("rediss://h?ssl_cert_reqs=maybe", "must be required, optional or none"),
        ("redis://h?socket_timeout=1", "set `timeout` under"),
        ("redis://h?max_connections=1", "set `pool` under"),
        ("redis://h?retry_on_timeout=true", "forkq itself decides"),
        ("redis://h?decode_responses=true", "payloads are bytes"),
        ("redis://h?sentinel_password=x", "the nearest one is ssl_password"),
        ("sentinel://h/m?ssl_certfile=/x", "must begin with sentinels://"),
        ("sentinel://h/m?sentinel_pasword=x", "the nearest one is sentinel_password"),
        ("sentinel://h/m?sentinel_username=x", "sentinel_username needs a sentinel_password"),
        ("sentinel://h1,h2", "lacks the name of the master"),
        ("sentinel://h,/m", 'Sentinel URL cannot be used: "" is not the address'),
        ("cluster://h,", 'cluster URL cannot be used: "" is not the address of a node'),
        ("cluster://h/3", "a cluster has no databases but 0"),
        ("cluster://h?db=3", "a cluster has no databases but 0"),
        ("cluster://h?ssl_certfile=/x", "must begin with clusters://"),
        ("cluster://h?sentinel_username=x", 'has no option "sentinel_username"'),
        ("sentinel://h:x/m", '"h:x" is not the address of a Sentinel: write HOST or HOST:PORT'),
        ("sentinel://h:0/m", '"h:0" is not the address of a Sentinel'),
        ("sentinel://h/m/ten", 'the database after the name of the master is a number, not "ten"'),
    ],
)
def test_any_other_option_is_refused_with_the_remedy(url: str, why: str) -> None:
    for take in (checked_url, Client):
        with pytest.raises(ConfigError, match=why):
            take(url)


def test_a_refusal_never_shows_a_password() -> None:
    url = "rediss://u:sesame@h?ssl_password=sesame&password=sesame&foo=1"
    with pytest.raises(ConfigError) as caught:
        checked_url(url)
    assert "sesame" not in str(caught.value)
    assert "sesame" not in redacted_url(url)


SPECIAL = st.text(st.sampled_from("@:/?#&=%;+ \\\"'\n[],a1é"), max_size=6)


@settings(max_examples=500)
@given(
    st.builds("sesame{}sesame{}".format, SPECIAL, SPECIAL),
    st.booleans(),
    st.sampled_from(
        [
            "redis://:{}@h:6379/0",
            "rediss://user:{}@h/0?db=1",
            "unix://:{}@/run/redis.sock",
            "redis://h/0?password={}",
            "redis://h/0?db=x&PassWord={}&db=1",
            "redis://h/0?pass%77ord={}",
            "rediss://h/0?ssl_password={}",
            "redis://h/0?passwd={}",
            "redis://h/0?auth_token={}",
            "sentinel://h1,h2/main/0?sentinel_password={}",
            "redis://h/0#{}",
            "user:{}@h:6379",
        ]
    ),
)
def test_no_password_is_shown_wherever_it_stands_and_however_it_is_written(
    password: str, encoded: bool, form: str
) -> None:
    url = form.format(quote(password, safe="") if encoded else password)
    assert "sesame" not in redacted_url(url).replace("%", "")
    assert "sesame" not in refusal(url)


def refusal(url: str) -> str:
    """What a client says of that URL; "" if it takes it."""
    try:
        Client(url, prefix="{forkq}:").close()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", ["0 0 ? * *", "shop/a?b", "a?b=c", "/srv/app?/x"])
def test_a_text_that_is_no_url_is_shown_as_it_is(text: str) -> None:
    assert redacted_url(text) == text


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://u:sesame@h/m?sentinel_password=sesame&foo=1",
        "sentinel://u:sesame@h",
        "sentinel://u:ses/sesame@h/m",
        "sentinel://u:ses?sesame@h/m",
        "sentinel://h/m?sentinel_password=sesame&sentinel_username=",
    ],
)
def test_a_refused_sentinel_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_url(url)
    assert "sesame" not in str(caught.value)


def test_a_sentinel_url_gives_the_url_of_each_server() -> None:
    """The Sentinels have a login of their own; TLS is the same for all."""
    url = (
        "sentinels://u:p%2Fq@h1,h2:5/main/3"
        "?ssl_certfile=/c&client_name=web&sentinel_username=q&sentinel_password=s%40t"
    )
    parts = sentinel_url(url)
    assert parts is not None
    assert parts.name == "main"
    assert parts.sentinels == (
        "rediss://q:s%40t@h1:26379?ssl_certfile=%2Fc",
        "rediss://q:s%40t@h2:5?ssl_certfile=%2Fc",
    )
    options = "ssl_certfile=%2Fc&client_name=web"
    assert parts.master_url("10.0.0.1", 7) == f"rediss://u:p%2Fq@10.0.0.1:7/3?{options}"
    assert parts.master_url("::1", 7).startswith("rediss://u:p%2Fq@[::1]:7/3?")
    assert sentinel_url("redis://h") is None


@pytest.mark.parametrize("host", ["db..internal", ".internal", "a" * 70, "caf\udce9"])
def test_a_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    """Otherwise the first connection would raise a UnicodeError."""
    with pytest.raises(ConfigError, match="expected redis://"):
        checked_url(f"redis://{host}:6379/0")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "redis://h/7",
        "redis://h/07",
        "redis://h?db=3",
        "redis://h/1?db=3",
        "redis://h?db=3&db=4",
        "unix:///run/redis.sock",
        "unix:///run/7?db=3",
    ],
)
def test_the_database_is_the_one_that_redis_py_takes(url: str) -> None:
    parsed: dict[str, object] = parse_url(url)  # type: ignore[no-untyped-call]
    assert database_of(url) == parsed.get("db", 0)


def test_a_cluster_url_gives_the_nodes_and_the_url_of_each() -> None:
    parts = cluster_url("clusters://u:p%2Fq@h1,[::1]:5/?client_name=web")
    assert parts is not None
    assert parts.nodes == (("h1", 6379), ("::1", 5))
    assert parts.node_url("h3", 7000) == "rediss://u:p%2Fq@h3:7000/0?client_name=web"
    assert parts.node_url("::2", 1) == "rediss://u:p%2Fq@[::2]:1/0?client_name=web"
    assert cluster_url("redis://h") is None
    assert database_of("cluster://h1,h2") == 0


def test_the_database_behind_sentinels() -> None:
    urls = ("sentinel://s/jobs", "sentinel://s/jobs/3", "sentinel://s/jobs?db=3")
    assert [database_of(url) for url in urls] == [0, 3, 3]
