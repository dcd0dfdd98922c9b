"""The colours of the pages: readable in both modes, and there under themes without the admin's own variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_qbeat.django.pictures.heatmap import OPACITY, STRONG

CSS = (Path(__file__).parents[2] / "celery_qbeat/django/static/qbeat/qbeat.css").read_text()
MODES = {
    "light": CSS[: CSS.index("@media")],
    "dark by the system": CSS[CSS.index("@media") : CSS.index('html[data-theme="dark"]')],
    "dark": CSS[CSS.index('html[data-theme="dark"]') : CSS.index(".qb-quiet")],
}
Color = tuple[float, float, float]


def color(mode: str, name: str) -> Color:
    found = re.search(rf"--qb-{name}: #([0-9a-f]{{3,6}});", MODES[mode])
    assert found, name
    digits = found[1] if len(found[1]) == 6 else "".join(sign * 2 for sign in found[1])
    red, green, blue = (int(digits[at : at + 2], 16) for at in (0, 2, 4))
    return red, green, blue


def luminance(shown: Color) -> float:
    parts = [part / 255 for part in shown]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Color, other: Color) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ok", "bad", "flying", "held", "doubt"])
def test_badges_have_enough_contrast(mode: str, name: str) -> None:
    assert contrast(color(mode, name), color(mode, f"{name}-bg")) >= 4.5


@pytest.mark.parametrize("mode", MODES)
def test_digits_of_the_forecast_have_enough_contrast(mode: str) -> None:
    ground, heat = color(mode, "darkened-bg"), color(mode, "heat")
    for percent in range(101):
        share = percent / 100
        opacity = OPACITY * share
        red, green, blue = ((1 - opacity) * below + opacity * above for below, above in zip(ground, heat, strict=True))
        ink = color(mode, "heat-ink" if share > STRONG else "heat-text")
        assert contrast(ink, (red, green, blue)) >= 4.5, share


def test_every_variable_of_the_admin_has_a_fallback() -> None:
    assert re.findall(r"var\(--(?!qb-)[a-z-]+\)", CSS) == []
    fallbacks = set(re.findall(r"var\(--(?!qb-)[a-z-]+, var\(--(qb-[a-z-]+)\)\)", CSS))
    assert fallbacks
    for text in MODES.values():
        assert {name for name in fallbacks if f"--{name}:" not in text} == set()
