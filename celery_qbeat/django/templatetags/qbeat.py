"""Times and verdicts in templates."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html

from celery_qbeat.django import times, verdicts

register = template.Library()


@register.filter
def clock_us(us: Any) -> str:
    """Microseconds as a clock shows them, from left to right in every language; a dash for none."""
    return format_html('<bdi class="qb-ltr">{}</bdi>', times.clock(us)) if isinstance(us, int) else "–"


@register.filter
def ago_us(us: int, now: int) -> str:
    """How far away an instant is."""
    return times.ago(us, now)


@register.filter
def length_us(us: int) -> str:
    """A duration."""
    return times.length(us)


@register.filter
def thousands(number: int) -> str:
    """12,345."""
    return f"{number:,}"


@register.filter
def verdict(word: Any) -> str:
    """A verdict's badge."""
    return verdicts.badge(word or "")
