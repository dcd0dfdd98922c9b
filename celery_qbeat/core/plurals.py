"""Numbers with their nouns: `1 run`, `2,000 runs`. Pure; for commands, pages and the log."""

from __future__ import annotations


def quantity(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun.

    Args:
        number: How many.
        noun: The singular.
        plural: The plural, where it is not the singular and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
