"""Dispatch to Celery workers: messages, publishers, and how the outcomes of runs come back."""
