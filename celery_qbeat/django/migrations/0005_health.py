"""How long a beat may be silent, and a view that tells the condition of each job."""

from typing import Any

from django.db import migrations

from celery_qbeat.django import fields
from celery_qbeat.django.database import drop_view, make_view


def set_version(apps: Any, schema_editor: Any) -> None:
    apps.get_model("qbeat", "Installation").objects.using(schema_editor.connection.alias).filter(
        pk=1, schema_version__lt=3
    ).update(schema_version=3)


class Migration(migrations.Migration):
    dependencies = [("qbeat", "0004_rights")]

    operations = [
        migrations.AddField("leader", "silence_us", fields.Instant(db_default=15_000_000)),
        migrations.RunPython(set_version, migrations.RunPython.noop),
        # The way back drops it first: PostgreSQL keeps a column that a view reads.
        migrations.RunPython(make_view, drop_view, atomic=False),
    ]
