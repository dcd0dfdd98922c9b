"""The Django app: models and migrations for the tables, and an admin for the people who own the jobs.

`INSTALLED_APPS += ["celery_qbeat.django"]`, `manage.py migrate`: the beat then works in Django's database.
"""
