"""Elements of SVG as safe strings."""

from __future__ import annotations

from typing import TypeAlias

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

Part: TypeAlias = str
"""Safe markup, or words that are escaped."""


def element(name: str, *parts: Part, **attributes: object) -> SafeString:
    """`<name a-b="..." class="...">parts</name>` from `a_b=`, `class_=`; everything is escaped but safe parts."""
    pairs = ((key.rstrip("_").replace("_", "-"), _text(value)) for key, value in attributes.items())
    listed = format_html_join("", ' {}="{}"', pairs)
    inside = format_html_join("", "{}", ((part,) for part in parts))
    # The name comes from this package only.
    opening, closing = mark_safe(f"<{name}"), mark_safe(f"</{name}>")
    return format_html("{}{}>{}{}", opening, listed, inside, closing)


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> SafeString:
    """A line of words."""
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def drawing(width: float, height: float, label: str, *parts: Part) -> SafeString:
    """The whole picture, in CSS pixels. `label` is what a screen reader says."""
    return element(
        "svg",
        element("title", label),
        *parts,
        class_="qb-picture",
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width=width,
        height=height,
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def patterns() -> SafeString:
    """What fills a bar beside its colour: stripes for what went wrong, dots for doubt."""
    stripes = element(
        "pattern",
        element("rect", width=6, height=6, class_="qb-fill-bad"),
        element("path", d="M0 6 L6 0", class_="qb-hatch"),
        id="qb-stripes",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
    )
    dots = element(
        "pattern",
        element("rect", width=6, height=6, class_="qb-fill-doubt"),
        element("circle", cx=3, cy=3, r=1.3, class_="qb-dot"),
        id="qb-dots",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
    )
    return element("defs", stripes, dots)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
