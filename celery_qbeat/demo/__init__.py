"""The demo: `python -m celery_qbeat.demo`. A real worker and a real beat on an SQLite file, without any server.

`app.py` is the Celery app, `__main__.py` fills the table, runs both processes and prints what they say,
`progress.py` what they wait for.
"""

FOLDER_VARIABLE = "QBEAT_DEMO_FOLDER"
DATABASE = "jobs.sqlite3"
