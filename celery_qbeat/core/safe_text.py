"""Text that is safe to log and to print: no password of a URL, no control characters of strangers. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

WRITE_IT_ENCODED = (
    "in a user or password write %2F for /, %3F for ?, %23 for #, %40 for @, %3A for :, %25 for %, %26 for &"
)

_SECRET_NAME = re.compile("pass|pwd|secret|token|credential", re.IGNORECASE)
_PARAMETER = re.compile(r"[?&]([^=&?]*)=")
_KNOWN = (
    "(?:(?:py)?amqp|redis|sentinel|unix|http|sqla|sqlalchemy|sqlite|postgres|postgresql|mysql|mariadb|oracle|mssql"
    "|memory|filesystem|mongodb|sqs|slmq|zookeeper|consul|etcd|kafka|confluentkafka|azureservicebus"
    r"|azurestoragequeues|gcpubsub|pgmq|pyro|qpid|librabbitmq)s?(?:\+[\w+]+)?"
)
"""Schemes of brokers and databases. Any other word before `://` may be a part of a password."""

_KNOWN_SCHEME = re.compile(_KNOWN, re.IGNORECASE)
_NEXT_URL = re.compile(f";(?={_KNOWN}://)", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d*)?|")
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*@[^\s'\"<>]*")
_EXAMPLE = re.compile(r"[a-z+]+://(?:user)?:password@[^@]*")
"""What our own messages say of how to write a URL."""

_FILES = frozenset({"unix", "redis+socket", "sqlite", "filesystem"})


def one_line(text: object) -> str:
    """A text on one line: line breaks, terminal escapes, bidi controls and the like become visible escapes (`\\n`)."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in shown)


def hide_secrets(url: str) -> str:
    """A URL, or a list of URLs separated by `;`, without user, password and secret parameters.

    In a URL that is written wrongly nobody knows where the password ends. So everything before the last `@` counts as
    user and password, everything from the first secret parameter on as its value, and what has no readable host is
    hidden as a whole. The next URL of a list begins at a `;` before a scheme of a broker or a database; any
    other `;` may be a part of a password.
    """
    return ";".join(_hide_in_one(piece) for piece in _NEXT_URL.split(url))


def hide_secrets_in_text(text: str) -> str:
    """A sentence in which each URL with an `@` is replaced by `hide_secrets` of it; examples stay."""
    return _URL_IN_TEXT.sub(_hide_found, text) if "://" in text else text


def _hide_found(found: re.Match[str]) -> str:
    return found[0] if _EXAMPLE.fullmatch(found[0]) else hide_secrets(found[0])


def has_misplaced_at(url: str) -> bool:
    """Whether an `@` follows the host: then the user or password has a raw `/`, `?` or `#` in it, as a rule.

    An `@` in the path of a file without user and password, or in the value of a parameter with a secret name, is in its
    place. Raises ValueError for a text that is no URL.
    """
    parts = urlsplit(url)
    path = "" if parts.scheme in _FILES and not parts.netloc else parts.path
    query, secret = _before_secrets(f"?{parts.query}")
    return any("@" in part for part in (path, query, "" if secret else parts.fragment))


def is_secret(name: str) -> bool:
    """Whether a URL's parameter of this name holds a password."""
    return _SECRET_NAME.search(unquote(name)) is not None


def _hide_in_one(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isascii() or not re.fullmatch(r"[\w+.-]*", scheme):
        return HIDDEN
    shown, secret = _before_secrets(rest)
    is_file = scheme in _FILES and rest.startswith("/")
    if "@" in secret:
        # Perhaps the end of a user and password that have a raw ? in them.
        return f"{scheme}://{HIDDEN}"
    if "@" in shown and not is_file:
        before = f"{scheme}://" if _KNOWN_SCHEME.fullmatch(scheme) else ""
        return f"{before}{HIDDEN}@{shown.rpartition('@')[2]}{secret and HIDDEN}"
    if not is_file and not _HOST.fullmatch(re.split(r"[/?#]", shown, maxsplit=1)[0]):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{shown}{secret and HIDDEN}"


def _before_secrets(rest: str) -> tuple[str, str]:
    """A URL up to the value of the first parameter that is secret, and what follows."""
    for found in _PARAMETER.finditer(rest):
        if is_secret(found[1]):
            return rest[: found.end()], rest[found.end() :]
    return rest, ""
