"""Who may see the web UI, who may act, and what a browser may do with a page."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from html import unescape

import pytest
from redis import Redis
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

import forkq
from forkq.config.web_table import WebTable
from forkq.errors import ConfigError
from forkq.web import WebSettings, audit, by_header
from forkq.web.access import settings_of
from forkq.web.passwords import hash_password
from tests.web.shared import HOSTILE, act, client_of, token

PAUSE = "/queue/pause"
SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(autouse=True)
def _redis(api_client: None) -> None:
    forkq.default_client.default().push({"class": "Mail", "args": []})


@pytest.fixture(scope="module")
def password_hash() -> str:
    return hash_password("correct horse")


def basic(user: str, password: str) -> dict[str, str]:
    both = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {both}"}


class TestForms:
    def test_one_with_the_token_of_the_page_acts(self, web: TestClient) -> None:
        assert act(web, PAUSE, name="default").status_code == 303
        assert forkq.api.Queue("default").paused

    @pytest.mark.parametrize("sent", ["", "A" * 43])
    def test_one_without_the_right_token_does_not(self, web: TestClient, sent: str) -> None:
        token(web)
        answer = web.post(PAUSE, data={"name": "default", "csrf": sent}, headers=SAME)
        assert answer.status_code == 403
        assert not forkq.api.Queue("default").paused

    def test_a_token_without_its_cookie_is_none(self, web: TestClient) -> None:
        answer = client_of().post(PAUSE, data={"name": "default", "csrf": token(web)}, headers=SAME)
        assert answer.status_code == 403

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ],
    )
    def test_one_of_another_site_does_not(self, web: TestClient, headers: dict[str, str]) -> None:
        answer = web.post(PAUSE, data={"name": "default", "csrf": token(web)}, headers=headers)
        assert answer.status_code == 403
        assert not forkq.api.Queue("default").paused

    def test_a_get_never_acts(self, web: TestClient) -> None:
        assert web.get(f"{PAUSE}?name=default").status_code == 405

    def test_one_that_is_too_large_is_refused(self, web: TestClient) -> None:
        assert act(web, PAUSE, name="x" * 2_000_000).status_code == 413


class TestAnswers:
    @pytest.mark.parametrize("path", ["/queues", "/nowhere", "/queue?name=a*"])
    def test_forbid_what_the_page_does_not_need(self, web: TestClient, path: str) -> None:
        answer = web.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_have_a_nonce_that_is_used_once(self, web: TestClient) -> None:
        nonces = {
            part
            for _ in range(2)
            for part in web.get("/queues").headers["content-security-policy"].split()
            if part.startswith("'nonce-")
        }
        assert len({nonce.rstrip(";") for nonce in nonces}) == 2

    def test_have_no_inline_script_or_style(self, web: TestClient) -> None:
        html = web.get("/queues").text
        assert "<script src=" in html
        assert "<script>" not in html
        assert "<style" not in html
        assert " style=" not in html
        assert " onclick=" not in html

    def test_keep_the_cookie_from_scripts_and_other_sites(self, web: TestClient) -> None:
        cookie = client_of(base_url="https://localhost").get("/queues").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Secure" in cookie


class TestWithoutAuthentication:
    def test_another_host_is_refused(self) -> None:
        assert client_of(client=("192.0.2.1", 1)).get("/queues").status_code == 403

    def test_a_proxy_for_another_host_is_refused(self) -> None:
        answer = client_of().get("/queues", headers={"X-Forwarded-For": "192.0.2.1"})
        assert answer.status_code == 403

    @pytest.mark.parametrize(
        "name", ["Via", "X-Forwarded-Proto", "X-Forwarded-Port", "Forwarded", "CF-Connecting-IP"]
    )
    def test_a_proxy_that_names_only_itself_is_refused(self, name: str) -> None:
        assert client_of().get("/queues", headers={name: "1.1 a"}).status_code == 403

    @pytest.mark.parametrize(
        "host",
        [
            "localhost:80:80", "localhost:", "localhost:port", "localhost/a", "[::1", "::1",
            "[::1]x", "local host", "localhost@evil.example", "localhost:123456", "a" * 300,
        ],
    )  # fmt: skip
    def test_a_malformed_host_is_refused(self, host: str) -> None:
        for settings in (None, WebSettings(authenticate=lambda _: "ann")):
            answer = client_of(settings).get("/static/forkq.css", headers={"Host": host})
            assert answer.status_code == 400

    def test_two_hosts_are_refused(self) -> None:
        two = [("Host", "localhost"), ("Host", "localhost")]
        assert client_of().get("/static/forkq.css", headers=two).status_code == 400

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
    def test_a_rebound_name_is_refused(self, host: str) -> None:
        assert client_of().get("/queues", headers={"Host": host}).status_code == 421

    @pytest.mark.parametrize("host", ["127.0.0.1:9293", "[::1]:9293", "LOCALHOST"])
    def test_the_names_of_this_host_are_served(self, web: TestClient, host: str) -> None:
        assert web.get("/queues", headers={"Host": host}).status_code == 200


class TestPassword:
    @pytest.fixture
    def guarded(self, password_hash: str) -> Iterator[TestClient]:
        settings = settings_of(WebTable(listen="0.0.0.0:9293", password_hash=password_hash))
        with client_of(settings, client=("192.0.2.1", 1), base_url="http://jobs.example") as client:
            yield client

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            basic("ann", "wrong"),
            basic("ann", ""),
            {"Authorization": "Basic ?"},
            {"Authorization": "Bearer correct horse"},
        ],
    )
    def test_without_it_nothing_is_shown(
        self, guarded: TestClient, headers: dict[str, str]
    ) -> None:
        for path in ("/queues", "/static/forkq.css", "/nowhere"):
            answer = guarded.get(path, headers=headers)
            assert answer.status_code == 401
            assert "forkq_csrf" not in answer.text

    def test_with_it_the_audit_log_names_the_user(
        self, guarded: TestClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        guarded.headers.update(basic("ann", "correct horse"))
        with caplog.at_level(logging.INFO, "forkq.web.audit"):
            assert act(guarded, PAUSE, name="default").status_code == 303
        [line] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
        assert isinstance(line, dict)
        assert (line["user"], line["action"]) == ("ann", "pause queue")

    def test_a_refused_one_is_in_the_audit_log_without_it(
        self,
        guarded: TestClient,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(audit, "_PERIOD", 3600)  # a machine may stand still
        guarded.get("/queues")  # the browser has not asked for the password yet
        guarded.get("/queues", headers=basic("eve", "a guess"))

        def told() -> list[object]:
            return [record.msg for record in caplog.records if record.name == "forkq.web.audit"]

        [line] = told()
        assert line == {
            "event": "web sign-in refused", "user": "eve", "address": "192.0.2.1",
            "path": "/queues",
        }  # fmt: skip
        for _ in range(40):
            guarded.get("/queues", headers=basic("eve", "a guess"))
        assert len(told()) == 20
        assert "a guess" not in caplog.text

    def test_it_is_hashed_differently_each_time(self, password_hash: str) -> None:
        assert hash_password("correct horse") != password_hash


class TestConfiguration:
    @pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"])
    def test_beyond_the_loopback_it_needs_an_authentication(self, address: str) -> None:
        with pytest.raises(ConfigError, match=r"web.password_hash \(forkq web hash-password\)"):
            settings_of(WebTable(listen=address))
        assert settings_of(WebTable(listen=address, user_header="X-User")).authenticate

    @pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"])
    def test_on_the_loopback_it_needs_none(self, address: str) -> None:
        assert settings_of(WebTable(listen=address)).authenticate is None

    def test_two_authentications_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="keep one of them"):
            settings_of(WebTable(user_header="X-User", authenticate="a:b"))

    @pytest.mark.parametrize("target", ["no.such.module:f", "os.path:nothing", "os:sep"])
    def test_a_function_that_is_not_there_is_refused(self, target: str) -> None:
        with pytest.raises(ConfigError, match=r"web.authorize: "):
            settings_of(WebTable(authorize=target))

    def test_the_header_of_a_proxy_names_the_user(self) -> None:
        settings = settings_of(
            WebTable(listen="0.0.0.0:1", user_header="X-User", proxies=("192.0.2.0/24",))
        )
        client = client_of(settings, client=("192.0.2.1", 1))
        assert client.get("/static/forkq.css", headers={"X-User": "ann"}).status_code == 200
        assert client.get("/static/forkq.css").status_code == 401
        two = [("X-User", "ann"), ("X-User", "bob")]
        assert client.get("/static/forkq.css", headers=two).status_code == 401
        mapped = client_of(settings, client=("::ffff:192.0.2.1", 1))
        assert mapped.get("/static/forkq.css", headers={"X-User": "ann"}).status_code == 200

    @pytest.mark.parametrize("peer", ["192.0.3.1", "127.0.0.1", "2001:db8::1", ""])
    def test_the_header_is_believed_from_the_named_proxies_alone(self, peer: str) -> None:
        """``curl -H 'X-User: boss'`` would have every action."""
        by_name = WebSettings(authenticate=by_header("X-User", ["192.0.2.0/24"]))
        client = client_of(by_name, client=(peer, 1))
        assert client.get("/static/forkq.css", headers={"X-User": "boss"}).status_code == 401

    def test_without_names_the_loopback_is_believed(self) -> None:
        settings = settings_of(WebTable(listen="0.0.0.0:1", user_header="X-User"))
        for peer, status in (("127.0.0.1", 200), ("::1", 200), ("192.0.2.1", 401)):
            client = client_of(settings, client=(peer, 1))
            answer = client.get("/static/forkq.css", headers={"X-User": "ann"})
            assert answer.status_code == status

    def test_only_the_hosts_that_are_named_are_served(self) -> None:
        settings = WebSettings(authenticate=lambda _: "ann", hosts=("jobs.example",))
        client = client_of(settings)
        static = "/static/forkq.css"
        assert client.get(static, headers={"Host": "jobs.example:80"}).status_code == 200
        assert client.get(static, headers={"Host": "other.example"}).status_code == 421


class TestRoles:
    def test_a_hook_decides_on_each_action(self, caplog: pytest.LogCaptureFixture) -> None:
        def user_of(request: HTTPConnection) -> str:
            return request.headers["x-user"]

        asked: list[tuple[str, str]] = []

        def may(user: str, what: str) -> bool:
            asked.append((user, what))
            return user == "boss"

        settings = WebSettings(authenticate=user_of, authorize=may)
        with client_of(settings, headers={"X-User": "guest"}) as client:
            assert "Pause" not in client.get("/queues").text
            assert act(client, PAUSE, name="default").status_code == 403
            assert "'web action refused', 'user': 'guest', 'action': 'pause queue'" in caplog.text
            assert not forkq.api.Queue("default").paused
            client.headers["X-User"] = "boss"
            assert "Pause" in client.get("/queues").text
            assert act(client, PAUSE, name="default").status_code == 303
        assert ("guest", "pause queue") in asked
        assert forkq.api.Queue("default").paused

    def test_read_only_offers_and_does_nothing(self) -> None:
        with client_of(WebSettings(read_only=True)) as client:
            html = client.get("/queues").text
            assert "default" in html
            assert 'method="post"' not in html
            assert act(client, PAUSE, name="default").status_code == 403
        assert not forkq.api.Queue("default").paused

    def test_who_may_only_look_cannot_try_what_is_masked(self, redis: Redis) -> None:
        """No link, checkbox or place of a page has a digest that a guess could have, too."""
        # With digits around it that no random key on a page has by chance.
        payload = '{"class":"Pay","args":[{"cvv":8250%03d6319}],"queue":"q","jid":"a"}'
        for number in range(60):  # so that there is a second page
            redis.zadd("dead", {payload % 417: 1.5, f"{number}": 2.5})
        guesses = {
            hashlib.blake2b((payload % cvv).encode(), digest_size=8).hexdigest()
            for cvv in range(1000)
        }
        with client_of(WebSettings(read_only=True)) as client:
            seen = [client.get(path) for path in ("/dead?job=Pay", "/dead", "/search?q=a")]
            links = re.findall(r'"(/job\?[^"]*)"', seen[0].text)
            seen += [client.get(unescape(link)) for link in links]
        assert len(links) == 1
        assert "cvv" in seen[-1].text  # the page of that job
        texts = [page.text for page in seen]
        assert not any(guess in text for guess in guesses for text in texts)
        assert not any("82504176319" in text for text in (texts[0], texts[-1]))


class TestHostileData:
    def test_names_are_escaped(self, web: TestClient, redis: Redis) -> None:
        job = {"class": HOSTILE, "args": [HOSTILE], "jid": "a", "queue": HOSTILE}
        redis.sadd("queues", HOSTILE)  # another program has pushed to it
        redis.lpush(f"queue:{HOSTILE}", json.dumps(job))
        for path in ("/queues", "/", "/search?q=%3Cscript%3Ealert(1)%3C/script%3E"):
            html = web.get(path).text
            assert "<img src=x" not in html
            assert "<script>" not in html

    @pytest.mark.parametrize(
        "payload",
        [
            b"no json \xff\x00\x1b[31m",
            b"[1]",
            b'{"class": null, "args": 1, "jid": 5, "enqueued_at": "x"}',
            rb'{"class": "\ud800", "args": ["\ud800"], "jid": "\ud800\u0000", "queue": "\udfff"}',
            b'{"class": "A", "args": ' + b"[" * 900 + b"]" * 900 + b', "jid": "a"}',
            b'{"class": "A", "args": ["' + b"x" * 1_000_000 + b'"], "jid": "b"}',
            b'{"class": "A", "args": [], "jid": "c", "enqueued_at": 1e300, "created_at": -1e300}',
        ],
        ids=["bytes", "array", "types", "surrogates", "deep", "large", "times"],
    )
    def test_no_payload_breaks_a_page(self, web: TestClient, redis: Redis, payload: bytes) -> None:
        redis.sadd("queues", "bad")
        redis.lpush("queue:bad", payload)
        redis.zadd("dead", {payload: 1})
        for path in ("/", "/queues", "/queue?name=bad", "/busy", "/search?q=A"):
            answer = web.get(path)
            assert answer.status_code == 200
            assert len(answer.text) < 100_000

    def test_a_message_in_a_cookie_is_escaped_and_shown_once(
        self, web: TestClient, redis: Redis
    ) -> None:
        redis.sadd("queues", "<b>x</b>")
        act(web, PAUSE, name="<b>x</b>")
        html = web.get("/queues").text
        assert "Paused &lt;b&gt;x&lt;/b&gt;" in html
        assert "Paused" not in web.get("/queues").text.partition("<main")[2].partition("<h1>")[0]

    @pytest.mark.parametrize("cookie", ["!", "e30=", "A" * 32, "A" * 5000])
    def test_a_message_that_a_client_has_made_is_not_shown(
        self, web: TestClient, cookie: str
    ) -> None:
        forged = base64.urlsafe_b64encode(b'{"text":"call 555","undo":null}').decode()
        for value in (cookie, forged):
            answer = web.get("/queues", headers={"Cookie": f"forkq_message={value}"})
            assert answer.status_code == 200
            assert 'class="flash"' not in answer.text
