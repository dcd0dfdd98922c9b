"""A week of hours: how many runs start in each."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p

from django.utils.safestring import SafeString

from celery_qbeat.core.plurals import quantity
from celery_qbeat.django.pictures.svg import Part, drawing, element, text

LEFT, TOP, WIDE, HIGH, GAP = 84, 24, 38, 30, 2

OPACITY = 0.85
"""Of the busiest hour's shade."""

STRONG = 0.79
"""The share from which on a digit has the ink for strong shades: with it every digit has a contrast of 4.5."""


def heatmap(
    days: Sequence[str], counts: Sequence[Sequence[int | None]], peaks: frozenset[tuple[int, int]]
) -> SafeString:
    """`counts[day][hour]`, None for an hour that is over or that the day does not have; `peaks` get a frame.

    Each number stands in its cell, so that nobody has to see the shade.
    """
    known = [count for row in counts for count in row if count is not None]
    most = max(known, default=0)
    # The hour under way is not whole, so it is not the quietest.
    quiet = min(known[1:], default=0)
    parts: list[Part] = [
        text(LEFT + hour * WIDE + (WIDE - GAP) / 2, TOP - 8, f"{hour:02}", "qb-quiet", "middle") for hour in range(24)
    ]
    for day, (name, row) in enumerate(zip(days, counts, strict=True)):
        y = TOP + day * HIGH
        parts.append(text(LEFT - 10, y + HIGH / 2 + 4, name, "", "end"))
        for hour, count in enumerate(row):
            shade = _shade(count or 0, quiet, most)
            parts.append(_cell(LEFT + hour * WIDE, y, count, shade, f"{name}, {hour:02}:00", (day, hour) in peaks))
    label = f"Runs in each hour of the coming week; the busiest hour has {most}"
    return drawing(LEFT + 24 * WIDE, TOP + len(days) * HIGH, label, *parts)


def _shade(count: int, quiet: int, most: int) -> float:
    """0 to 1, half of it by size, half by the place between the quietest and the busiest hour: a job that runs each
    second must not hide the hour in which many others meet."""
    size = log1p(count) / log1p(most) if most else 0.0
    place = max(0, count - quiet) / (most - quiet) if most > quiet else 0.0
    return (size + place) / 2


def _cell(x: float, y: float, count: int | None, share: float, name: str, peak: bool) -> SafeString:
    size = {"x": x, "y": y, "width": WIDE - GAP, "height": HIGH - GAP, "rx": 3}
    if count is None:
        return element("rect", class_="qb-heat-none", **size)
    frame = " qb-heat-peak" if peak else ""
    parts: list[Part] = [
        element("title", f"{name}: {quantity(count, 'run')}{', one of the busiest minutes' if peak else ''}"),
        element("rect", class_="qb-heat-none", **size),
        element("rect", class_=f"qb-heat{frame}", fill_opacity=round(OPACITY * share, 3), **size),
    ]
    if count:
        strong = "qb-heat-strong" if share > STRONG else "qb-heat-text"
        parts.append(text(x + (WIDE - GAP) / 2, y + HIGH / 2 + 3, short(count), strong, "middle"))
    return element("g", *parts)


def short(count: int) -> str:
    """`850`, `1.2k`, `14k`, `3.5M`."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}" if count < 10 * size else f"{count // size}{letter}"
    return str(count)
