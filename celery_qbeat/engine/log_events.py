"""What the log says. One place, so that a user meets the same words everywhere."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from celery_qbeat.core.jobs import Job, Run, Verdict
from celery_qbeat.core.planning import Claim
from celery_qbeat.core.plurals import quantity
from celery_qbeat.ports import Request
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOUD = {
    Verdict.MISSED: logging.WARNING,
    Verdict.SKIPPED: logging.INFO,
    Verdict.REFUSED: logging.DEBUG,
    # What is remembered from before a restored backup; mostly the ledger has it already.
    Verdict.IN_DOUBT: logging.DEBUG,
}


def instant(us: int) -> str:
    """`2026-11-29T02:00:00Z`, with a fraction only where there is one."""
    try:
        text = (_EPOCH + timedelta(microseconds=us)).isoformat()
    except OverflowError:
        return f"{us} us"
    return text.removesuffix("+00:00") + "Z"


def writing(database: str, gate: str, epoch: int, counts: dict[str, int]) -> None:
    log.info(
        "beat: writer (%s, epoch %d); database %s; "
        "rows %d: %d will run, %d disabled, %d refused, %d bad; entries in code %d",
        gate,
        epoch,
        database,
        counts["rows"],
        counts["running"],
        counts["disabled"],
        counts["refused"],
        counts["bad"],
        counts["code"],
    )


def standing_by(reason: str, gate: str) -> None:
    log.info("follower: jobs paused (%s; %s)", reason, gate)


def writing_again(epoch: int) -> None:
    log.info("beat: writer again (epoch %d)", epoch)


def fenced(gate: str) -> None:
    log.warning(
        "fenced: a newer beat writes to this database; this one stands by (%s). "
        "To run several beats on purpose give all of them the same qbeat_redis_url",
        gate,
    )


def database_away(error: BaseException) -> None:
    log.error("database: away, nothing is dispatched until it is back: %s", error)


def database_unusable(error: BaseException) -> None:
    log.error("database: cannot be used, nothing is dispatched: %s", error)


def clocks_disagree(error: BaseException) -> None:
    log.error("clock: nothing is dispatched, because %s. Set the clock that is wrong", error)


def clocks_differ(sentence: str) -> None:
    log.warning("clock: %s. Set the clock that is wrong; at 600 s nothing is dispatched", sentence)


def clocks_agree() -> None:
    log.info("clock: this machine's clock agrees with the database's clock again")


def let_go() -> None:
    log.debug("gate: the errors last; the lock is given back, so that another beat can try")


def working_again(cause: str, seconds: float) -> None:
    what = {"database": "database: back", "clock": "clock: agrees again"}.get(cause, "beat: works again")
    log.info("%s after %.1f s", what, seconds)


def restored(epoch: int, known: int) -> None:
    log.warning(
        "database: its epoch is %d, this beat had %d: an older copy was restored. "
        "Slots that this beat remembers are not sent again; those that nobody remembers are, as their catch_up says. "
        "Before beats start on a restored copy, qbeat audit --since-last-beat lists them",
        epoch,
        known,
    )


def load_progress(rows: int, seconds: float) -> None:
    log.info("take-over: %s read after %.0f s, going on", quantity(rows, "row"), seconds)


def settle_progress(runs: int, seconds: float) -> None:
    log.info("take-over: %s in flight read after %.0f s, going on", quantity(runs, "run"), seconds)


def broker_away(detail: str) -> None:
    log.error("broker: away, due runs are held back until it is back: %s", detail)


def queue_refuses(queue: str, detail: str) -> None:
    log.warning("queue %r refuses messages, its jobs wait within their grace: %s", queue, detail)


def queue_accepts(queue: str) -> None:
    log.info("queue %r takes messages again", queue)


def broker_back() -> None:
    log.info("broker: back")


def broker_lost_memory(runs: int) -> None:
    log.warning("broker: it may have lost its messages; checking %s in flight", quantity(runs, "run"))


def reloading() -> None:
    log.info("rows: reading all of them again")


def changed(rows: int, gone: int) -> None:
    log.info("rows: %d changed, %d gone", rows, gone)


def stepped_back(replanned: int) -> None:
    log.warning("clock: stepped back; %s planned again", quantity(replanned, "job"))


def problem(reported: dict[str, str], job_id: str, text: str) -> None:
    """Say it when it appears, changes or goes; not again and again."""
    before = reported.get(job_id, "")
    if text == before:
        return
    if text:
        reported[job_id] = text
        log.warning("job %r will not run: %s", job_id, text)
    else:
        del reported[job_id]
        log.info("job %r is all right again", job_id)


def shadow(row_id: str) -> None:
    log.warning("row %r will not run: an entry of beat_schedule has this id; choose another one for the row", row_id)


def sent(job: Job, run: Run) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    log.info(
        "sent: job=%r fn=%r slot=%s late=%dms task_id=%s%s%s",
        job.id,
        job.fn,
        instant(run.slot_us),
        run.late_us // 1000,
        run.task_id,
        f" collapsed={run.collapsed}" if run.collapsed else "",
        f" ({run.detail})" if run.detail else "",
    )


def decided(claim: Claim, *, expected: bool = False) -> None:
    """Slots that got their verdict without being sent. `expected`: whoever deleted the job wanted that."""
    for run in claim.runs:
        if run.verdict is not Verdict.CLAIMED:
            older = f" (and {run.collapsed} older)" if run.collapsed else ""
            level = logging.INFO if expected else _LOUD.get(run.verdict, logging.INFO)
            log.log(level, "%s: job=%r slot=%s%s: %s", run.verdict, run.job_id, instant(run.slot_us), older, run.detail)


def already_decided(claim: Claim) -> None:
    log.info("lost: job=%r slot=%s: changed or decided meanwhile", claim.job_id, instant(claim.expected_us or 0))


def unsendable(job: Job, run: Run, detail: str) -> None:
    slot = instant(run.slot_us)
    log.error("failed: job=%r slot=%s task_id=%s: could not be published: %s", job.id, slot, run.task_id, detail)


def refused_request(request: Request, refusal: str) -> None:
    asker = request.asked_by or "nobody named"
    log.warning("request %d is refused: job %r (asked by %s): %s", request.id, request.job_id, asker, refusal)


def declined(job: Job, run: Run, detail: str) -> None:
    log.info("skipped: job=%r slot=%s task_id=%s: %s", job.id, instant(run.slot_us), run.task_id, detail)


def schedule_raised(job_id: str, error: Exception, wait_us: int) -> None:
    """Anybody's code raised; what it did is in the traceback."""
    log.error(
        "job %r is not sent: its schedule raised %s: %s; it is asked again in %d s",
        *(job_id, type(error).__name__, error, wait_us // 1_000_000),
        exc_info=error,
    )


def unknown_request(request: Request) -> None:
    log.warning("run by hand: %r is not a job (asked by %s)", request.job_id, request.asked_by or "nobody named")


def unknown_action(request: Request) -> None:
    log.warning(
        "request %d (job %r, asked by %s) is dropped: its action is %r, and only 'run' and 'release' are known",
        *(request.id, request.job_id, request.asked_by or "nobody named", request.action),
    )


def nothing_to_release(request: Request) -> None:
    what = f"run {request.task_id}" if request.task_id else f"job {request.job_id!r}"
    log.warning("release: %s has no run in flight (asked by %s)", what, request.asked_by or "nobody named")


def blocked(job_id: str, skips: int, cause: str) -> None:
    log.warning("job %r: %s in a row not run: %s", job_id, quantity(skips, "slot"), cause)


def in_doubt(job_id: str, slot_us: int, task_id: str, resend: bool) -> None:
    what = "sent again under the same task id (on_doubt=resend)" if resend else "not sent again (on_doubt=drop)"
    log.warning("in doubt: job=%r slot=%s task_id=%s: perhaps sent; %s", job_id, instant(slot_us), task_id, what)


def ended(job_id: str, task_id: str, verdict: Verdict, detail: str) -> None:
    level = logging.DEBUG if verdict is Verdict.SUCCEEDED else logging.WARNING
    log.log(level, "%s: job=%r task_id=%s%s", verdict, job_id, task_id, f": {detail}" if detail else "")


def still_running(job_id: str, task_id: str) -> None:
    log.info("lease extended: job=%r task_id=%s: a worker still has it", job_id, task_id)


def duration(us: int) -> str:
    """A rough length of time: `40 s`, `49 min`, `3 h`, `2 d`."""
    seconds = max(0, us // 1_000_000)
    for unit, size in (("d", 172_800), ("h", 7_200), ("min", 120)):
        if seconds >= size:
            return f"{seconds // {'d': 86_400, 'h': 3_600, 'min': 60}[unit]} {unit}"
    return f"{seconds} s"


def chore_failed(job_id: str, error: BaseException) -> None:
    log.error("failed: job=%r: %r", job_id, error, exc_info=error)


def left_open(count: int, error: BaseException) -> None:
    log.warning(
        "beat: ends with %s undone; what it claimed and did not mark is settled by the next beat: %s",
        quantity(count, "write"),
        error,
    )


def bug(error: BaseException) -> None:
    log.error("beat: unexpected error, going on: %r", error, exc_info=error)


def bug_again(error: BaseException, count: int, seconds: float) -> None:
    log.error("beat: the same unexpected error %s more in %.0f s: %r", quantity(count, "time"), seconds, error)
