"""Traces of OpenTelemetry: one of the beat and the worker, and what to do about the report of the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_qbeat.stores import open_store
from tests.celeryproc import Project
from tests.servers.waiting import wait_for

pytest.importorskip("opentelemetry.instrumentation.celery", reason="pip install opentelemetry-instrumentation-celery")
pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")

pytestmark = pytest.mark.slow

INIT = """
import json, pathlib
from celery.signals import beat_init, worker_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult


class ToFile(SpanExporter):
    def export(self, spans):
        with pathlib.Path("spans.jsonl").open("a") as file:
            for span in spans:
                file.write(json.dumps([span.name, f"{span.context.trace_id:x}"]) + "\\n")
        return SpanExportResult.SUCCESS


SAMPLER


@worker_init.connect(weak=False)
@beat_init.connect(weak=False)
def trace_tasks(**_):
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
"""

RECIPE = """
class WithoutEnds(Sampler):
    def should_sample(self, parent_context, trace_id, name, *args, **kwargs):
        if name.endswith("/celery_qbeat.done"):
            return SamplingResult(Decision.DROP)
        return ALWAYS_ON.should_sample(parent_context, trace_id, name, *args, **kwargs)

    def get_description(self):
        return "WithoutEnds"


sampler = ParentBased(root=WithoutEnds(), local_parent_sampled=WithoutEnds())
"""


def spans(project: Project) -> list[tuple[str, str]]:
    """Name and trace of each span, in the order of their ends."""
    path = project.folder / "spans.jsonl"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def ended(project: Project) -> Any:
    return project.sql("SELECT 1 FROM qbeat_runs WHERE job_id = 'j' AND verdict = 'succeeded'")


@pytest.mark.parametrize(("sampler", "extra"), [("sampler = ALWAYS_ON", True), (RECIPE, False)])
def test_a_run_is_one_trace(make_project: Callable[..., Project], redis_url: str, sampler: str, extra: bool) -> None:
    project = make_project(redis_url, {"qbeat_poll_interval": 0.2}, tasks=INIT.replace("SAMPLER", sampler))
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()
    project.sql(
        "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('j', 'proj.tasks.record', 'interval', '3600')"
    )
    project.worker("--pool=solo")
    project.beat()
    wait_for(lambda: ended(project), what="the end of the run is known")
    wait_for(lambda: any(name.startswith("run/") for name, _ in spans(project)), what="the span of the run")
    found = [(name, trace) for name, trace in spans(project)]
    names = {name for name, _ in found}
    assert {"apply_async/proj.tasks.record", "run/proj.tasks.record"} <= names
    assert ("apply_async/celery_qbeat.done" in names) is extra
    assert len({trace for _, trace in found}) == 1
