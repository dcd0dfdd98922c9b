"""The long statements of PostgreSQL, and what they are given: many rows travel as one array for each column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.ports import Claim
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import RUN_COLUMNS, Batch, run_row
from celery_qbeat.stores.ledger import SentMark

_TYPES: dict[type[Any], str] = {sa.BigInteger: "bigint", sa.Integer: "bigint", sa.Boolean: "boolean"}


@lru_cache(maxsize=64)
def put_statement(name: str, columns: tuple[str, ...], update: tuple[str, ...] | None) -> sa.TextClause:
    """See `claiming.Put`; the arrays are its arguments `c0`, `c1`, ..."""
    table = tables.metadata.tables[name]
    arrays = [f"CAST(:c{n} AS {_array(table.c[column])})" for n, column in enumerate(columns)]
    words = ["INSERT INTO", name, "(", ", ".join(columns), ") SELECT * FROM unnest(", ", ".join(arrays), ")"]
    if update:
        keys = ", ".join(column.name for column in table.primary_key)
        words += [f"ON CONFLICT ({keys}) DO UPDATE SET", ", ".join(f"{name} = EXCLUDED.{name}" for name in update)]
    elif update is not None:
        words.append("ON CONFLICT DO NOTHING")
    return sa.text(" ".join(words))


def _array(column: sa.Column[Any]) -> str:
    return _TYPES.get(type(column.type), "text") + "[]"


_RUN_TYPES = [f"CAST(:{name} AS {_array(tables.runs.c[name])})" for name in RUN_COLUMNS]

CLAIM = sa.text(
    """
WITH lead AS MATERIALIZED (
  SELECT 1 FROM qbeat_leader WHERE id = 1 AND epoch = :epoch FOR SHARE),
due AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:expected AS bigint[]), CAST(:nexts AS bigint[]),
                       CAST(:revs AS bigint[]), CAST(:newest AS bigint[])) AS d(id, expected, nxt, rev, newest)),
run AS MATERIALIZED (
  SELECT * FROM unnest({arrays}) AS r({columns})),
got AS MATERIALIZED (
  SELECT s.job_id, d.expected, d.nxt, d.newest
  FROM due d JOIN qbeat_state s ON s.job_id = d.id AND (d.expected IS NULL OR s.next_run_us = d.expected)
  LEFT JOIN (SELECT id, rev, enabled FROM qbeat_jobs WHERE id = ANY(CAST(:ids AS text[]))) j ON j.id = d.id
  WHERE EXISTS (SELECT 1 FROM lead) AND s.job_id = ANY(CAST(:ids AS text[]))
    AND (d.rev IS NULL OR (j.rev = d.rev AND (d.expected IS NULL OR j.enabled)))
  ORDER BY s.job_id
  FOR UPDATE OF s SKIP LOCKED),
ins AS (
  INSERT INTO qbeat_runs ({columns})
  SELECT {columns} FROM run WHERE (run.job_id IN (SELECT job_id FROM got)) IS TRUE ORDER BY slot_us, job_id
  ON CONFLICT DO NOTHING RETURNING job_id, task_id, verdict, slot_us),
won AS (
  SELECT job_id, count(*) FILTER (WHERE verdict = 'claimed') AS n,
         (array_agg(verdict ORDER BY slot_us DESC))[1] AS verdict FROM ins GROUP BY job_id),
upd AS (
  UPDATE qbeat_state s SET
    next_run_us = CASE WHEN g.expected IS NULL THEN s.next_run_us ELSE g.nxt END,
    last_slot_us = CASE WHEN g.expected IS NULL THEN s.last_slot_us ELSE GREATEST(g.newest, s.last_slot_us) END,
    last_run_us = CASE WHEN g.expected IS NULL OR COALESCE(w.n, 0) = 0 THEN s.last_run_us ELSE :now END,
    claim_epoch = CASE WHEN g.expected IS NULL THEN s.claim_epoch ELSE :epoch END,
    runs = s.runs + COALESCE(w.n, 0),
    last_verdict = COALESCE(w.verdict, s.last_verdict)
  FROM got g LEFT JOIN won w ON w.job_id = g.job_id
  WHERE s.job_id = g.job_id AND s.job_id = ANY(CAST(:ids AS text[]))),
bat AS (
  INSERT INTO qbeat_batches (batch_id, epoch, claimed_us, n)
  SELECT :batch, :epoch, :now, count(*) FROM ins WHERE verdict = 'claimed' HAVING count(*) > 0
  ON CONFLICT (batch_id) DO UPDATE SET n = qbeat_batches.n + EXCLUDED.n)
SELECT (SELECT count(*) FROM lead),
       ARRAY(SELECT id FROM due WHERE (id IN (SELECT job_id FROM got)) IS NOT TRUE),
       ARRAY(SELECT task_id FROM run WHERE verdict = 'claimed' AND (job_id IN (SELECT job_id FROM got)) IS TRUE
             AND (task_id IN (SELECT task_id FROM ins)) IS NOT TRUE)
""".replace("{arrays}", ", ".join(_RUN_TYPES)).replace("{columns}", ", ".join(RUN_COLUMNS))
)


# An array, not a join: the states are found by their index, however many there are.
SENT = sa.text("""
WITH lead AS MATERIALIZED (
  SELECT 1 FROM qbeat_leader WHERE id = 1 AND epoch = :epoch FOR SHARE),
run AS (
  UPDATE qbeat_runs SET sent_us = :now, verdict = CASE verdict WHEN 'claimed' THEN 'sent' ELSE verdict END
  WHERE EXISTS (SELECT 1 FROM lead) AND task_id = ANY(CAST(:ids AS text[])) AND batch_id = :batch
  RETURNING job_id),
upd AS (
  UPDATE qbeat_state SET last_verdict = 'sent'
  WHERE last_verdict = 'claimed' AND job_id = ANY(ARRAY(SELECT job_id FROM run))),
bat AS (
  UPDATE qbeat_batches SET sent_us = :now
  WHERE EXISTS (SELECT 1 FROM lead) AND CAST(:closes AS boolean) AND batch_id = :batch AND sent_us IS NULL)
SELECT count(*) FROM lead
""")


def claim_arguments(batch: Batch) -> dict[str, Any]:
    """The arguments of CLAIM."""
    claims = batch.claims
    rows = [run_row(run, claim, batch) for claim in claims for run in claim.runs]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(RUN_COLUMNS)
    return {
        "epoch": batch.epoch,
        "batch": batch.batch_id,
        "now": batch.now_us,
        "ids": [claim.job_id for claim in claims],
        "expected": [claim.expected_us for claim in claims],
        "nexts": [claim.next_us for claim in claims],
        "revs": [claim.rev for claim in claims],
        "newest": [max((run.slot_us for run in claim.runs), default=None) for claim in claims],
        **{name: list(values) for name, values in zip(RUN_COLUMNS, columns, strict=True)},
    }


def sent_arguments(mark: SentMark) -> dict[str, Any]:
    """The arguments of SENT."""
    return {
        "epoch": mark.epoch,
        "batch": mark.batch_id,
        "ids": list(mark.task_ids),
        "now": mark.now_us,
        "closes": mark.closes,
    }


def as_text(statement: sa.TextClause) -> str:
    """A statement as drivers with named arguments write it."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement.text.replace("%", "%%"))


def array(values: Sequence[Any]) -> str:
    """A list of texts, numbers or truths as PostgreSQL writes an array: a driver takes five times as long for it."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def without_a_run(claims: Sequence[Claim], taken: frozenset[str]) -> frozenset[str]:
    """The jobs all of whose runs to be sent are taken."""
    lost = set()
    for claim in claims:
        wanted = {run.task_id for run in claim.runs if run.verdict is Verdict.CLAIMED}
        if wanted and wanted <= taken:
            lost.add(claim.job_id)
    return frozenset(lost)
