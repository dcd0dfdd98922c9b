"""Times and verdicts in templates."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html

from celery_qbeat.django import times, verdicts
from celery_qbeat.django.health import writer_alive
from celery_qbeat.django.models import Leader

register = template.Library()


@register.inclusion_tag("admin/qbeat/banner.html")
def beat_banner() -> dict[str, Any]:
    """Says on each page of the app that no beat lives; costs one look at one row."""
    leader = Leader.objects.filter(pk=1).first()
    alive, silent_us = writer_alive(leader, times.now_us())
    holder = leader.holder if leader is not None and leader.epoch else ""
    return {"shown": not alive, "holder": holder, "silent": times.length(silent_us)}


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
