"""What a message about the end of a run must look like. Anybody who can write to the broker can send one."""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.safe_text import one_line
from celery_qbeat.dispatchers.celery.raw_message import ForeignMessage, json_of
from celery_qbeat.ports import RunOutcome

Outcome = Literal["success", "failure", "revoked", "terminated", "expired", "unknown task", "ignored", "rejected"]
"""Callbacks send the first two, `celery_qbeat.worker` the others."""

Microseconds = Annotated[int, Field(ge=0, lt=2**58)]

_ENDS: dict[Outcome, tuple[Verdict, str]] = {
    "success": (Verdict.SUCCEEDED, ""),
    "failure": (Verdict.FAILED, ""),
    "revoked": (Verdict.REVOKED, "revoked"),
    "terminated": (Verdict.REVOKED, "terminated"),
    "expired": (Verdict.EXPIRED, "expired"),
    "unknown task": (Verdict.UNKNOWN_TASK, ""),
    "ignored": (Verdict.IGNORED, ""),
    "rejected": (Verdict.FAILED, "the worker rejected its message"),
}


class _Done(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    v: Literal[1]
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    outcome: Outcome
    token: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    started_us: Microseconds | None = None
    took_us: Microseconds | None = None
    error: Annotated[str, Field(max_length=1000)] = ""


def read_completion(message: Any, instance: str) -> RunOutcome:
    """The end that a `RawMessage` reports. Raises NotOurs, whatever is in it, and quotes nothing of it."""
    try:
        done = _Done.model_validate(_kwargs(json_of(message)))
    except ValidationError:
        raise ForeignMessage("of another form") from None
    if not hmac.compare_digest(run_token(instance, done.run), done.token):
        raise ForeignMessage("with a wrong token")
    verdict, detail = _ENDS[done.outcome]
    return RunOutcome(
        done.run, verdict, one_line(done.error) or detail, started_us=done.started_us, took_us=done.took_us
    )


def _kwargs(payload: Any) -> Any:
    """The keyword arguments of a Celery message of protocol 2 (args, kwargs, embed) or 1 (a mapping)."""
    if isinstance(payload, list) and len(payload) == 3:
        return payload[1]
    return payload.get("kwargs") if isinstance(payload, dict) else None
