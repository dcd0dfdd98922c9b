"""What the tables need to be a queue: triggers, view, and the first rows.

Every later migration that changes qbeat_jobs, qbeat_workers or qbeat_requests has to end with the same operation:
SQLite drops the triggers of a table that Django rebuilds.
"""

from django.db import migrations

from celery_qbeat.django.database import create_triggers, drop_triggers


class Migration(migrations.Migration):
    dependencies = [("qbeat", "0001_initial")]

    operations = [
        # MySQL commits each statement by itself.
        migrations.RunPython(create_triggers, drop_triggers, atomic=False),
    ]
