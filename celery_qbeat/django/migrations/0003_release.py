"""Requests can release runs, too."""

from typing import Any

from django.db import migrations

from celery_qbeat.django import fields
from celery_qbeat.django.database import create_triggers


def set_version(apps: Any, schema_editor: Any) -> None:
    apps.get_model("qbeat", "Installation").objects.using(schema_editor.connection.alias).filter(
        pk=1, schema_version__lt=2
    ).update(schema_version=2)


class Migration(migrations.Migration):
    dependencies = [("qbeat", "0002_triggers")]

    operations = [
        migrations.AddField(
            "request",
            "action",
            fields.TextLine(blank=True, db_default="run", default="run", max_length=16, verbose_name="action"),
        ),
        migrations.AddField(
            "request",
            "task_id",
            fields.Key(blank=True, db_default="", default="", max_length=64, verbose_name="task id"),
        ),
        migrations.RunPython(set_version, migrations.RunPython.noop),
        # The way back makes the triggers, too: SQLite drops them when Django rebuilds the table.
        migrations.RunPython(create_triggers, migrations.RunPython.noop, atomic=False),
    ]
