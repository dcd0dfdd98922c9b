"""The example that docker-compose.yml runs; put your own app in its place."""

from celery import Celery

app = Celery("proj", include=["proj.tasks"])
app.config_from_object("proj.celeryconfig")
