"""What the jobs run."""

import time

from celery import shared_task


@shared_task(name="shop.cleanup")
def cleanup(days=30):
    """Delete old baskets."""
    time.sleep(0.05)
    return f"baskets older than {days} days are gone"


@shared_task(name="shop.report")
def report(name="sales", seconds=0.5):
    """Write a report; it takes a while."""
    time.sleep(seconds)
    return f"{name}: written"


@shared_task(name="shop.newsletter")
def newsletter():
    """Fail: the mail server is always away."""
    raise ConnectionError("the mail server does not answer")
