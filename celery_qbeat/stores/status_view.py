"""The SELECT of the view `qbeat_status`, for each database. It imports nothing of ours, like the triggers.

Its `state` is the condition of `celery_qbeat.core.health.condition_of`, in SQL; a test compares the two. Columns are
added at the end only: PostgreSQL replaces a view in no other way, and readers may count on their order.
No percent sign may stand in the text, because some drivers read it as a place for a value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """`now`: microseconds since the epoch. `no`: the word for false. `instant`: microseconds `{0}` as ISO text."""

    now: str
    no: str
    instant: str


SQLITE = Dialect(
    now="CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    no="0",
    instant="replace(datetime({0} / 1000000, 'unixepoch'), ' ', 'T') || 'Z'",
)
MYSQL = Dialect(
    now="CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    no="FALSE",
    instant="CONCAT(REPLACE(CAST(TIMESTAMPADD(SECOND, {0} DIV 1000000, TIMESTAMP'1970-01-01 00:00:00') AS CHAR(19)), "
    "' ', 'T'), 'Z')",
)
POSTGRESQL = Dialect(
    now="(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    no="false",
    instant="to_char(to_timestamp({0} / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
)

_LAST_RUN = "CASE WHEN r.id IS NULL THEN s.last_run_us ELSE COALESCE(r.sent_us, r.claimed_us) END"
_SINCE = "COALESCE(f.sent_us, f.claimed_us)"

# r: the last run, f: the oldest run in flight. A run that was only decided (skipped, missed, refused) is in no batch.
_STATUS = """
SELECT j.id, j.enabled, j.fn, j.schedule_kind, j.schedule, j.timezone, j.worker, {last_run} AS last_run_us,
 s.next_run_us,
 CASE WHEN r.id IS NULL AND s.last_verdict NOT IN ('skipped', 'missed', 'refused') THEN s.last_verdict
  ELSE r.verdict END AS last_verdict,
 COALESCE(s.late_after_us < {now}, {no}) AS late, s.problem, s.last_succeeded_us, s.last_error,
 s.failures_in_a_row, s.runs,
 CASE
  WHEN NOT j.enabled THEN 'disabled'
  WHEN NOT w.enabled THEN 'paused'
  WHEN substr(s.problem, 1, 16) = 'cron is reserved' THEN 'reserved'
  WHEN s.problem <> '' AND s.plan_key IN ('', '-') THEN 'bad'
  WHEN s.problem <> '' THEN 'refused'
  WHEN f.id IS NOT NULL AND j.overlap = 'skip' AND (s.next_run_us <= {now} OR s.last_slot_us > f.slot_us) THEN 'blocked'
  WHEN s.late_after_us < {now} THEN 'late'
  WHEN f.id IS NOT NULL THEN 'running'
  WHEN s.next_run_us IS NULL AND s.plan_key NOT IN ('', '-') THEN 'finished'
  WHEN l.seen_us > 0 AND {now} - l.seen_us < l.silence_us THEN 'ready'
  ELSE 'stopped' END AS state,
 f.task_id AS running_task_id, {since} AS running_since_us,
 {last_run_text} AS last_run, {next_run_text} AS next_run, {last_succeeded_text} AS last_succeeded,
 {since_text} AS running_since
FROM {schema}qbeat_jobs j
LEFT JOIN {schema}qbeat_state s ON s.job_id = j.id
LEFT JOIN {schema}qbeat_workers w ON w.name = j.worker
LEFT JOIN {schema}qbeat_leader l ON l.id = 1
LEFT JOIN {schema}qbeat_runs r ON r.job_id = j.id AND r.slot_us = (SELECT x.slot_us FROM {schema}qbeat_runs x
 WHERE x.job_id = j.id AND x.batch_id IS NOT NULL ORDER BY x.slot_us DESC LIMIT 1)
LEFT JOIN (SELECT o.job_id, MIN(o.slot_us) AS slot_us FROM {schema}qbeat_runs o WHERE o.lease_until_us > 0
 GROUP BY o.job_id) q ON q.job_id = j.id
LEFT JOIN {schema}qbeat_runs f ON f.job_id = q.job_id AND f.slot_us = q.slot_us
"""


def query(dialect: Dialect, schema: str = "") -> str:
    """The SELECT; `schema` with its dot, or '' for the connection's own."""

    def text(us: str) -> str:
        # What no calendar has stays NULL: one bad number must not fail the whole view.
        return f"CASE WHEN {us} BETWEEN 0 AND 253402300799999999 THEN {dialect.instant.format(us)} END"

    return _STATUS.format(
        schema=schema,
        now=dialect.now,
        no=dialect.no,
        last_run=_LAST_RUN,
        since=_SINCE,
        last_run_text=text(_LAST_RUN),
        next_run_text=text("s.next_run_us"),
        last_succeeded_text=text("s.last_succeeded_us"),
        since_text=text(_SINCE),
    )
