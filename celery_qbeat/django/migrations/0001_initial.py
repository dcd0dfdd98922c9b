"""The tables."""

import django.db.models.deletion
from django.db import migrations, models

from celery_qbeat.django import fields
from celery_qbeat.django.database import refuse_foreign


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.RunPython(refuse_foreign, migrations.RunPython.noop, atomic=False, elidable=False),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("id", models.IntegerField(primary_key=True, serialize=False)),
                ("schema_version", models.IntegerField()),
                ("instance", fields.TextLine(max_length=36)),
                ("log_floor", models.BigIntegerField(db_default=0)),
                ("owner", fields.TextLine(db_default="alembic", max_length=16)),
            ],
            options={
                "db_table": "qbeat_meta",
                "abstract": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", fields.Key(max_length=191, primary_key=True, serialize=False, verbose_name="id")),
                ("fn", fields.Key(max_length=255, verbose_name="task")),
                ("schedule_kind", fields.TextLine(max_length=16, verbose_name="kind")),
                ("schedule", fields.TextLine(max_length=255, verbose_name="schedule")),
                (
                    "worker",
                    fields.Key(blank=True, db_default="", default="", max_length=64, verbose_name="worker scope"),
                ),
                ("args", fields.Json(blank=True, db_default=[], default=list, verbose_name="arguments")),
                ("kwargs", fields.Json(blank=True, db_default={}, default=dict, verbose_name="keyword arguments")),
                ("enabled", fields.Flag(db_default=True, default=True, verbose_name="enabled")),
                ("timezone", fields.TextLine(db_default="UTC", default="UTC", max_length=64, verbose_name="time zone")),
                (
                    "days_only",
                    fields.TextLine(blank=True, db_default="", default="", max_length=32, verbose_name="only on"),
                ),
                (
                    "days_skip",
                    fields.TextLine(blank=True, db_default="", default="", max_length=32, verbose_name="not on"),
                ),
                ("dates_skip", fields.Text(blank=True, db_default="", default="", verbose_name="blackout dates")),
                ("start_us", fields.Instant(blank=True, null=True, verbose_name="not before")),
                ("end_us", fields.Instant(blank=True, null=True, verbose_name="not after")),
                ("overlap", fields.TextLine(db_default="skip", default="skip", max_length=16, verbose_name="overlap")),
                (
                    "catch_up",
                    fields.TextLine(db_default="once", default="once", max_length=16, verbose_name="catch up"),
                ),
                ("grace_seconds", models.IntegerField(blank=True, null=True, verbose_name="grace (s)")),
                (
                    "on_doubt",
                    fields.TextLine(db_default="drop", default="drop", max_length=16, verbose_name="on doubt"),
                ),
                ("max_run_seconds", models.IntegerField(db_default=3600, default=3600, verbose_name="longest run (s)")),
                ("queue", fields.TextLine(blank=True, max_length=255, null=True, verbose_name="queue")),
                ("priority", models.IntegerField(blank=True, null=True, verbose_name="priority")),
                ("expires_seconds", models.IntegerField(blank=True, null=True, verbose_name="expires (s)")),
                ("description", fields.Text(blank=True, db_default="", default="", verbose_name="description")),
                ("rev", models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="revision")),
            ],
            options={
                "verbose_name": "job",
                "db_table": "qbeat_jobs",
                "ordering": ("id",),
                "permissions": (
                    ("run_now", "Can run a job by hand"),
                    ("change_worker_scope", "Can choose the worker scope of a job"),
                ),
            },
        ),
        migrations.CreateModel(
            name="Leader",
            fields=[
                ("id", models.IntegerField(primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField(db_default=0)),
                ("holder", fields.TextLine(db_default="", max_length=255)),
                ("taken_us", fields.Instant(db_default=0)),
                ("seen_us", fields.Instant(db_default=0)),
            ],
            options={
                "db_table": "qbeat_leader",
                "abstract": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Request",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", fields.Key(max_length=191, verbose_name="job")),
                ("asked_us", fields.Instant(verbose_name="asked")),
                ("asked_by", fields.TextLine(blank=True, db_default="", default="", max_length=255, verbose_name="by")),
            ],
            options={
                "verbose_name": "request",
                "db_table": "qbeat_requests",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("name", fields.Key(max_length=64, primary_key=True, serialize=False, verbose_name="name")),
                ("enabled", fields.Flag(db_default=True, default=True, verbose_name="enabled")),
                (
                    "queue",
                    fields.TextLine(
                        blank=True, db_default="", default="", max_length=255, verbose_name="default queue"
                    ),
                ),
                ("queues", fields.Text(blank=True, db_default="", default="", verbose_name="allowed queues")),
                ("functions", fields.Text(blank=True, db_default="", default="", verbose_name="tasks")),
                ("description", fields.Text(blank=True, db_default="", default="", verbose_name="description")),
            ],
            options={
                "verbose_name": "worker scope",
                "db_table": "qbeat_workers",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("batch_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField()),
                ("claimed_us", fields.Instant()),
                ("n", models.IntegerField()),
                ("sent_us", fields.Instant(null=True)),
            ],
            options={
                "db_table": "qbeat_batches",
                "abstract": False,
                "default_permissions": (),
                "indexes": [models.Index(fields=["sent_us"], name="qbeat_batches_sent")],
            },
        ),
        migrations.CreateModel(
            name="Change",
            fields=[
                ("version", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", fields.Key(max_length=191, null=True)),
                ("op", fields.TextLine(max_length=1)),
                ("at_us", fields.Instant(db_default=0)),
                ("txid", models.BigIntegerField(db_default=0)),
            ],
            options={
                "db_table": "qbeat_changes",
                "abstract": False,
                "default_permissions": (),
                "indexes": [models.Index(fields=["txid"], name="qbeat_changes_txid")],
            },
        ),
        migrations.CreateModel(
            name="History",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", fields.Key(max_length=191)),
                ("since_us", fields.Instant()),
                ("spec", fields.Text(null=True)),
            ],
            options={
                "db_table": "qbeat_history",
                "abstract": False,
                "default_permissions": (),
                "indexes": [models.Index(fields=["job_id", "since_us"], name="qbeat_history_job")],
            },
        ),
        migrations.CreateModel(
            name="State",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_column="job_id",
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="state",
                        serialize=False,
                        to="qbeat.job",
                    ),
                ),
                ("first_seen_us", fields.Instant(db_default=0)),
                ("next_run_us", fields.Instant(null=True)),
                ("last_run_us", fields.Instant(null=True)),
                ("last_slot_us", fields.Instant(null=True)),
                ("last_finished_us", fields.Instant(null=True)),
                ("last_succeeded_us", fields.Instant(null=True)),
                ("late_after_us", fields.Instant(null=True)),
                ("last_verdict", fields.TextLine(db_default="", max_length=16)),
                ("last_error", fields.Text(db_default="")),
                ("runs", fields.Count(db_default=0)),
                ("failures_in_a_row", models.IntegerField(db_default=0)),
                ("problem", fields.Text(db_default="")),
                ("plan_key", fields.TextLine(db_default="", max_length=64)),
                ("claim_epoch", models.BigIntegerField(db_default=0)),
            ],
            options={
                "db_table": "qbeat_state",
                "abstract": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task_id", fields.Key(max_length=64, verbose_name="task id")),
                ("job_id", fields.Key(max_length=191, verbose_name="job")),
                ("slot_us", fields.Instant(verbose_name="slot")),
                ("batch_id", models.BigIntegerField(null=True, verbose_name="batch")),
                ("verdict", fields.TextLine(max_length=16, verbose_name="verdict")),
                ("claimed_us", fields.Instant(db_default=0, verbose_name="claimed")),
                ("sent_us", fields.Instant(null=True, verbose_name="sent")),
                ("finished_us", fields.Instant(null=True, verbose_name="finished")),
                ("lease_until_us", fields.Instant(null=True, verbose_name="lease until")),
                ("late_us", fields.Instant(db_default=0, verbose_name="late")),
                ("collapsed", fields.Count(db_default=0, verbose_name="collapsed")),
                ("detail", fields.Text(db_default="", verbose_name="detail")),
                ("by_hand", fields.Flag(db_default=False, verbose_name="by hand")),
                ("resend", fields.Flag(db_default=False, verbose_name="sent again when in doubt")),
            ],
            options={
                "verbose_name": "run",
                "db_table": "qbeat_runs",
                "ordering": ("-id",),
                "abstract": False,
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["job_id", "slot_us"], name="qbeat_runs_job"),
                    models.Index(fields=["batch_id"], name="qbeat_runs_batch"),
                    models.Index(fields=["lease_until_us", "id"], name="qbeat_runs_lease"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("task_id",), name="qbeat_runs_task"),
                    models.UniqueConstraint(fields=("slot_us", "job_id"), name="qbeat_runs_slot"),
                ],
            },
        ),
    ]
