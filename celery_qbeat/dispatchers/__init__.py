"""How claimed runs reach the workers, and how their ends come back."""

from __future__ import annotations

from celery_qbeat.dispatchers.celery.broker_check import BrokerCheck, check_broker
from celery_qbeat.dispatchers.celery.completions import CeleryCompletions
from celery_qbeat.dispatchers.celery.dispatcher import CeleryDispatcher

__all__ = ["BrokerCheck", "CeleryCompletions", "CeleryDispatcher", "check_broker"]
