"""Messages about ends, of every shape; and what a result backend's records mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery.completion_message import read_completion
from celery_qbeat.dispatchers.celery.raw_message import MOST_BODY_BYTES, ForeignMessage, RawMessage
from celery_qbeat.dispatchers.celery.result_backend import MOST_TEXT, _end
from celery_qbeat.ports import RunOutcome

INSTANCE = "5f0c2b9e-7f43-4a55-9a3e-0d6f1c2b3a4d"

TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 1, in <module>\n    fail()\n    ^^^^^^\n'

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
KWARGS = st.fixed_dictionaries(
    {},
    optional={
        "v": SCALARS | st.just(1),
        "run": SCALARS | st.uuids().map(str),
        "outcome": SCALARS | st.sampled_from(["success", "failure"]),
        "token": SCALARS,
        "more": VALUES,
    },
)


def message(body: bytes, content_type: str = "application/json", **headers: Any) -> RawMessage:
    return RawMessage(body, content_type, "utf-8", headers)


def done(payload: Any) -> RawMessage:
    return message(json.dumps(payload).encode())


@given(VALUES | KWARGS.map(lambda kwargs: [[], kwargs, {}]) | KWARGS.map(lambda kwargs: {"kwargs": kwargs}))
def test_no_json_from_a_stranger_becomes_an_end(payload: Any) -> None:
    with pytest.raises(ForeignMessage):
        read_completion(done(payload), INSTANCE)


@given(
    st.binary(max_size=200), st.sampled_from(["application/json", "application/x-python-serialize", "text/plain", ""])
)
def test_no_bytes_from_a_stranger_become_an_end(body: bytes, content_type: str) -> None:
    with pytest.raises(ForeignMessage):
        read_completion(message(body, content_type), INSTANCE)


@given(st.uuids().map(str), st.sampled_from(["success", "failure"]))
def test_who_knows_the_runs_secret_is_believed(run: str, outcome: str) -> None:
    kwargs = {"v": 1, "run": run, "outcome": outcome, "token": run_token(INSTANCE, run)}
    verdict = Verdict.SUCCEEDED if outcome == "success" else Verdict.FAILED
    assert read_completion(done([[], kwargs, {"callbacks": None}]), INSTANCE) == RunOutcome(run, verdict)
    assert read_completion(done({"task": "celery_qbeat.done", "args": [], "kwargs": kwargs}), INSTANCE) == RunOutcome(
        run, verdict
    )
    with pytest.raises(ForeignMessage):
        read_completion(done([[], {**kwargs, "more": 1}, {}]), INSTANCE)
    with pytest.raises(ForeignMessage):
        read_completion(done([["x" * MOST_BODY_BYTES], kwargs, {}]), INSTANCE)


ID = "0b1e6b36-3a4f-5a59-9a3e-0d6f1c2b3a4d"


@pytest.mark.parametrize(
    ("status", "result", "traceback", "expected"),
    [
        ("PENDING", None, "", None),
        ("STARTED", {"pid": 1}, "", None),
        ("RETRY", {"exc_type": "ValueError", "exc_message": ["x"]}, "", None),
        ("SUCCESS", "anything", "", RunOutcome(ID, Verdict.SUCCEEDED)),
        ("FAILURE", {"exc_type": "E", "exc_message": ["one\ntwo"]}, "", RunOutcome(ID, Verdict.FAILED, "E: one")),
        ("FAILURE", {"exc_type": "E", "exc_message": "plain"}, "", RunOutcome(ID, Verdict.FAILED, "E: plain")),
        ("FAILURE", {"exc_type": "E", "exc_message": []}, "", RunOutcome(ID, Verdict.FAILED, "E")),
        ("FAILURE", {"exc_type": "E", "exc_message": [{"a": 1}]}, "", RunOutcome(ID, Verdict.FAILED, "E: {'a': 1}")),
        ("FAILURE", {"exc_type": 7}, "Traceback\na.b.E: said: so\n", RunOutcome(ID, Verdict.FAILED, "E: said: so")),
        ("FAILURE", None, "", RunOutcome(ID, Verdict.FAILED, "")),
        (
            "FAILURE",
            None,
            "celery.exceptions.NotRegistered: 'x'",
            RunOutcome(ID, Verdict.UNKNOWN_TASK, "NotRegistered: 'x'"),
        ),
        (
            "REVOKED",
            {"exc_type": "TaskRevokedError", "exc_message": ["expired"]},
            "",
            RunOutcome(ID, Verdict.EXPIRED, "expired"),
        ),
        (
            "REVOKED",
            {"exc_type": "TaskRevokedError", "exc_message": ["revoked"]},
            "",
            RunOutcome(ID, Verdict.REVOKED, "revoked"),
        ),
        ("REVOKED", None, "", RunOutcome(ID, Verdict.REVOKED, "")),
        (
            "FAILURE",
            None,
            TRACEBACK + "shop.Oops: first\n\nsecond: third\n",
            RunOutcome(ID, Verdict.FAILED, "Oops: first"),
        ),
        ("FAILURE", None, TRACEBACK + "Oops\n", RunOutcome(ID, Verdict.FAILED, "Oops")),
    ],
)
def test_a_record_of_a_result_backend_means_an_end_or_nothing(
    status: str, result: Any, traceback: str, expected: RunOutcome | None
) -> None:
    assert _end(ID, status, result, traceback) == expected


@given(st.text(), VALUES, st.text())
def test_whatever_a_result_backend_holds_the_detail_is_one_short_line(status: str, result: Any, traceback: str) -> None:
    for known in (status, "FAILURE", "REVOKED"):
        end = _end(ID, known, {"exc_type": "E", "exc_message": [result]}, traceback)
        if end is not None:
            assert len(end.detail) <= MOST_TEXT
            assert "\n" not in end.detail
