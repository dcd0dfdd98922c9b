"""How fast celery_qbeat is beside Celery's own beat and beside plain `app.send_task`: `python -m benchmarks`.

Every figure that matters is a ratio of two things measured in the same run, on the same machine.
"""
