import time

from celery.exceptions import Ignore

from proj import app
from proj.journal import write


@app.task(bind=True)
def record(self, *args, **kwargs):
    write(self, args, kwargs)
    return "recorded"


@app.task(bind=True)
def fail(self, *args, **kwargs):
    write(self, args, kwargs)
    raise ValueError("this task always fails")


@app.task(bind=True)
def sleep(self, seconds, *args, **kwargs):
    write(self, [seconds, *args], kwargs)
    time.sleep(seconds)
    write(self, [seconds, *args], kwargs, event="finished")


@app.task(bind=True, max_retries=None)
def retry(self, times, *args, **kwargs):
    """Ask for ``times`` retries at once, then succeed."""
    write(self, [times, *args], kwargs)
    if self.request.retries < times:
        raise self.retry(countdown=0)


@app.task(bind=True)
def ignore(self, *args, **kwargs):
    write(self, args, kwargs)
    raise Ignore
