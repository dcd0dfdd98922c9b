"""The last runs of a job and its next firings, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString

from celery_qbeat.core.plurals import quantity
from celery_qbeat.django.pictures.svg import Part, drawing, element, patterns, text
from celery_qbeat.django.times import SECOND, ago, clock, length
from celery_qbeat.django.verdicts import look

LEFT, RIGHT, STEP, BAR, DATE = 80, 12, 22, 14, 120
TOP, BASE, DEEP, BOTTOM = 30, 118, 150, 188
TALL, LOW = BASE - TOP - 12, DEEP - BASE - 6


@dataclass(frozen=True, slots=True)
class Bar:
    """A run as it is drawn. `duration_us` None: it did not run, or has not ended; `exact`: the worker measured it."""

    slot_us: int
    verdict: str
    duration_us: int | None
    late_us: int
    words: str = ""
    exact: bool = False


def timeline(runs: Sequence[Bar], following: Sequence[int], now: int) -> SafeString:
    """`runs` oldest first, `following` slots. Up: how long it took; down: how late it was; the sign: its verdict."""
    columns = len(runs) + len(following) + 1
    width = LEFT + columns * STEP + RIGHT
    if following:
        width = max(width, LEFT + (len(runs) + 1) * STEP + DATE)
    longest = max((run.duration_us or 0 for run in runs), default=0)
    latest = max((run.late_us for run in runs if run.late_us >= SECOND), default=0)
    parts: list[Part] = [patterns(), *_axes(width, longest, latest, runs)]
    for number, run in enumerate(runs):
        parts.append(_run(LEFT + number * STEP, run, longest, latest, now))
    here = LEFT + len(runs) * STEP + STEP // 2
    parts.append(element("line", x1=here, y1=TOP - 12, x2=here, y2=DEEP, class_="qb-now"))
    parts.append(text(here, TOP - 18, "now", "qb-quiet", "middle"))
    for number, slot in enumerate(following):
        parts.append(_next(LEFT + (len(runs) + 1 + number) * STEP, slot, now))
    parts.extend(_dates(runs, following))
    return drawing(max(width, 420), BOTTOM, _said(runs, following, now), *parts)


def _axes(width: float, longest: int, latest: int, runs: Sequence[Bar]) -> list[Part]:
    parts: list[Part] = [element("line", x1=LEFT - 4, y1=BASE, x2=width - RIGHT, y2=BASE, class_="qb-axis")]
    if not runs:
        parts.append(text(LEFT + STEP, BASE - 20, "no runs yet", "qb-quiet"))
    if longest:
        parts.append(text(LEFT - 8, BASE - TALL + 4, length(longest), "qb-quiet", "end"))
        parts.append(text(LEFT - 8, BASE - TALL // 2 + 4, "took", "qb-quiet", "end"))
    if latest:
        parts.append(text(LEFT - 8, BASE + 12, "late", "qb-quiet", "end"))
        parts.append(text(LEFT - 8, DEEP, length(latest), "qb-quiet", "end"))
    return parts


def _run(x: float, run: Bar, longest: int, latest: int, now: int) -> SafeString:
    found = look(run.verdict)
    tall = 4 if run.duration_us is None else max(4, round(TALL * run.duration_us / max(longest, 1)))
    words = f"{run.verdict}: {clock(run.slot_us)} ({ago(run.slot_us, now)})"
    if run.duration_us is not None:
        words += f", took {'' if run.exact else 'about '}{length(run.duration_us)}"
    if run.late_us >= SECOND:
        words += f", {length(run.late_us)} late"
    parts: list[Part] = [element("title", f"{words}. {run.words}".rstrip(". "))]
    parts.append(
        element("rect", x=x, y=BASE - tall, width=BAR, height=tall, rx=2, class_=f"qb-bar qb-bar-{found.style}")
    )
    parts.append(text(x + BAR / 2, BASE - tall - 5, found.sign, f"qb-sign qb-fill-{found.style}", "middle"))
    if run.late_us >= SECOND:
        low = max(2, round(LOW * run.late_us / latest))
        parts.append(element("rect", x=x + BAR / 2 - 2, y=BASE + 3, width=4, height=low, class_="qb-late"))
    return element("g", *parts)


def _next(x: float, slot: int, now: int) -> SafeString:
    middle, size = x + BAR / 2, 6
    corners = ((0, -2), (1, -1), (0, 0), (-1, -1))
    points = " ".join(f"{middle + size * right:g},{BASE + size * down}" for right, down in corners)
    words = element("title", f"next: {clock(slot)} ({ago(slot, now)})")
    return element("g", words, element("polygon", points=points, class_="qb-next"))


def _dates(runs: Sequence[Bar], following: Sequence[int]) -> list[Part]:
    """The first and last slot of each side; those of the runs leave room for one another."""
    parts: list[Part] = []
    if runs:
        parts.append(text(LEFT, BOTTOM - 6, clock(runs[0].slot_us), "qb-quiet"))
    if len(runs) >= 14:
        end = LEFT + len(runs) * STEP
        parts.append(text(end, BOTTOM - 6, clock(runs[-1].slot_us), "qb-quiet", "end"))
    if following:
        x = LEFT + (len(runs) + 1) * STEP
        parts.append(text(x, BOTTOM - 22 if len(runs) < 14 else BOTTOM - 6, clock(following[0]), "qb-quiet"))
    return parts


def _said(runs: Sequence[Bar], following: Sequence[int], now: int) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.verdict] = counts.get(run.verdict, 0) + 1
    last = ", ".join(f"{number} {verdict}" for verdict, number in counts.items()) or "none"
    after = f"; the next one {ago(following[0], now)}" if following else "; no next one"
    return f"The last {quantity(len(runs), 'run')}: {last}{after}"
