"""Form fields for columns that are no fun to type: weekdays, dates, instants, JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html
from django.utils.safestring import SafeString

from celery_qbeat.core.limits import MAX_PAYLOAD
from celery_qbeat.core.payload import BeyondLimits, read_json
from celery_qbeat.core.schedules import parse_dates, parse_days
from celery_qbeat.django.fields import UnreadJson
from celery_qbeat.django.forms.widgets import Boxes, JsonText, LocalTime
from celery_qbeat.errors import ScheduleError

WEEKDAYS = (
    ("1", "Mon"),
    ("2", "Tue"),
    ("3", "Wed"),
    ("4", "Thu"),
    ("5", "Fri"),
    ("6", "Sat"),
    ("0", "Sun"),
)


SHOWN_UNREAD = 1_000
"""Characters shown of JSON that is too long."""

# A character that PostgreSQL or MariaDB cannot store: NUL, half of a pair. Escaped backslashes and pairs are skipped.
_ESCAPE = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class WeekdaysField(forms.MultipleChoiceField):
    """Seven boxes for a column like `1,2,3` or `mon-fri`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=WEEKDAYS, widget=Boxes, required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        """The boxes of a row's text; none for a text that is no list of weekdays (the row's problem names it)."""
        if not isinstance(value, str):
            return value
        try:
            return [str(day) for day in sorted(parse_days(value))]
        except ScheduleError:
            return []

    def clean(self, value: Any) -> str:
        return ",".join(sorted(super().clean(value)))

    def has_changed(self, initial: Any, data: Any) -> bool:
        """A text that is no list of weekdays has no boxes, so whatever is ticked is something else."""
        boxes = set(self.prepare_value(initial) or ())
        return boxes != set(data or ()) or bool(initial and not boxes)


class DatesField(forms.CharField):
    """One date a line, or with commas; the column has commas."""

    def __init__(self, **options: Any) -> None:
        widget = forms.Textarea(attrs={"rows": 4, "cols": 24, "class": "qb-dates", "placeholder": "2026-12-25"})
        super().__init__(required=False, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        return value.replace(" ", "").replace(",", "\n") if isinstance(value, str) else value

    def clean(self, value: Any) -> str:
        words = super().clean(value).replace(",", " ").split()
        text = ",".join(words)
        try:
            parse_dates(text)
        except ScheduleError as error:
            raise ValidationError(str(error)) from None
        return text

    def has_changed(self, initial: Any, data: Any) -> bool:
        return str(initial or "").replace(",", " ").split() != str(data or "").replace(",", " ").split()


class LocalTimeField(forms.CharField):
    """A wall-clock time in the row's zone, as text; the form knows the zone and makes an instant of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, widget=LocalTime, **options)


class JsonField(forms.CharField):
    """JSON whose errors point at line and column."""

    def __init__(self, kind: type, example: str, **options: Any) -> None:
        # Not stripped, so that lines are counted as they stand there.
        super().__init__(required=False, strip=False, widget=JsonText, **options)
        self.kind = kind
        self.example = example

    def prepare_value(self, value: Any) -> Any:
        """The text to edit; of a value beyond the limits the beginning, enough to recognise it."""
        if isinstance(value, UnreadJson):
            return value if len(value) <= MAX_PAYLOAD else value[:SHOWN_UNREAD] + "..."
        if isinstance(value, str):
            return value
        text = json.dumps(value, ensure_ascii=False)
        # Half of a surrogate pair is JSON as an escape, and no page can have it in any other way.
        return text if text.isascii() or _encodes(text) else json.dumps(value)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return self.kind()
        try:
            found = read_json(text)
            for escape in _ESCAPE.finditer(text):
                if escape[1]:
                    raise json.JSONDecodeError(f"Not every database can store {escape[1]}", text, escape.start())
        except json.JSONDecodeError as error:
            raise ValidationError(_pointed_at(text, error)) from None
        except BeyondLimits as error:
            raise ValidationError(f"This {error}.") from None
        if not isinstance(found, self.kind):
            name = "list" if self.kind is list else "object"
            raise ValidationError(f"This is JSON, but not a JSON {name}; write it like {self.example}.")
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            # As JSON: for Python, 1 and true are equal.
            return _canonical(self.clean(data)) != _canonical(initial)
        except ValidationError:
            return True


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _pointed_at(text: str, error: json.JSONDecodeError) -> SafeString:
    line = text.split("\n")[error.lineno - 1].rstrip("\r")
    start = max(0, error.colno - 31)
    # One column for each character, tabs and separators of lines, too.
    shown = "".join(sign if sign.isprintable() else " " for sign in line[start : error.colno + 30])
    return format_html(
        'Line {}, column {}: {}.<code class="qb-pointer">{}<br>{}▲</code>',
        error.lineno,
        error.colno,
        error.msg,
        shown,
        " " * (error.colno - 1 - start),
    )
