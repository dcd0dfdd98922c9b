"""Django's DATABASES as a URL of SQLAlchemy, so that a beat works where the project works."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from django.db import connections
from django.db.utils import ConnectionDoesNotExist
from sqlalchemy import URL

from celery_qbeat.errors import SettingsError

OURS = "name a database in qbeat_database_url"

# What Django keeps for itself: how it shares connections and builds rows.
_DJANGO_ONLY: Mapping[str, frozenset[str]] = {
    "sqlite": frozenset({"init_command", "transaction_mode", "check_same_thread", "detect_types", "isolation_level"}),
    "postgresql": frozenset({"isolation_level", "pool", "server_side_binding", "cursor_factory", "client_encoding"}),
    "mysql": frozenset({"isolation_level", "sql_mode", "use_unicode", "conv", "autocommit"}),
}
_SSL = {
    "ca": "ssl_ca",
    "cert": "ssl_cert",
    "key": "ssl_key",
    "capath": "ssl_capath",
    "cipher": "ssl_cipher",
    "check_hostname": "ssl_check_hostname",
}


def database_url(alias: str = "default") -> str:
    """The URL of DATABASES[alias], the password in it. Raises SettingsError for what a URL cannot say."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(connections)
        raise SettingsError(f"qbeat_django_database: {alias!r} is not in DATABASES (known: {known})") from None
    make = _VENDORS.get(connection.vendor)
    if make is None:
        engine = connection.settings_dict["ENGINE"]
        raise SettingsError(
            f"DATABASES[{alias!r}]: {engine} is not supported; use a sqlite3, postgresql or mysql engine, or {OURS}"
        )
    url = make(alias, connection.settings_dict, _options(alias, connection))
    return url.render_as_string(hide_password=False)


def _options(alias: str, connection: Any) -> dict[str, str]:
    """The options that the driver gets, as texts."""
    found: dict[str, str] = {}
    given = dict(connection.settings_dict.get("OPTIONS") or {})
    if connection.vendor == "mysql" and isinstance(given.get("ssl"), Mapping) and given["ssl"]:
        given |= {_SSL.get(name, f"ssl {name}"): value for name, value in given.pop("ssl").items()}
    for name, value in given.items():
        if name in _DJANGO_ONLY[connection.vendor] or value is None:
            continue
        # PyMySQL does not know it.
        unknown = name == "ssl_mode" and _mysql_driver() == "pymysql"
        if unknown or " " in name or not isinstance(value, str | int | float | Path):
            raise SettingsError(f"DATABASES[{alias!r}]: OPTIONS {name!r} cannot be said in a URL; {OURS}")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _sqlite(alias: str, config: Mapping[str, Any], options: dict[str, str]) -> URL:
    name = str(config["NAME"])
    if not name or ":memory:" in name or "mode=memory" in name:
        raise SettingsError(f"DATABASES[{alias!r}]: no other process sees a database in memory; {OURS}")
    options.pop("uri", None)
    if name.startswith("file:"):
        path, _, query = name.partition("?")
        return URL.create("sqlite", database=path, query={"uri": "true", **dict(parse_qsl(query)), **options})
    return URL.create("sqlite", database=str(Path(name).absolute()), query=options)


def _postgresql(_alias: str, config: Mapping[str, Any], options: dict[str, str]) -> URL:
    role = options.pop("assume_role", "")
    if role:
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    driver = "psycopg" if importlib.util.find_spec("psycopg") else "psycopg2"
    return _server(f"postgresql+{driver}", config, options, socket="host")


def _mysql(_alias: str, config: Mapping[str, Any], options: dict[str, str]) -> URL:
    for django, ours in (("db", "database"), ("passwd", "password")):
        if django in options:
            config = {**config, {"database": "NAME", "password": "PASSWORD"}[ours]: options.pop(django)}
    options.setdefault("charset", "utf8mb4")
    return _server(f"mysql+{_mysql_driver()}", config, options, socket="unix_socket")


def _mysql_driver() -> str:
    """PyMySQL may stand in for mysqlclient under its name."""
    client = sys.modules.get("MySQLdb")
    return "pymysql" if client is None or client.__name__ == "pymysql" else "mysqldb"


def _server(driver: str, config: Mapping[str, Any], options: dict[str, str], *, socket: str) -> URL:
    host, port = str(config.get("HOST") or ""), str(config.get("PORT") or "")
    if host.startswith("/"):
        options[socket] = host
        if port and socket == "host":
            options["port"] = port
        host = port = ""
    elif "," in host or (port and not host and socket == "host"):
        # Several hosts, or libpq's own choice of one: it reads these as keywords.
        options |= {name: value for name, value in (("host", host), ("port", port)) if value}
        host = port = ""
    elif port and not host:
        host = "localhost"
    return URL.create(
        driver,
        username=config.get("USER") or None,
        password=config.get("PASSWORD") or None,
        host=host or None,
        port=int(port) if port else None,
        database=config.get("NAME") or None,
        query=options,
    )


_VENDORS: Mapping[str, Callable[[str, Mapping[str, Any], dict[str, str]], URL]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mysql": _mysql,
}
