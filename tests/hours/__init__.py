"""The test suite at hours and in zones where programs that compute times go wrong: see `python -m tests.hours -h`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hour:
    """When and where the tests run: ISO 8601, and the zone of the machine."""

    name: str
    instant: str
    zone: str = "UTC"
    busy: int = 0
    """As many processes compete for the processors meanwhile."""


HOURS = (
    Hour("evening", "2026-12-02T23:58:00Z"),
    Hour("berlin-spring", "2027-03-28T00:58:00Z", "Europe/Berlin"),
    Hour("berlin-autumn", "2026-10-25T00:58:00Z", "Europe/Berlin"),
    Hour("new-york-spring", "2027-03-14T06:58:00Z", "America/New_York"),
    Hour("new-york-autumn", "2026-11-01T05:58:00Z", "America/New_York"),
    Hour("leap-day", "2028-02-29T12:00:00Z"),
    Hour("leap-evening", "2028-02-29T23:58:00Z"),
    Hour("new-year", "2026-12-31T23:58:00Z"),
    Hour("kathmandu", "2027-06-30T18:13:00Z", "Asia/Kathmandu"),
    Hour("apia", "2027-06-30T10:58:00Z", "Pacific/Apia"),
    Hour("busy", "2026-06-10T12:20:00Z", busy=4),
)
