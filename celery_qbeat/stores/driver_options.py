"""The options of a database URL as its driver wants them: a URL has only texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from celery_qbeat.errors import SettingsError

LIBPQ = frozenset({"psycopg", "psycopg2"})
"""The drivers that hand their options to libpq, which reads texts."""

_EXTRAS = {"postgresql": ("postgresql", "psycopg"), "mysql": ("mysql", "pymysql"), "mariadb": ("mysql", "pymysql")}
"""By the kind of database: our extra, and the driver that it brings."""

_PACKAGES = {
    "psycopg2": "psycopg2-binary",
    "mysqldb": "mysqlclient",
    "mysqlconnector": "mysql-connector-python",
    "mariadbconnector": "mariadb",
    "pymysql": "PyMySQL",
}
"""Drivers whose package has another name."""

_YES_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_UNKNOWN = re.compile(r"""invalid connection option "(\w+)"|keyword argument '(\w+)'|'(\w+)' is an invalid keyword""")
_BAD_VALUE = re.compile(
    r"invalid (\w+ )?value|could not match \d+ port|unrecognized configuration parameter|unsupported startup parameter"
)


def _number(text: str) -> int:
    return int(text)


def _number_or_none(text: str) -> int | None:
    return None if text.lower() in ("", "none") else int(text)


def _yes_or_no(text: str) -> bool:
    return _YES_NO[text.lower()]


def _charset(text: str) -> str:
    from pymysql.charset import charset_by_name

    if charset_by_name(text) is None:
        raise KeyError(text)
    return text


def _seconds(text: str) -> float:
    return float(text)


_WANTED: Mapping[Callable[[str], Any], str] = {
    _number: "a whole number",
    _number_or_none: "a whole number or 'none'",
    _yes_or_no: "true or false",
    _charset: "a character set that PyMySQL knows",
    _seconds: "a number of seconds",
}
_MYSQL: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        ("connect_timeout", "read_timeout", "write_timeout", "client_flag", "max_allowed_packet", "port"), _number
    ),
    **dict.fromkeys(("compress", "local_infile", "use_unicode", "ssl_check_hostname"), _yes_or_no),
}
_READERS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "psycopg": {"prepare_threshold": _number_or_none},
    "pymysql": {
        **_MYSQL,
        "charset": _charset,
        **dict.fromkeys(("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity", "binary_prefix"), _yes_or_no),
    },
    "mysqldb": _MYSQL,
    "pg8000": {"timeout": _number, "tcp_keepalive": _yes_or_no},
    "pysqlite": {"timeout": _seconds},
}
# Objects of Python, and what the store decides itself.
_OURS: Mapping[str, frozenset[str]] = {
    "psycopg": frozenset({"autocommit", "context", "cursor_factory", "row_factory"}),
    "psycopg2": frozenset({"async", "connection_factory", "cursor_factory"}),
    "pymysql": frozenset({"auth_plugin_map", "autocommit", "conv", "cursorclass", "defer_connect"}),
    "mysqldb": frozenset({"autocommit", "conv", "cursorclass"}),
    "pg8000": frozenset({"ssl_context"}),
    "pysqlite": frozenset({"autocommit", "factory", "isolation_level"}),
}
_SQLITE = frozenset({"timeout", "detect_types", "check_same_thread", "cached_statements"})
_FLAT_SSL = ("ssl_ca", "ssl_cert", "ssl_key")


def read(url: sa.URL) -> dict[str, Any]:
    """The options that are not to be given to the driver as texts. Raises SettingsError, which names the option."""
    driver = url.get_driver_name()
    found: dict[str, Any] = {}
    for name, value in url.query.items():
        if name in _OURS.get(driver, ()):
            raise SettingsError(f"qbeat_database_url: the option {name!r} cannot be set in a URL: leave it out")
        if driver == "pysqlite" and "uri" not in url.query and name not in _SQLITE:
            raise SettingsError(
                f"qbeat_database_url: sqlite3 does not know the option {name!r}: leave it out, "
                "or write sqlite:///file:PATH?uri=true with SQLite's own options"
            )
        reader = _READERS.get(driver, {}).get(name)
        if reader is None:
            continue
        if not isinstance(value, str):
            raise SettingsError(f"qbeat_database_url: the option {name!r} is given twice: leave one of them out")
        try:
            found[name] = reader(value)
        except (KeyError, ValueError):
            raise SettingsError(
                f"qbeat_database_url: the option {name!r} must be {_WANTED[reader]}, not {value!r}"
            ) from None
    if driver in ("pymysql", "mysqldb"):
        found = {name: value for name, value in found.items() if name not in ("client_flag", "ssl_check_hostname")}
    return found | _flat_ssl(url) if driver == "pymysql" else found


def _flat_ssl(url: sa.URL) -> dict[str, Any]:
    """TLS as PyMySQL spells it, where SQLAlchemy's dictionary lacks an option: the driver takes one of the two."""
    flat = [name for name in ("ssl_verify_cert", "ssl_verify_identity", "ssl_key_password") if name in url.query]
    if not flat:
        return {}
    for name in ("ssl_capath", "ssl_cipher", "ssl_check_hostname"):
        if name in url.query:
            raise SettingsError(
                f"qbeat_database_url: PyMySQL does not take the option {name!r} together with {flat[0]!r}: "
                "leave one of them out"
            )
    return {"ssl": None, **{name: url.query[name] for name in _FLAT_SSL if name in url.query}}


def missing_driver(url: sa.URL, error: ImportError) -> str:
    """What to install for this URL, or to write instead."""
    backend, driver = url.get_backend_name(), url.get_driver_name()
    extra, ours = _EXTRAS.get(backend, ("", ""))
    package = _PACKAGES.get(driver, driver)
    if driver == ours:
        advice = f"pip install celery_qbeat[{extra}]"
    elif extra:
        advice = f"pip install {package}, or write {backend}+{ours}:// and pip install celery_qbeat[{extra}]"
    else:
        advice = f"pip install {package}"
    return f"qbeat_database_url: {url.drivername} needs a driver that is not installed ({error}): {advice}"


def wait_for_ever(url: sa.URL, options: dict[str, Any]) -> None:
    """Take the driver's own time limits out of `options`."""
    if url.get_driver_name() in ("pymysql", "mysqldb"):
        for name in ("read_timeout", "write_timeout"):
            if name not in url.query:
                options.pop(name, None)


def refusal(url: sa.URL, error: BaseException) -> str:
    """What is wrong with the URL's options when that is why no connection was made; else empty."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if getattr(cause, "sqlstate", None) is not None:
        return ""
    words = str(cause).strip().split("\n")[0]
    unknown = _UNKNOWN.search(words)
    if unknown and isinstance(cause, TypeError | _programming_errors(url)):
        name = next(filter(None, unknown.groups()))
        return f"qbeat_database_url: the driver {url.get_driver_name()} does not know the option {name!r}: leave it out"
    if isinstance(cause, FileNotFoundError | IsADirectoryError) and _names_tls_files(url):
        return f"qbeat_database_url: a file that its ssl_* options name cannot be read: {words}"
    bad_value = url.get_driver_name() in LIBPQ and _BAD_VALUE.search(words)
    if bad_value or isinstance(cause, TypeError | ValueError | _programming_errors(url)):
        return f"qbeat_database_url: {words}"
    return ""


def _programming_errors(url: sa.URL) -> type[Exception]:
    found: type[Exception] = url.get_dialect().import_dbapi().ProgrammingError
    return found


def _names_tls_files(url: sa.URL) -> bool:
    return any(name.startswith("ssl") for name in url.query)
