"""Python imports this when it starts; see `tests.hours.shift`."""

import os
import time

import time_machine

ahead_us = int(os.environ["SHIFTED_CLOCK_US"])
time_machine.travel(time.time() + ahead_us / 1e6, tick=True).start()
