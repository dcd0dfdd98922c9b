"""How claimed runs reach the workers, and how their ends come back."""

from __future__ import annotations

from celery_qbeat.dispatchers.broker_check import BrokerCheck, check_broker
from celery_qbeat.dispatchers.celery import CeleryDispatcher
from celery_qbeat.dispatchers.completions import CeleryCompletions

__all__ = ["BrokerCheck", "CeleryCompletions", "CeleryDispatcher", "check_broker"]
