"""Tells the test what ran: one JSON line a call, appended in one write, so that lines of many processes never mix."""

import json
import os
import time


def write(task, args, kwargs, event="started"):
    request = task.request
    record = {
        "task": task.name,
        "id": request.id,
        "event": event,
        "time": time.time(),
        "args": list(args),
        "kwargs": kwargs,
    }
    if os.environ.get("QBEAT_TEST_HEADERS"):
        record["headers"] = request.headers
        record["delivery"] = request.delivery_info
        record["properties"] = request.properties
    line = json.dumps(record, default=repr) + "\n"
    journal = os.open(os.environ["QBEAT_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)
