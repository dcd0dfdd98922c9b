"""`audit`: whether every slot that was asked for got a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import sqlalchemy as sa
from click.core import ParameterSource

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.undecided import show_undecided
from celery_qbeat.core.audit import FAULTS, SETTLING_US, Finding, Kind, Line, Subject, Window, audit, definitions
from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.schedules import Schedule
from celery_qbeat.settings import Retention
from celery_qbeat.stores import reports

DAY_US = 86_400 * times.SECOND


@dataclass(slots=True)
class Outcome:
    """What an audit came to. `unknown`: jobs with a definition that only the code which wrote it can read."""

    window: Window
    jobs: int = 0
    expected: int = 0
    findings: list[Finding] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)

    @property
    def counted(self) -> Counter[Kind]:
        counted: Counter[Kind] = Counter()
        for finding in self.findings:
            counted[finding.kind] += finding.count
        return counted

    @property
    def faultless(self) -> bool:
        return not any(finding.kind in FAULTS for finding in self.findings)


@command("audit")
@click.option("--from", "from_", metavar="TIME", default="24h", show_default=True, help="7d, 1h, or an ISO time.")
@click.option("--until", metavar="TIME", default="now", show_default=True, help="An ISO time, or so long ago.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Of times without an offset.")
@click.option("--since-last-beat", is_flag=True, help="Only slots due since a beat last wrote; after a restore.")
def audit_command(
    project: Project, from_: str, until: str, timezone: str, since_last_beat: bool, as_json: bool
) -> None:
    """Recompute every slot that was asked for, and list those that have no verdict in the ledger.

    Slots of the last minute, or since the last sign of a beat, are pending: they are counted, and listed with --json.
    Intervals are checked run by run. Ends with 1 when a slot is missing or a run came too soon.

    --since-last-beat lists by job what is due and undecided. Use it on a restored backup, before a beat is started:
    the database that was replaced may have sent these slots.

    \b
    Example:
      celery -A proj qbeat audit --from 7d
    """
    if since_last_beat:
        _refuse_range()
        show_undecided(project, as_json)
        return
    now = project.clock.now_us()
    asked_us = times.read_past(from_, timezone, now, "--from")
    until_us = min(now, times.read_past(until, timezone, now, "--until"))
    if asked_us >= until_us:
        raise click.UsageError(
            f"nothing to audit: --from ({times.utc(asked_us)}) is not before --until ({times.utc(until_us)})"
        )
    kept_us = now - _kept(project.settings.retention)
    if kept_us >= until_us:
        raise click.UsageError(
            f"nothing to audit: the ledger is kept from {times.utc(kept_us)} on (qbeat_retention), and --until is "
            f"{times.utc(until_us)}"
        )
    from_us = max(asked_us, kept_us)
    seen_us = project.read(reports.leader).seen_us
    outcome = Outcome(Window(from_us, until_us, min(now, seen_us) - SETTLING_US))
    _audit(project, outcome)
    if as_json:
        output.dump(_data(outcome))
    else:
        if from_us > asked_us:
            output.say(f"the ledger is kept for less long: audited from {times.utc(from_us)}")
        _show(outcome)
        last = read_last_beat(project)
        if outcome.counted[Kind.PENDING] and not last.alive:
            output.say(f"beat: {last.sentence}")
    finish(outcome.faultless)


def _refuse_range() -> None:
    context = click.get_current_context()
    given = [name for name in ("from_", "until") if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError("--since-last-beat is a range of its own: leave out --from and --until")


def _kept(retention: Retention) -> int:
    """How long every run is in the ledger, whatever its verdict."""
    return round(min(retention.succeeded, retention.failed, retention.other) * DAY_US)


def _audit(project: Project, outcome: Outcome) -> None:
    window = outcome.window
    code = {job.spec: job.schedule for job in project.code_jobs.values() if job.schedule.kind != "celery"}
    after: str | None = None
    while job_ids := project.read(partial(reports.known_jobs, after=after, until_us=window.until_us)):
        # Not in one transaction with what changes meanwhile: only slots that are old enough to be settled are judged.
        project.read(partial(_part, job_ids=job_ids, outcome=outcome, code=code))
        after = job_ids[-1]
    outcome.verdicts = project.read(lambda connection: reports.verdicts(connection, window.from_us, window.until_us))


def _part(connection: sa.Connection, *, job_ids: list[str], outcome: Outcome, code: Mapping[str, Schedule]) -> None:
    found = list(_subjects(connection, job_ids, outcome.window, code))
    results = [audit(subject, outcome.window) for subject, _ in found]
    for (subject, complete), result in zip(found, results, strict=True):
        outcome.jobs += 1
        outcome.expected += result.expected
        outcome.findings.extend(result.findings)
        if not complete:
            outcome.unknown.append(subject.job_id)


def _subjects(
    connection: sa.Connection, job_ids: list[str], window: Window, code: Mapping[str, Schedule]
) -> Iterator[tuple[Subject, bool]]:
    records = reports.records(connection, job_ids)
    states = reports.states(connection, job_ids)
    busy = reports.busy_jobs(connection)
    lines = {
        job_id: (planned, by_hand) for job_id, planned, by_hand in reports.lines(connection, job_ids, window.from_us)
    }
    for job_id in job_ids:
        first_seen_us, next_run_us = states.get(job_id, (None, None))
        known, complete = definitions(job_id, records[job_id], first_seen_us, code)
        planned, by_hand = lines.get(job_id, ([], frozenset[int]()))
        before: Line | None = None
        if len(records[job_id]) > 1 or any(definition.job.schedule.relative for definition in known):
            before = reports.line_before(connection, job_id, window.from_us)
        if before is not None:
            planned = [before, *planned]
        yield Subject(job_id, known, planned, next_run_us, job_id in busy, by_hand), complete


def _show(outcome: Outcome) -> None:
    window = outcome.window
    faults = [finding for finding in outcome.findings if finding.kind in FAULTS]
    if faults:
        lines = []
        for finding in faults:
            span = times.utc(finding.first_us)
            if finding.count > 1:
                span += f" to {times.utc(finding.last_us)}"
            lines.append([finding.job_id, str(finding.kind), str(finding.count), span, finding.why])
        output.table(("ID", "WHAT", "SLOTS>", "WHEN", "WHY"), lines)
        output.say("")
    counted = outcome.counted
    output.say(f"from {_second(window.from_us)} until {_second(window.until_us)}")
    found = ", ".join(f"{counted[kind]} {kind}" for kind in Kind)
    output.say(f"{quantity(outcome.jobs, 'job')}, {quantity(outcome.expected, 'slot')} expected: {found}")
    if outcome.verdicts:
        output.say("verdicts: " + ", ".join(f"{count} {name}" for name, count in sorted(outcome.verdicts.items())))
    if outcome.unknown:
        output.say(
            f"not audited, because only the code that wrote their schedule can read it: {', '.join(outcome.unknown)}"
        )


def _second(us: int) -> str:
    return times.utc(us // times.SECOND * times.SECOND)


def _data(outcome: Outcome) -> dict[str, Any]:
    window = outcome.window
    findings = [
        {
            "job_id": finding.job_id,
            "kind": str(finding.kind),
            "count": finding.count,
            **times.stamp("first", finding.first_us),
            **times.stamp("last", finding.last_us),
            "why": finding.why,
        }
        for finding in outcome.findings
    ]
    return {
        "ok": outcome.faultless,
        **times.stamp("from", window.from_us),
        **times.stamp("until", window.until_us),
        "jobs": outcome.jobs,
        "expected": outcome.expected,
        "counts": {str(kind): outcome.counted[kind] for kind in Kind},
        "verdicts": outcome.verdicts,
        "not_audited": outcome.unknown,
        "findings": findings,
    }
