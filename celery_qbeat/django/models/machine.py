"""What the machine writes. Django creates these tables and reads them; only a beat writes."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from celery_qbeat.django.fields import Count, Flag, Instant, Key, OptionalOneToOne, Text, TextLine
from celery_qbeat.django.models.people import Job
from celery_qbeat.django.times import clock


class ReadOnly(TypeError):
    """This table is written by the scheduler only."""


def _refuse(table: str) -> NoReturn:
    raise ReadOnly(f"{table} is written by the scheduler only; edit qbeat_jobs, qbeat_workers or qbeat_requests")


class ReadOnlyQuerySet(models.QuerySet):
    """Everything that reads."""

    def _no(self, *_: Any, **__: Any) -> NoReturn:
        _refuse(self.model._meta.db_table)

    create = get_or_create = update_or_create = bulk_create = bulk_update = update = delete = _no


class Machine(models.Model):
    """A table of the machine."""

    objects = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True
        default_permissions: tuple[str, ...] = ()

    def save(self, *_: Any, **__: Any) -> NoReturn:
        _refuse(self._meta.db_table)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        _refuse(self._meta.db_table)


class State(Machine):
    """What the machine remembers of a job; also of jobs in code, which have no row."""

    job = OptionalOneToOne(
        Job,
        on_delete=models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        db_column="job_id",
        related_name="state",
    )
    first_seen_us = Instant(db_default=0)
    next_run_us = Instant(null=True)
    last_run_us = Instant(null=True)
    last_slot_us = Instant(null=True)
    last_finished_us = Instant(null=True)
    last_succeeded_us = Instant(null=True)
    late_after_us = Instant(null=True)
    last_verdict = TextLine(max_length=16, db_default="")
    last_error = Text(db_default="")
    runs = Count(db_default=0)
    failures_in_a_row = models.IntegerField(db_default=0)
    problem = Text(db_default="")
    plan_key = TextLine(max_length=64, db_default="")
    claim_epoch = models.BigIntegerField(db_default=0)

    class Meta(Machine.Meta):
        db_table = "qbeat_state"

    def __str__(self) -> str:
        return str(self.job_id)


class Run(Machine):
    """A slot and its verdict: a line of the ledger. It outlives its job."""

    id = models.BigAutoField(primary_key=True)
    task_id = Key("task id", max_length=64)
    job_id = Key("job", max_length=191)
    slot_us = Instant("slot")
    batch_id = models.BigIntegerField("batch", null=True)
    verdict = TextLine("verdict", max_length=16)
    claimed_us = Instant("claimed", db_default=0)
    sent_us = Instant("sent", null=True)
    finished_us = Instant("finished", null=True)
    lease_until_us = Instant("lease until", null=True)
    late_us = Instant("late", db_default=0)
    collapsed = Count("collapsed", db_default=0)
    detail = Text("detail", db_default="")
    by_hand = Flag("by hand", db_default=False)
    resend = Flag("sent again when in doubt", db_default=False)
    started_us = Instant("started", null=True)
    took_us = models.BigIntegerField("took", null=True)

    class Meta(Machine.Meta):
        db_table = "qbeat_runs"
        ordering = ("-id",)
        default_permissions = ("view",)
        verbose_name = "run"
        constraints = (
            models.UniqueConstraint(fields=["task_id"], name="qbeat_runs_task"),
            models.UniqueConstraint(fields=["slot_us", "job_id"], name="qbeat_runs_slot"),
        )
        indexes = (
            models.Index(fields=["job_id", "slot_us"], name="qbeat_runs_job"),
            models.Index(fields=["batch_id"], name="qbeat_runs_batch"),
            models.Index(fields=["lease_until_us", "id"], name="qbeat_runs_lease"),
        )

    def __str__(self) -> str:
        return f"{self.job_id} @ {clock(self.slot_us)}"


class Batch(Machine):
    """Runs that were claimed together; open while `sent_us` is NULL."""

    batch_id = models.BigIntegerField(primary_key=True)
    epoch = models.BigIntegerField()
    claimed_us = Instant()
    n = models.IntegerField()
    sent_us = Instant(null=True)

    class Meta(Machine.Meta):
        db_table = "qbeat_batches"
        indexes = (models.Index(fields=["sent_us"], name="qbeat_batches_sent"),)


class Change(Machine):
    """A line of the change log that the triggers write."""

    version = models.BigAutoField(primary_key=True)
    job_id = Key(max_length=191, null=True)
    op = TextLine(max_length=1)
    at_us = Instant(db_default=0)
    txid = models.BigIntegerField(db_default=0)

    class Meta(Machine.Meta):
        db_table = "qbeat_changes"
        indexes = (models.Index(fields=["txid"], name="qbeat_changes_txid"),)


class History(Machine):
    """From when a job ran by which definition."""

    id = models.BigAutoField(primary_key=True)
    job_id = Key(max_length=191)
    since_us = Instant()
    spec = Text(null=True)

    class Meta(Machine.Meta):
        db_table = "qbeat_history"
        indexes = (models.Index(fields=["job_id", "since_us"], name="qbeat_history_job"),)


class Leader(Machine):
    """One row: the writer, its epoch, and when it was last alive."""

    id = models.IntegerField(primary_key=True)
    epoch = models.BigIntegerField(db_default=0)
    holder = TextLine(max_length=255, db_default="")
    taken_us = Instant(db_default=0)
    seen_us = Instant(db_default=0)
    silence_us = Instant(db_default=15_000_000)

    class Meta(Machine.Meta):
        db_table = "qbeat_leader"


class Installation(Machine):
    """One row: the version of the schema, the identity of these tables, and who migrates them."""

    id = models.IntegerField(primary_key=True)
    schema_version = models.IntegerField()
    instance = TextLine(max_length=36)
    log_floor = models.BigIntegerField(db_default=0)
    owner = TextLine(max_length=16, db_default="alembic")

    class Meta(Machine.Meta):
        db_table = "qbeat_meta"
