"""Runs know when a worker started them and how long they took."""

from typing import Any

from django.db import migrations, models

from celery_qbeat.django import fields


def set_version(apps: Any, schema_editor: Any) -> None:
    apps.get_model("qbeat", "Installation").objects.using(schema_editor.connection.alias).filter(
        pk=1, schema_version__lt=3
    ).update(schema_version=3)


class Migration(migrations.Migration):
    dependencies = [("qbeat", "0005_health")]

    operations = [
        migrations.AddField("run", "started_us", fields.Instant(null=True, verbose_name="started")),
        migrations.AddField("run", "took_us", models.BigIntegerField(null=True, verbose_name="took")),
        migrations.RunPython(set_version, migrations.RunPython.noop),
    ]
