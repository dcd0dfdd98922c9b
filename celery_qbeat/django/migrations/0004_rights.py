"""Trigger functions of PostgreSQL that other roles cannot misuse."""

from django.db import migrations

from celery_qbeat.django.database import create_triggers


class Migration(migrations.Migration):
    dependencies = [("qbeat", "0003_release")]

    operations = [
        migrations.RunPython(create_triggers, migrations.RunPython.noop, atomic=False),
    ]
