"""Whether a beat lives, by its last sign in `qbeat_leader`: one rule for commands, pages and the view. Pure."""

from __future__ import annotations

from enum import StrEnum

LEAST_SILENCE_US = 15_000_000
"""Microseconds of silence below which a beat lives, however short its polls are: it writes every five seconds."""

POLLS_OF_SILENCE = 3
"""A beat writes at most once a poll, so one with long polls may be silent for longer."""

TICK_PREFIX = "tick on "
"""The holder of the command `tick` begins with this: its process ends, and the next one comes after a while."""


LISTED_SILENCE_S = 15.0
"""Seconds after which a beat that announces itself every five seconds is taken for dead."""


class Role(StrEnum):
    """What a beat that is listed beside the lock is: `SILENT` was killed, or is cut off from Redis."""

    WRITER = "writer"
    STANDBY = "standby"
    SILENT = "silent"


def role_of(holds_lock: bool, seen_s: float, *, was_writer: bool) -> Role:
    """The role of a listed beat. `was_writer`: it wrote last, and now nobody has the lock: a standby would take it."""
    if holds_lock:
        return Role.WRITER
    return Role.SILENT if was_writer or seen_s > LISTED_SILENCE_S else Role.STANDBY


def silence_limit_us(poll_s: float) -> int:
    """How long a beat that works every `poll_s` seconds may be silent, in microseconds.

    A beat writes its own limit into `qbeat_leader.silence_us`, so that readers need none of its settings.
    """
    return max(LEAST_SILENCE_US, round(POLLS_OF_SILENCE * poll_s * 1_000_000))


def is_alive(seen_us: int, now_us: int, silence_us: int) -> bool:
    """Whether a beat that was last seen then lives. `seen_us` 0: none ever did."""
    return seen_us > 0 and now_us - seen_us < silence_us


def is_tick(holder: str) -> bool:
    """Whether this holder is a process that runs what is due and ends, not one that stays."""
    return holder.startswith(TICK_PREFIX)
