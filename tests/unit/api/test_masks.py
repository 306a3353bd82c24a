"""What is masked, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forkq.api.masks import masked, masked_args, masked_text
from forkq.wire.parameters import ALL_SECRET, JobParameters

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("bearer 0123456789abcdef== said", "bearer *** said"),
        ("authorization: Basic dXNlcjpwdw==", "authorization: Basic ***"),
        (f"signed in with {JWT}.", "signed in with ***."),
        ("postgres://u:PW@h", "postgres://u:***@h"),
        ("no route to redis://:PW@h:6379/0!", "no route to redis://:***@h:6379/0!"),
        ("DSN=postgres+psycopg://u:p@ss/w?#d@h/db", "DSN=postgres+psycopg://u:***@h/db"),
        ("redis://u:a@h1,redis://u:b@h2", "redis://u:***@h2"),
        ("redis://u:a@h1 redis://u:b@h2", "redis://u:***@h1 redis://u:***@h2"),
        ("mongodb://u:PW@h1:1,h2:2/db", "mongodb://u:***@h1:1,h2:2/db"),
        ("postgres://h/db?user=u&password=PW&x=1", "postgres://h/db?user=u&password=***&x=1"),
        ("host=h password=PW dbname=d", "host=h password=*** dbname=d"),
        ("Cookie: sessionid=PW; theme=dark", "Cookie: sessionid=***; theme=dark"),
        ('{"user": 7, "session": "PW"}', '{"user":7,"session":"***"}'),
        ('[{"jwt": "PW"}]', '[{"jwt":"***"}]'),
        ('{"url": "postgres://u:PW@h"}', '{"url":"postgres://u:***@h"}'),
        ('sent {"token": "PW", "to": "x"} to it', 'sent {"token": "***", "to": "x"} to it'),
        ('{"token": "PW', '{"token": "***"'),
        (json.dumps({"a": json.dumps({"pin": 1})}), '{"a":"{\\"pin\\":\\"***\\"}"}'),
        ('log: {\\"token\\": \\"PW\\"', 'log: {\\"token\\": "***"'),
    ],
)
def test_what_has_the_form_of_a_secret(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked({"note": [text]}) == {"note": [shown]}
    assert masked_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the bearer of this letter",
        "http://localhost:8080/a?to=ann@example.org",
        "https://example.org/@ann",
        "ann@example.org",
        "a=1&b=2",
        '{ "user":   7 }',
        "[1, 2",
        "{not JSON}",
        "[" * 5000,
        "1e400",
        '{"a": 1e400}',
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert masked_text(text) == text


@pytest.mark.parametrize("name", ["session", "session_id", "PHPSESSIONID", "jwt", "id_jwt"])
def test_names_of_secrets(name: str) -> None:
    assert masked({name: "x"}) == {name: "***"}
    assert masked_args(["x", 1], JobParameters((name, "to"))) == ["***", 1]


def test_parameters() -> None:
    args: list[Any] = ["a", {"pin": 1}, "postgres://u:PW@h"]
    assert masked_args(args, None) == ["a", {"pin": "***"}, "postgres://u:***@h"]
    assert masked_args(args, JobParameters(("to", "*tokens"))) == ["a", "***", "***"]
    assert masked_args(args, ALL_SECRET) == ["***"] * 3


@pytest.mark.parametrize("raw", [b"", b"1", b"[]", b"\xff", b'{"names": 1}', b'{"secret": "no"}'])
def test_parameters_that_cannot_be_read_hide_all(raw: bytes) -> None:
    assert JobParameters.decode(raw) is ALL_SECRET


def test_parameters_of_a_later_version_are_read() -> None:
    raw = b'{"names": ["a"], "secret": false, "more": {}}'
    assert JobParameters.decode(raw) == JobParameters(("a",))
    assert JobParameters.decode(JobParameters(("a", "*b"), secret=True).encode()).secret
