"""The payload: JSON values survive; other values are refused, with job and place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkq.errors import InvalidJob, MalformedPayload
from forkq.wire.payload import dumps, loads, new_jid
from forkq.wire.validation import validate
from tests.support.payloads import DEEP, job, nested

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.lists(JSON_VALUES, max_size=4), st.dictionaries(st.text(), JSON_VALUES, max_size=2))
def test_arguments_and_unknown_keys_come_out_as_they_went_in(
    args: list[Any], extra: dict[str, Any]
) -> None:
    sent = {**extra, "class": "MyJob", "args": args}
    validate({"class": "MyJob", "args": args})
    assert repr(loads(dumps(sent))) == repr(sent)


def test_a_property_is_given_all_the_time_it_takes() -> None:
    """Its settings are made when this module is imported; hypothesis is set up by then."""
    test: Any = test_arguments_and_unknown_keys_come_out_as_they_went_in
    found = test._hypothesis_internal_use_settings
    assert (found.deadline, found.derandomize) == (None, True)


def test_integers_of_any_size_and_empty_things_are_unchanged() -> None:
    values: list[Any] = [
        2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**29, [], {}, [[]], [{}], {"k": []}, "",
        "\u2028é😀/", 1e-7, 1.0, 1e20, True, None,
    ]  # fmt: skip
    for value in values:
        validate(job(args=[value]))
        found = loads(dumps(job(args=[value])))["args"][0]
        assert (type(found), found) == (type(value), value)


def test_a_mebibyte_goes_through() -> None:
    text = "é" * (1 << 19)
    assert loads(dumps(job(args=[text])))["args"] == [text]


NO_JOBS = [
    b"", b" ", b"{", b"{nope", b"[1,2]", b'"abc"', b"42", b"null", b"true", b"{}", b'{"args":[]}',
    b'{"class":null}', b'{"class":1}', b'{"class":["A"]}', b'{"class":"A"', b'{"class":"A"} x',
    b'{"class":"A"}{"class":"A"}', b'{"class":"A","args":[NaN]}',
    b'{"class":"A","args":[Infinity]}',
    b'{"class":"A","args":[1e400]}', b'{"class":"A","args":["\xff\xfe"]}',
    b'{"class":"A","\xff":1}',
    b"\xef\xbb\xbf{}", b"\x80\x04}q\x00.", b"\x00", b"{'class':'A'}", b'{"class":"A",}',
    b'{"class":"A","args":["\\ud800"]}', b'{"class":"A","args":["\x01"]}',
    b'{"class":"A","args":[01]}',
    b'{"class":"A","args":[' + b"1" * 5000 + b"]}",
    b'{"class":"A","args":' + b"[" * DEEP + b"]" * DEEP + b"}",
]  # fmt: skip


def test_bytes_that_are_no_job_are_malformed_and_nothing_worse() -> None:
    assert [raw[:24] for raw in NO_JOBS if not is_malformed(raw)] == []


def is_malformed(raw: bytes) -> bool:
    try:
        loads(raw)
    except MalformedPayload:
        return True
    return False


@given(st.binary())
def test_random_bytes_raise_only_malformed_payload(raw: bytes) -> None:
    try:
        found = loads(raw)
    except MalformedPayload:
        return
    assert type(found["class"]) is str


def test_a_malformed_payload_says_why_without_showing_it() -> None:
    with pytest.raises(MalformedPayload, match="a JSON array, not an object"):
        loads(b'["secret"]')
    with pytest.raises(MalformedPayload, match=r"^null, not an object"):
        loads(b"null")
    with pytest.raises(MalformedPayload, match="`class` is missing") as caught:
        loads(b'{"args":["secret"]}')
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("\ud800", r"args\[0\] has half a surrogate pair"),
        (
            {"a": [1, {"\udfff": 1}]},
            r"the key args\[0\]\['a'\]\[1\]\[.*\] has half a surrogate pair",
        ),
        (nested(DEEP), "nested too deeply"),
        (10**5000, r"args\[0\] is a number of about 5,001 digits.*hex"),
        ([object()], r"args\[0\]\[0\] is an object.*pass an id"),
    ],
    ids=["surrogate", "key", "deep", "big", "object"],
)
def test_what_json_cannot_carry_is_an_invalid_job_when_written(value: Any, why: str) -> None:
    with pytest.raises(InvalidJob, match=f"'MyJob': .*{why}"):
        dumps(job(args=[value]))


def test_a_jid_is_24_lowercase_hex_digits_and_new_each_time() -> None:
    jids = {new_jid() for _ in range(1000)}
    assert len(jids) == 1000
    assert all(re.fullmatch("[0-9a-f]{24}", jid) for jid in jids)
