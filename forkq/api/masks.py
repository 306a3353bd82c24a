"""Which values are secret, by their names, by their form, and by what is known of the parameters of
a job; and what replaces them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from threading import Lock
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from .. import registry
from ..errors import MalformedPayload, WrongType
from ..limits.patterns import decoded_names
from ..servers import Server
from ..wire.parameters import ALL_SECRET, JobParameters
from ..wire.payload import bounded

MASK: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|api_?key|private_?key|access_?key|credential|authori[sz]ation"
    r"|cookie|session|jwt|card_?number|cvv|cvc|iban|(?<![a-z])(ssn|pin|otp|pass)(?![a-z])",
    re.IGNORECASE,
)
# In text. Each pattern looks at a bounded part behind each place where it may begin, so that a long
# text takes no time that grows with its square.
# "key": "value" or "key": 12; of a value that is cut off, all that is there. The quotes may be
# escaped: JSON in JSON.
_PAIR: Final = re.compile(
    r'(\\{0,9}"[^"\\]{1,200}\\{0,9}"\s{0,9}:\s{0,9})(\\{0,9}"(?:[^"\\]|\\.)*"?|[^\s"{}\[\],]+)',
    re.DOTALL,
)
# name=value, as in a URL, a cookie and a connection string.
_SETTING: Final = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]{0,60}=)([^\s&;,\"'<>]+)")
_WORD: Final = re.compile(r"[^\s\"'<>]+")
# scheme://user: before a password, and not before the port of a URL that has an @ further on.
_USER: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/?#@:]{0,200}:(?!\d{1,5}[/?#])"
)
_BEARER: Final = re.compile(
    r"\b((?:bearer|authorization:\s{0,3}\w{1,20})\s{1,3})[A-Za-z0-9._~+/-]{6,}=*", re.IGNORECASE
)
_JWT: Final = re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*")


def is_secret(name: str) -> bool:
    """Whether a key or a parameter of that name has a secret."""
    return _SECRET.search(name) is not None


def has_secrets(known: JobParameters | None) -> bool:
    """Whether a job with these parameters has secret arguments."""
    return known is not None and (known.secret or any(map(is_secret, known.names)))


def masked(value: Any) -> Any:
    """``value`` with its secrets masked: the values of such keys, and what has the form of one."""
    try:
        return _masked(value)
    except RecursionError:
        return MASK


def masked_args(args: Sequence[Any], parameters: JobParameters | None) -> list[Any]:
    """The arguments with their secrets masked, by what is known of their ``parameters``."""
    if parameters is not None and parameters.secret:
        return [MASK] * len(args)
    names = () if parameters is None else _each(parameters.names)
    return [
        MASK if is_secret(name) else masked(arg)
        for arg, name in zip(args, chain(names, repeat("")), strict=False)
    ]


def masked_text(text: str) -> str:
    """A text with its secrets masked: in JSON, passwords in URLs, Bearer and JSON Web Tokens, and
    ``name=value`` with such a name."""
    if (value := _json(text)) is not None:
        shown = masked(value)
        return text if shown == value else msgspec.json.encode(shown).decode()
    return _masked_words(text)


def _masked(value: Any) -> Any:
    if type(value) is dict:
        shown = {}
        for key, item in value.items():  # no generator: it would double the depth of the stack
            shown[key] = MASK if is_secret(key) else _masked(item)
        return shown
    if type(value) is list:
        items = []
        for item in value:
            items.append(_masked(item))  # noqa: PERF401 - as above
        return items
    return masked_text(value) if type(value) is str else value


def _json(text: str) -> Any:
    """The object or array of JSON in the text; None if there is none that can be read."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return msgspec.json.decode(bounded(text.encode()))
    except (ValueError, RecursionError, msgspec.MsgspecError, MalformedPayload):
        return None


def _masked_words(text: str) -> str:
    """The text with its secrets masked. Each pattern is tried where the text has what it begins
    with: most texts have nothing."""
    if '":' in text or '" :' in text:
        text = _PAIR.sub(_masked_pair, text)
    if "://" in text and "@" in text:
        text = _WORD.sub(_masked_url, text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    if "eyJ" in text:
        text = _JWT.sub(MASK, text)
    return _SETTING.sub(_masked_setting, text) if "=" in text else text


def _masked_pair(found: re.Match[str]) -> str:
    """A key and its masked value, in text that is not all JSON: cut off, or with bytes that are no
    text."""
    return f'{found[1]}"{MASK}"' if is_secret(found[1]) else found[0]


def _masked_url(found: re.Match[str]) -> str:
    """A URL with its password masked. A password may have an @ and a /, so it ends at the last @ of
    the word."""
    word: str = found[0]
    user, end = _USER.search(word), word.rfind("@")
    return word if user is None or end < user.end() else f"{word[: user.end()]}{MASK}{word[end:]}"


def _masked_setting(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if is_secret(found[1]) else found[0]


def _each(names: Sequence[str]) -> Iterator[str]:
    """The name of the parameter of each argument, without end if the last parameter takes all
    further ones."""
    for name in names:
        yield from repeat(name) if name.startswith("*") else (name,)


_FRESH: Final = 5.0  # seconds that an answer of Redis is used
_MOST: Final = 1000  # answers that are kept
_LONGEST: Final = 1000  # characters of a name; a payload may have anything there
_Answers: TypeAlias = "dict[str, tuple[float, JobParameters | None]]"

_answers: WeakKeyDictionary[Server, _Answers] = WeakKeyDictionary()
_lock = Lock()


def defined_here(name: str) -> JobParameters | None:
    """The parameters of the job of that name, if this process has imported it."""
    spec = registry.find(name)
    return None if spec is None else JobParameters(spec.parameters, spec.is_secret)


def parameters_of(server: Server, name: str) -> JobParameters | None:
    """The parameters of the job of that name; None if neither this process nor a child has defined
    it. Asks Redis every few seconds at most. Raises ServerUnavailable."""
    found = defined_here(name)
    return _published(server, name) if found is None and 0 < len(name) <= _LONGEST else found


def _published(server: Server, name: str) -> JobParameters | None:
    """The parameters of the job that the last child has published which booted on this server."""
    now = time.monotonic()
    with _lock:
        answers = _answers.setdefault(server, {})
        until, answer = answers.get(name, (0.0, None))
    if now < until:
        return answer
    answer = _ask(server, name)
    with _lock:
        if len(answers) >= _MOST:
            answers.clear()
        answers[name] = (now + _FRESH, answer)
    return answer


def published_names(server: Server) -> list[str]:
    """The names of the jobs that children have published on this server. Raises
    ServerUnavailable."""
    [found] = server.ask_leniently(("HKEYS", server.keys.parameters))
    return sorted(decoded_names(found or ()))


def _ask(server: Server, name: str) -> JobParameters | None:
    try:
        [raw] = server.ask(("HGET", server.keys.parameters, name))
    except WrongType:  # another program has written there: no argument is known to be harmless
        return ALL_SECRET
    return None if raw is None else JobParameters.decode(raw)
