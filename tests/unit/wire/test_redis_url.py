"""The options of a Redis URL: forkq refuses those that would raise a traceback or hang."""

from __future__ import annotations

import pytest

from forkq.client import Client
from forkq.errors import ConfigError
from forkq.wire.redis_url import checked_url, redacted_url


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?db=3",
        "redis://h/3?protocol=3&client_name=web",
        "unix:///run/redis.sock?db=1&username=u&password=p",
        "rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_min_version=772",
        "rediss://u:p@h:6380/1?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/c&ssl_keyfile=/k",
    ],
)
def test_what_redis_py_and_forkq_understand_is_taken(url: str) -> None:
    assert checked_url(url) == url
    Client(url).close()


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


@pytest.mark.parametrize("host", ["db..internal", ".internal", "a" * 70, "caf\udce9"])
def test_a_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    """Otherwise the first connection would raise a UnicodeError."""
    with pytest.raises(ConfigError, match="expected redis://"):
        checked_url(f"redis://{host}:6379/0")
