"""Real Celery processes for the tests: a small project in a folder, its workers, beats and commands."""

from tests.celeryproc.process import Process
from tests.celeryproc.project import Code, Project

__all__ = ["Code", "Process", "Project"]
