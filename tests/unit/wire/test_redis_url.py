"""The options of a Redis URL: forkq refuses those that would raise a traceback or hang."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        Client(url).close()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", ["0 0 ? * *", "shop/a?b", "a?b=c", "/srv/app?/x"])
def test_a_text_that_is_no_url_is_shown_as_it_is(text: str) -> None:
    assert redacted_url(text) == text


@pytest.mark.parametrize("host", ["db..internal", ".internal", "a" * 70, "caf\udce9"])
def test_a_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    """Otherwise the first connection would raise a UnicodeError."""
    with pytest.raises(ConfigError, match="expected redis://"):
        checked_url(f"redis://{host}:6379/0")
