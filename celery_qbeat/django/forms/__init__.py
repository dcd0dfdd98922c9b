"""The forms of the admin: what people type, judged by the scheduler's own code."""

from celery_qbeat.django.forms.job import JobForm
from celery_qbeat.django.forms.worker import WorkerForm

__all__ = ["JobForm", "WorkerForm"]
