"""Several beats, and a driver that freezes and kills them and what they depend on; then an auditor reads the ledger and
every message and says whether what is promised was kept.

`plan.py` which faults come when, from a seed; `faults.py` how each is done; `world.py` servers and beats; `tap.py` what
arrives at the broker; `population.py` the rows; `driver.py` one run; `evidence.py` what is left of it; `auditor.py` the
laws; `takeovers.py` how long nobody sent. `python -m tests.chaos --help`.
"""
