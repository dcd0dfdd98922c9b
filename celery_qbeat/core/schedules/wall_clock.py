"""The calendar engine: times of day on chosen local dates of one zone, with the rules for clock changes.

A nominal time is a local date and a time of day. The rules (those of Debian's cron, which its manual page states):

* a nominal time that the clock jumps over, in a jump of up to three hours, fires at the instant of the jump; all
  nominal times in one jump make one firing, shared with a regular one at that instant; in a longer jump none fires;
* a nominal time that comes twice fires at its first copy when the schedule is `fixed`, else at both;
* dates are judged by the nominal date, never by the UTC date or the instant after a jump.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from celery_qbeat.core.schedules.date_sets import LAST_DAY, DateSet
from celery_qbeat.core.schedules.time_zones import DAY, MAX_US, MIN_US, SECOND, Zone


class WallClockSlots:
    """The slots of `times` (sorted microseconds since local midnight, not empty) on `dates` in `zone`."""

    __slots__ = ("_dates", "_fixed", "_times", "_zone")

    def __init__(self, zone: Zone, dates: DateSet, times: tuple[int, ...], fixed: bool) -> None:
        self._zone = zone
        self._dates = dates
        self._times = times
        self._fixed = fixed

    def next_after(self, t: int) -> int | None:
        """The first slot strictly later than t; None beyond the year 9999."""
        us = max(t + 1, MIN_US)
        searched, found = 0, -1
        while us <= MAX_US:
            start, end, offset, fresh, gap = self._zone.span(us)
            local = us + offset
            if us == start and gap < local and self._nominal_from(gap) < local:
                return us
            if self._fixed and local < fresh:
                local = fresh
            if not searched <= local <= found:
                searched, found = local, self._nominal_from(local)
            if found < end + offset:
                return found - offset
            # Offsets are within a day of UTC: what ends two days before `found` and began later than the search
            # holds no slot.
            us = end if end < searched + 2 * DAY else max(end, found - 2 * DAY)
        return None

    def latest(self, now: int, oldest: int) -> int | None:
        """The last slot not later than now; None when it would be before `oldest`."""
        us = min(now, MAX_US)
        oldest = max(oldest, MIN_US)
        found, searched = 0, -1
        while us >= oldest:
            start, _, offset, fresh, gap = self._zone.span(us)
            first, local = start + offset, us + offset
            if not found <= local <= searched:
                found, searched = self._nominal_until(local, oldest - DAY), local
            if found >= (fresh if self._fixed else first):
                return found - offset if found - offset >= oldest else None
            if gap < first and self._nominal_from(gap) < first:
                return start if start >= oldest else None
            us = start - 1
        return None

    def count(self, after: int, until: int) -> int:
        """How many slots lie in (after, until]; work for each month and each clock change, not for each slot."""
        us, until = max(after + 1, MIN_US), min(until, MAX_US)
        total = 0
        while us <= until:
            start, end, offset, fresh, gap = self._zone.span(us)
            local, stop = us + offset, min(end, until + 1) + offset
            if us == start and gap < local and self._nominal_from(gap) < local:
                # A regular slot at the very instant of the jump is the same firing.
                total += self._nominal_from(local) != local
            if self._fixed:
                local = max(local, fresh)
            if local < stop:
                total += self._nominal_between(local, stop)
            us = end
        return total

    def note(self, us: int) -> str:
        """What a clock change did to the slot `us`, in words; '' on an ordinary day."""
        start, end, offset, fresh, gap = self._zone.span(us)
        local = us + offset
        if us == start and gap < local:
            missing = self._missing(gap, local)
            if missing:
                return f"{missing} when the clock has jumped to {clock(local)}"
        if local < fresh:
            return f"second of two {clock(local)}"
        while end <= min(us + DAY, MAX_US):
            following = self._zone.span(end)
            if following.start + following.offset <= local:
                return f"first of two {clock(local)}"
            end = following.end
        return ""

    def _missing(self, gap: int, local: int) -> str:
        first = self._nominal_from(gap)
        if first >= local:
            return ""
        second = self._nominal_from(first + 1)
        if second >= local:
            return f"{clock(first)} does not exist that day: fires"
        last = second
        while (following := self._nominal_from(last + 1)) < local:
            last = following
        joint = "and" if last == second else "to"
        return f"{clock(first)} {joint} {clock(last)} do not exist that day: fires once"

    def _nominal_from(self, local: int) -> int:
        """The first nominal time not before a local time; a time beyond every instant when there is none."""
        day, time = divmod(local, DAY)
        found = self._dates.at_or_after(day)
        if found == day:
            place = bisect_left(self._times, time)
            if place < len(self._times):
                return day * DAY + self._times[place]
            found = self._dates.at_or_after(day + 1)
        if found is None:
            found = LAST_DAY + 1
        return found * DAY + self._times[0]

    def _nominal_until(self, local: int, oldest: int) -> int:
        """The last nominal time not after a local time; a time before `oldest` when there is none since."""
        day, time = divmod(local, DAY)
        found = self._dates.at_or_before(day, oldest // DAY)
        if found == day:
            place = bisect_right(self._times, time)
            if place:
                return day * DAY + self._times[place - 1]
            found = self._dates.at_or_before(day - 1, oldest // DAY)
        return oldest - DAY if found is None else found * DAY + self._times[-1]

    def _nominal_between(self, local: int, stop: int) -> int:
        """How many nominal times lie in [local, stop)."""
        first, from_time = divmod(local, DAY)
        last, to_time = divmod(stop, DAY)
        total = self._dates.count(first, last - 1) * len(self._times)
        if self._dates.at_or_after(first) == first:
            total -= bisect_left(self._times, from_time)
        if self._dates.at_or_after(last) == last:
            total += bisect_left(self._times, to_time)
        return total


def clock(local: int) -> str:
    """HH:MM of a local time, with seconds when it has any."""
    seconds = local % DAY // SECOND
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return text if seconds % 60 == 0 else f"{text}:{seconds % 60:02}"
