"""Fields whose columns are exactly those of `celery_qbeat.stores.tables`, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connections, models
from django.db.models.fields.json import KeyTransform

from celery_qbeat.limits import MAX_PAYLOAD
from celery_qbeat.payload import read_json

MOST_BYTES = 65_535
"""What a column `text` of MySQL holds."""


class TextLine(models.CharField):
    """A short text, spelled so that PostgreSQL gets no second index for LIKE."""

    def db_type(self, connection: Any) -> str:
        if connection.vendor == "postgresql":
            return f"character varying({self.max_length})"
        return f"varchar({self.max_length})"


class Key(TextLine):
    """A short text that is compared byte for byte; the usual collations of MySQL fold case and accents."""

    def db_type(self, connection: Any) -> str:
        if connection.vendor == "mysql":
            return f"varchar({self.max_length}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        return super().db_type(connection)


def _at_most_64_kib(value: str) -> None:
    size = len(value.encode())
    if size > MOST_BYTES:
        raise ValidationError(f"This is {size:,} bytes long; at most {MOST_BYTES:,} fit.")


class Text(models.TextField):
    """A text of up to 64 KiB."""

    default_validators = (_at_most_64_kib,)

    def db_type(self, connection: Any) -> str:
        return "text"


class Flag(models.BooleanField):
    """True or false and nothing else: SQLite would store 'false' as a true text, MySQL any number."""

    def db_type(self, connection: Any) -> str:
        return "boolean" if connection.vendor == "sqlite" else str(super().db_type(connection))

    def db_check(self, connection: Any) -> str | None:
        if connection.vendor == "postgresql":
            return None
        return f"{connection.ops.quote_name(self.column)} IN (0, 1)"


class UnreadJson(str):
    """JSON beyond the limits of rows, as the text that the database has: it is shown and judged, never decoded."""

    __slots__ = ()


class Json(models.JSONField):
    """JSON where the database knows it, checked text on SQLite."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if not isinstance(value, str) or isinstance(expression, KeyTransform):
            return super().from_db_value(value, expression, connection)
        if len(value) <= MAX_PAYLOAD:
            with suppress(ValueError):
                return read_json(value)
        return UnreadJson(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if isinstance(value, UnreadJson):
            return str(value)
        return super().get_db_prep_value(value, connection, prepared)


class Instant(models.BigIntegerField):
    """Microseconds since the epoch, UTC."""

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> int | str | None:
        """SQLite lets people store anything: what is no whole number comes as the text that errors quote."""
        if value is None or type(value) is int:
            return value
        return value if isinstance(value, str) else repr(value)


class Count(models.BigIntegerField):
    """A number of things."""


class ReadableQuerySet(models.QuerySet):
    """Rows of which SQLite has texts that are no UTF-8: their bytes are shown as escapes instead of ending the page."""

    def _fetch_all(self) -> None:
        with _any_text(self.db):
            super()._fetch_all()

    def iterator(self, *args: Any, **options: Any) -> Iterator[Any]:
        with _any_text(self.db):
            yield from super().iterator(*args, **options)


@contextmanager
def _any_text(alias: str) -> Iterator[None]:
    connection = connections[alias]
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()
    driver = connection.connection
    before, driver.text_factory = driver.text_factory, partial(str, encoding="utf-8", errors="backslashreplace")
    try:
        yield
    finally:
        driver.text_factory = before
