"""The tables as models: people write jobs, workers and requests; the rest is the machine's, and read-only here."""

from celery_qbeat.django.models.machine import Batch, Change, History, Installation, Leader, Run, State
from celery_qbeat.django.models.people import Job, Request, Worker

__all__ = [
    "Batch",
    "Change",
    "History",
    "Installation",
    "Job",
    "Leader",
    "Request",
    "Run",
    "State",
    "Worker",
]
