"""Hide our URL settings in what Celery prints of a configuration: `celery report`, `celery inspect conf`."""

from __future__ import annotations

import re

from celery.app import utils

OUR_URLS = r"qbeat_\w*url"
"""`qbeat_redis_url` in every spelling that a configuration may have, such as `CELERY_QBEAT_REDIS_URL`."""


def install() -> None:
    """Add our URL settings to the names whose values Celery replaces by asterisks. May be repeated.

    Celery decides by the name of a setting alone, with one regular expression, and `inspect conf` sends the plain
    content of every text. So neither another type of value nor a setting of ours can do this.
    """
    pattern = utils.HIDDEN_SETTINGS.pattern
    if OUR_URLS not in pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{pattern}|{OUR_URLS}", utils.HIDDEN_SETTINGS.flags)
