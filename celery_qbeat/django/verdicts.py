"""How a verdict looks: a word, a sign and a colour, so that no one of them is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString

from celery_qbeat.core.jobs import Verdict


@dataclass(frozen=True, slots=True)
class Look:
    """`style` is a CSS class and the name of a pattern: ok, bad, flying, held, doubt."""

    style: str
    sign: str
    meaning: str


LOOKS: Mapping[str, Look] = {
    Verdict.SUCCEEDED: Look("ok", "✓", "the task ended well"),
    Verdict.FAILED: Look("bad", "✗", "the task raised an exception or ran out of time"),
    Verdict.LOST: Look("bad", "✗", "its end was never reported within its lease"),
    Verdict.UNKNOWN_TASK: Look("bad", "✗", "the worker does not know the task"),
    Verdict.CLAIMED: Look("flying", "→", "about to be sent"),
    Verdict.SENT: Look("flying", "→", "sent; its end is not known yet"),
    Verdict.REVOKED: Look("held", "○", "taken back before it ran"),
    Verdict.EXPIRED: Look("held", "○", "waited too long in the queue"),
    Verdict.IGNORED: Look("held", "○", "the task asked to be ignored"),
    Verdict.SKIPPED: Look("held", "○", "not sent: the run before was in flight, or the task declined"),
    Verdict.MISSED: Look("held", "○", "not sent: too late"),
    Verdict.REFUSED: Look("bad", "✗", "not sent: the row may not run this"),
    Verdict.IN_DOUBT: Look("doubt", "?", "nobody knows whether it was sent"),
}
UNKNOWN = Look("doubt", "?", "")


def look(verdict: str) -> Look:
    """The look of a verdict; a doubtful one for a word that this version does not know."""
    return LOOKS.get(verdict, UNKNOWN)


def badge(verdict: str) -> SafeString | str:
    """A verdict for a table; a dash for none."""
    if not verdict:
        return "–"
    found = look(verdict)
    return format_html(
        '<span class="qb-badge qb-{}" title="{}"><span aria-hidden="true">{}</span> {}</span>',
        found.style,
        found.meaning,
        found.sign,
        verdict,
    )
