"""Fields whose columns are exactly those of `celery_qbeat.stores.tables`, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connections, models
from django.db.models.fields.json import KeyTransform
from django.db.models.fields.related_descriptors import ReverseOneToOneDescriptor
from django.db.models.query_utils import DeferredAttribute

from celery_qbeat.core.limits import MAX_PAYLOAD
from celery_qbeat.core.payload import read_json
from celery_qbeat.core.schedules import KINDS, parse
from celery_qbeat.core.schedules.time_zones import zone_named
from celery_qbeat.errors import ScheduleError

MOST_BYTES = 65_535
"""What a column `text` of MySQL holds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Converted(DeferredAttribute):
    """An attribute that is converted when it is set, so that what was saved and what is read are the same."""

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = self.field.converted(value)


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
    """Microseconds since the epoch, UTC. An aware `datetime` may be given in their place, also in lookups."""

    descriptor_class = _Converted

    def converted(self, value: Any) -> Any:
        """The microseconds of a datetime; anything else as it is. Raises ValueError for one without a time zone."""
        if not isinstance(value, datetime):
            return value
        if value.tzinfo is None:
            raise ValueError(f"{self.name}: {value!r} has no time zone; write e.g. django.utils.timezone.now()")
        return (value - _EPOCH) // timedelta(microseconds=1)

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(self.converted(value))

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> int | str | None:
        """SQLite lets people store anything: what is no whole number comes as the text that errors quote."""
        if value is None or type(value) is int:
            return value
        return value if isinstance(value, str) else repr(value)


class Count(models.BigIntegerField):
    """A number of things."""


class _SameInMigrations:
    """A mixin of fields that add behaviour in Python only: in migrations each is the field `in_migrations`."""

    in_migrations = f"{__name__}.TextLine"

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()  # type: ignore[misc]
        return name, self.in_migrations, args, options


class TaskName(_SameInMigrations, Key):
    """The name of a task. A task may be given in its place, also in lookups."""

    in_migrations = f"{__name__}.Key"
    descriptor_class = _Converted

    def converted(self, value: Any) -> Any:
        """The name of a task; anything else as it is. Raises TypeError for a function that is no task."""
        if not callable(value):
            return value
        if not isinstance(getattr(value, "name", None), str):
            raise TypeError(f"{self.name}: {value!r} is not a task; give a task of the Celery app, or its name")
        return value.name

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(self.converted(value))


class KindName(_SameInMigrations, TextLine):
    """A kind of schedule."""

    @staticmethod
    def _known(value: str) -> None:
        if value not in KINDS:
            raise ValidationError(f"{value!r} is no kind of schedule; write one of {', '.join(KINDS)}.")

    default_validators = (_known,)


class ScheduleText(_SameInMigrations, TextLine):
    """The text of a schedule. Alone it must be one of some kind; `Job.clean` knows of which."""

    @staticmethod
    def _fits_a_kind(value: str) -> None:
        if not any(_parses(kind, value) for kind in KINDS):
            raise ValidationError(
                f"{value!r} is no schedule of any kind; write e.g. "
                + ", ".join(f"{KINDS[kind].example!r} ({kind})" for kind in KINDS)
                + "."
            )

    default_validators = (_fits_a_kind,)


class ZoneName(_SameInMigrations, TextLine):
    """The IANA name of a time zone."""

    @staticmethod
    def _known(value: str) -> None:
        try:
            zone_named(value)
        except ScheduleError as error:
            raise ValidationError(str(error)) from None

    default_validators = (_known,)


class _NoneInPlaceOfAbsent(ReverseOneToOneDescriptor):
    """The other end of a relation: None where there is no row, instead of an exception."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        try:
            return super().__get__(instance, cls)
        except self.RelatedObjectDoesNotExist:
            return None


class OptionalOneToOne(_SameInMigrations, models.OneToOneField):
    """A one-to-one relation whose other end is None as long as there is no row."""

    in_migrations = "django.db.models.OneToOneField"
    related_accessor_class = _NoneInPlaceOfAbsent


def _parses(kind: str, text: str) -> bool:
    try:
        parse(kind, text)
    except ScheduleError:
        return False
    return True


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
