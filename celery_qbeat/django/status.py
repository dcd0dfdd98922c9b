"""Who dispatches, who stands by, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q, TextField
from django.db.models.functions import Cast

from celery_qbeat.core.jobs import CODE_PREFIX, Verdict
from celery_qbeat.core.liveness import Role, role_of
from celery_qbeat.dispatchers import BrokerCheck
from celery_qbeat.django.health import writer_alive
from celery_qbeat.django.models import Batch, Installation, Leader, Request, Run, State, Worker
from celery_qbeat.errors import QbeatError
from celery_qbeat.gates import RedisGate
from celery_qbeat.gates.redis import AnnouncedBeat
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.settings import Settings
from celery_qbeat.wiring import build_gate

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Status:
    """`gate_problem`: why the beats in Redis could not be listed. `late`, `troubled`: jobs, the first few of them."""

    leader: Any
    alive: bool
    silent_us: int
    standalone: bool
    beats: Sequence[tuple[Role, AnnouncedBeat]]
    gate_problem: str
    broker: BrokerCheck
    late: Sequence[Any]
    late_count: int
    troubled: Sequence[Any]
    trouble_count: int
    open_batches: Sequence[Any]
    waiting: int
    claimed: int
    sent: int
    code_jobs: Sequence[Any]
    jobs: int


def status(jobs: Any, settings: Settings, broker: BrokerCheck, now: int, *, with_code: bool = True) -> Status:
    """How things stand; `jobs` are those that the viewer may see, `with_code`: those of the code, too."""
    leader = Leader.objects.filter(pk=1).first()
    alive, silent = writer_alive(leader, now)
    beats, problem = _beats(settings, "" if leader is None else leader.holder)
    jobs = jobs.select_related("state")
    late = jobs.filter(enabled=True, state__late_after_us__lt=now).exclude(worker__in=Worker.paused())
    troubled = jobs.exclude(state__problem="").filter(state__isnull=False)
    flying = Run.objects.filter(lease_until_us__isnull=False).order_by()
    counts = flying.aggregate(
        claimed=Count("id", filter=Q(verdict=Verdict.CLAIMED)), sent=Count("id", filter=Q(verdict=Verdict.SENT))
    )
    return Status(
        leader=leader,
        alive=alive,
        silent_us=silent,
        standalone=settings.redis_url is None,
        beats=beats,
        gate_problem=problem,
        broker=broker,
        late=late.order_by("state__late_after_us")[:SHOWN],
        late_count=late.count(),
        troubled=troubled.order_by("pk")[:SHOWN],
        trouble_count=troubled.count(),
        open_batches=Batch.objects.filter(sent_us__isnull=True).order_by("batch_id")[:SHOWN],
        waiting=Request.objects.count(),
        claimed=counts["claimed"],
        sent=counts["sent"],
        code_jobs=_code_jobs() if with_code else (),
        jobs=jobs.count(),
    )


def _code_jobs() -> Any:
    named = State.objects.annotate(name=Cast("pk", TextField()))
    return named.filter(name__startswith=CODE_PREFIX).order_by("pk")[: SHOWN * 5]


def _beats(settings: Settings, last_holder: str) -> tuple[Sequence[tuple[Role, AnnouncedBeat]], str]:
    try:
        gate = build_gate(settings, settings.poll_interval, "django", SystemClock())
        if not isinstance(gate, RedisGate):
            return (), ""
        installation = Installation.objects.filter(pk=1).first()
        if installation is None:
            return (), "qbeat_meta has lost its row, so nobody knows which lock is that of this database"
        gate.bind(installation.instance)
        try:
            beats = gate.beats()
            free = not any(beat.writer for beat in beats)
            silent = {beat: free and beat.holder == last_holder for beat in beats}
            return [(role_of(beat.writer, beat.seen_s, was_writer=silent[beat]), beat) for beat in beats], ""
        finally:
            gate.release()
    except QbeatError as error:
        return (), str(error)
