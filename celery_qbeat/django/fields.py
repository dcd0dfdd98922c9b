"""Fields whose columns are exactly those of `celery_qbeat.stores.tables`, on every database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

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


class Json(models.JSONField):
    """JSON where the database knows it, checked text on SQLite."""


class Instant(models.BigIntegerField):
    """Microseconds since the epoch, UTC."""


class Count(models.BigIntegerField):
    """A number of things."""
