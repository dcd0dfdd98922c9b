"""The exceptions of celery_qbeat. A class's docstring is its default message."""

from __future__ import annotations


class QbeatError(Exception):
    """celery_qbeat could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ScheduleError(QbeatError):
    """The schedule cannot be used."""

    def __init__(self, message: str | None = None, *, field: str = "schedule") -> None:
        super().__init__(message)
        self.field = field


class JobError(QbeatError):
    """The row cannot become a job."""

    def __init__(self, message: str | None = None, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class SettingsError(QbeatError):
    """A qbeat_* setting is unknown or has a bad value."""


class SchemaError(QbeatError):
    """The database's tables are missing, of another version, or damaged."""


class NotBound(QbeatError):
    """The gate guards no database yet: call bind(store.instance) before hold()."""


class Unavailable(QbeatError):
    """A server is away: nothing was done, and trying again later is right."""


class Doubt(QbeatError):
    """A server went away in the middle: nobody knows whether it was done."""


class Fenced(QbeatError):
    """Another beat has taken a newer epoch: this one may not write.

    `epoch`: the database's epoch, 0 when its row is gone. Below the caller's own: an older copy was restored.
    """

    def __init__(self, message: str | None = None, *, epoch: int | None = None) -> None:
        super().__init__(message or "another beat has taken a newer epoch: this one may not write")
        self.epoch = epoch
