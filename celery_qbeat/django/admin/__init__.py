"""The admin: jobs, worker scopes, runs, and the pages of forecast and status."""

from celery_qbeat.django.admin.jobs import JobAdmin
from celery_qbeat.django.admin.runs import RunAdmin
from celery_qbeat.django.admin.workers import WorkerAdmin

__all__ = ["JobAdmin", "RunAdmin", "WorkerAdmin"]
