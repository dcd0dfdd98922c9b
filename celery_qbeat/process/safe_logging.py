"""Loggers whose records are one line each and have no password of a URL in them, wherever their parts come from."""

from __future__ import annotations

import logging
import traceback

from celery_qbeat.core.safe_text import hide_secrets_in_text, one_line


class SafeText(logging.Filter):
    """Makes a record safe for a terminal and a file before any handler sees it; lets every record pass.

    A record that is safe already keeps its template and arguments, by which some handlers group. The lines of a
    traceback are indented: none can look like the beginning of a record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        safe = one_line(hide_secrets_in_text(message))
        if safe != message:
            record.msg, record.args = safe, ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n").split("\n")
            record.exc_text = "\n".join(f"  {one_line(hide_secrets_in_text(line))}" for line in lines)
        return True


def get_logger(name: str = "celery_qbeat") -> logging.Logger:
    """The logger of this name with the filter. A filter of a logger is not asked for records of its children."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, SafeText) for each in logger.filters):
        logger.addFilter(SafeText())
    return logger
