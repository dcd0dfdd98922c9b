"""Whether a beat lives, by its last sign in `qbeat_leader`: one rule for commands and pages. Pure."""

from __future__ import annotations

LEAST_SILENCE_US = 15_000_000
"""Microseconds of silence below which a beat lives, however short its polls are: it writes every five seconds."""

POLLS_OF_SILENCE = 3
"""A beat writes at most once a poll, so one with long polls may be silent for longer."""


def silence_limit_us(poll_s: float) -> int:
    """How long a beat with this poll interval may be silent, in microseconds."""
    return max(LEAST_SILENCE_US, round(POLLS_OF_SILENCE * poll_s * 1_000_000))


def is_alive(seen_us: int, now_us: int, poll_s: float) -> bool:
    """Whether a beat that was last seen then lives. `seen_us` 0: none ever did."""
    return seen_us > 0 and now_us - seen_us < silence_limit_us(poll_s)
