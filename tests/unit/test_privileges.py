"""What a row may run: exact registered names that are not privileged, and nothing else."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.core.jobs import Job, WorkerScope
from celery_qbeat.core.privileges import BUILTIN_PRUNE, NAMESPACES, RUN_OTHER_TASKS, TRUSTED, Privileges
from celery_qbeat.core.schedules import Every

NAME = "app.tasks.report"
MINUTE = Every(60_000_000)
SHOP = WorkerScope("shop", queue="shop", functions=("app.tasks.*", "exact.name"))


def job(fn: str = NAME, **columns: object) -> Job:
    return Job(**{"id": "j", "fn": fn, "schedule": MINUTE, "plan_key": "p", "rev": 1, **columns})  # type: ignore[arg-type]


def gate(*registered: str, **rules: object) -> Privileges:
    return Privileges(registered=frozenset(registered or (NAME,)), **rules)  # type: ignore[arg-type]


def test_a_registered_task_may_be_run() -> None:
    assert gate().refusal(job()) == ""


@pytest.mark.parametrize(
    "fn",
    [
        "os.system",
        "builtins.eval",
        "subprocess.call",
        NAME + " ",
        " " + NAME,
        NAME + "\t",
        NAME + "\x00",
        NAME.upper(),
        NAME.title(),
        "app.tasks.r\u0435port",
        "\uff41pp.tasks.report",
        "app.tasks.re\u200bport",
        "app.tasks.repo\u0301rt",
        NAME + "\nos.system",
        "os.system\n" + NAME,
        NAME + "x",
        NAME[:-1],
        "app.tasks.",
        "app.tasks.*",
        "*",
        "",
        "app/tasks/report",
        "app.tasks:report",
        "app.tasks..report",
        ".app.tasks.report",
    ],
)
def test_a_name_that_is_not_exactly_registered_is_refused(fn: str) -> None:
    refusal = gate().refusal(job(fn))
    assert refusal.startswith(f"fn: {fn!r} is not a registered task")
    assert "qbeat_functions" in refusal


def test_an_empty_gate_lets_nothing_through() -> None:
    assert Privileges().refusal(job()) != ""


@given(st.text(max_size=40))
def test_only_the_exact_name_passes(fn: str) -> None:
    assert (gate().refusal(job(fn)) == "") == (fn == NAME)


@given(st.text(max_size=20))
def test_two_names_that_look_or_fold_alike_are_two_names(name: str) -> None:
    for other in {name.casefold(), name.upper(), unicodedata.normalize("NFKC", name), name.strip()} - {name}:
        assert gate(other).refusal(job(name)) != ""


@pytest.mark.parametrize("name", sorted(RUN_OTHER_TASKS))
def test_tasks_that_run_other_tasks_are_refused_whoever_lists_them(name: str) -> None:
    generous = gate(name, functions=frozenset({name}), namespaces=())
    assert generous.refusal(job(name, args='[{"task": "app.tasks.report"}, [[]]]')) == (
        f"fn: {name!r} is privileged: no row may run it"
    )


@pytest.mark.parametrize("name", ["celery.backend_cleanup", "auth.login", "db.drop", "system.halt", "celery.", "db.x"])
def test_the_privileged_namespaces_are_refused_though_they_are_registered(name: str) -> None:
    assert gate(name).refusal(job(name)) == f"fn: {name!r} is privileged: no row may run tasks of this namespace"


def test_an_operator_may_allow_a_single_name_of_a_privileged_namespace() -> None:
    allowed = gate("celery.backend_cleanup", "celery.other", functions=frozenset({"celery.backend_cleanup"}))
    assert allowed.refusal(job("celery.backend_cleanup")) == ""
    assert allowed.refusal(job("celery.other")) != ""


def test_an_operator_may_make_more_namespaces_privileged() -> None:
    more = gate("ops.deploy", "opsx.deploy", namespaces=(*NAMESPACES, "ops."))
    assert more.refusal(job("ops.deploy")) != ""
    assert more.refusal(job("opsx.deploy")) == ""


@pytest.mark.parametrize("name", ["dbx.task", "authority.task", "systems.task", "my.db.task", "celery", "Celery.x"])
def test_a_name_that_only_resembles_a_privileged_namespace_is_an_ordinary_name(name: str) -> None:
    assert gate(name).refusal(job(name)) == ""


def test_a_denied_name_is_refused_whatever_else_allows_it() -> None:
    denying = gate(denied=frozenset({NAME}), functions=frozenset({NAME}))
    assert denying.refusal(job()) == f"fn: {NAME!r} is privileged: no row may run it"


def test_a_task_that_the_beat_cannot_import_may_be_listed() -> None:
    assert gate(functions=frozenset({"elsewhere.task"})).refusal(job("elsewhere.task")) == ""
    assert gate(functions=frozenset({"elsewhere.task"})).refusal(job("elsewhere.task2")) != ""


def test_a_worker_scope_narrows_what_its_rows_may_run() -> None:
    wide = gate(NAME, "app.other", "exact.name", "exact.name2", "app.tasks", "app.tasksx.y")
    assert wide.refusal(job(scope=SHOP)) == ""
    assert wide.refusal(job("exact.name", scope=SHOP)) == ""
    for fn in ("app.other", "exact.name2", "app.tasks", "app.tasksx.y"):
        assert wide.refusal(job(fn, scope=SHOP)) == f"fn: {fn!r} is outside the functions of worker 'shop'"


def test_a_worker_scope_never_widens_what_its_rows_may_run() -> None:
    for functions in (("os.system",), ("*",), (".*",), ("os.*",), ("celery.*",)):
        scope = WorkerScope("shop", functions=functions)
        assert gate("celery.map").refusal(job("os.system", scope=scope)) != ""
        assert gate("celery.map").refusal(job("celery.map", scope=scope)) != ""


def test_a_pattern_means_a_prefix_with_its_dot_and_nothing_more() -> None:
    for pattern in ("app.t*", "app.*.report", "*", "app.tasks.repor?", ".*"):
        assert gate().refusal(job(scope=WorkerScope("shop", functions=(pattern,)))) != ""


def test_only_the_seeded_pair_of_id_and_function_is_trusted() -> None:
    assert frozenset({(BUILTIN_PRUNE, BUILTIN_PRUNE)}) == TRUSTED
    assert gate().refusal(job(BUILTIN_PRUNE, id=BUILTIN_PRUNE)) == ""
    assert gate().refusal(job("os.system", id=BUILTIN_PRUNE)) != ""
    assert gate().refusal(job(BUILTIN_PRUNE, id="mine")) != ""
    assert gate().refusal(job(BUILTIN_PRUNE, id=BUILTIN_PRUNE + " ")) != ""
    assert gate().refusal(job(BUILTIN_PRUNE, id=BUILTIN_PRUNE.upper())) != ""


def test_no_setting_lets_another_row_run_what_is_built_in() -> None:
    told = "fn: '_builtin.prune' is built in: only the row with the id '_builtin.prune' may run it"
    assert gate().refusal(job(BUILTIN_PRUNE)) == told
    assert gate(BUILTIN_PRUNE, functions=frozenset({BUILTIN_PRUNE})).refusal(job(BUILTIN_PRUNE)) == told


def test_an_entry_in_code_is_trusted_and_a_row_never_is_one() -> None:
    assert gate().refusal(job("celery.backend_cleanup", rev=None)) == ""
    assert gate().refusal(job("celery.backend_cleanup", rev=0)) != ""


@pytest.mark.parametrize(
    ("queue", "scope", "queues", "allowed"),
    [
        (None, WorkerScope(), (), True),
        ("fast", WorkerScope(), (), False),
        ("fast", WorkerScope(), ("fast",), True),
        ("Fast", WorkerScope(), ("fast",), False),
        ("fast ", WorkerScope(), ("fast",), False),
        ("shop", SHOP, (), True),
        ("fast", SHOP, ("fast",), True),
        ("fast", WorkerScope("shop", queues=("slow",)), ("fast",), False),
        ("slow", WorkerScope("shop", queues=("slow",)), ("fast",), True),
        ("shop", WorkerScope("shop", queue="shop", queues=("slow",)), (), True),
    ],
)
def test_a_row_names_only_an_allowed_queue(
    queue: str | None, scope: WorkerScope, queues: tuple[str, ...], allowed: bool
) -> None:
    refusal = gate(queues=frozenset(queues)).refusal(job(queue=queue, scope=scope))
    assert (refusal == "") is allowed
    assert allowed or refusal.startswith(f"queue: {queue!r} is not allowed (allowed: ")


@pytest.mark.parametrize(
    ("queue", "owner"),
    [
        ("unacked", "kombu"),
        ("unacked_index", "kombu"),
        ("unacked_mutex", "kombu"),
        ("_kombu.binding.celery", "kombu"),
        ("slow\x06\x163", "kombu"),
        ("celery@host.celery.pidbox", "Celery"),
        ("a-b-c.reply.celery.pidbox", "Celery"),
        ("celeryev", "Celery"),
        ("celeryev.1f0c", "Celery"),
        ("celery-task-meta-1", "Celery"),
        ("amq.rabbitmq.reply-to", "RabbitMQ"),
        ("qbeat.done.default", "celery_qbeat"),
        ("qbeat:broker", "celery_qbeat"),
    ],
)
def test_a_reserved_name_is_no_queue_of_a_row_or_a_scope(queue: str, owner: str) -> None:
    allowed = gate(queues=frozenset({queue}))
    reason = f"queue: {queue!r} is reserved by {owner}; choose another name"
    assert allowed.refusal(job(queue=queue)) == reason
    assert allowed.refusal(job(scope=WorkerScope("shop", queue=queue))) == reason


@pytest.mark.parametrize("queue", ["celery", "unacked_orders", "amqp", "qbeat", "events.celeryev", "pidbox", "a.b"])
def test_a_name_that_only_looks_reserved_is_a_queue(queue: str) -> None:
    assert gate().refusal(job(scope=WorkerScope("shop", queue=queue))) == ""


def test_a_refused_queue_says_which_are_allowed() -> None:
    assert gate(queues=frozenset({"b", "a"})).refusal(job(queue="c")) == (
        "queue: 'c' is not allowed (allowed: a, b); list it in qbeat_queues or the worker's queues"
    )
    narrowed = job(queue="c", scope=WorkerScope("shop", queues=("a",)))
    assert gate(queues=frozenset({"c"})).refusal(narrowed) == (
        "queue: 'c' is not allowed (allowed: a); list it in the queues of worker 'shop'"
    )
    assert "(allowed: none)" in gate().refusal(job(queue="c"))


def test_a_form_offers_only_what_some_row_could_run() -> None:
    rules = {"functions": frozenset({"else.where"}), "denied": frozenset({"app.b"})}
    assert gate(NAME, "celery.map", "db.drop", "app.b", **rules).may_run() == [NAME, "else.where"]


# ---------------------------------------------------------------- less than every registered task

BILLING = WorkerScope("billing")


@pytest.mark.parametrize(
    ("scope", "fn", "runs"),
    [
        (WorkerScope(), "app.tasks.report", True),
        (WorkerScope(), "app.mail.send", True),
        (WorkerScope(), "app.mail.send_all", False),
        (WorkerScope(), "other.thing", False),
        (BILLING, "other.thing", False),
        (SHOP, "exact.name", True),
        (SHOP, "app.mail.send", False),
    ],
)
def test_an_allow_list_holds_where_the_scope_has_no_functions(scope: WorkerScope, fn: str, runs: bool) -> None:
    names = ("app.tasks.report", "app.mail.send", "app.mail.send_all", "other.thing", "exact.name")
    privileges = gate(*names, allow=("app.tasks.*", "app.mail.send"))
    assert (privileges.refusal(job(fn, scope=scope)) == "") is runs


def test_an_empty_allow_list_allows_nothing() -> None:
    assert "qbeat_allow" in gate(allow=()).refusal(job())


@pytest.mark.parametrize(("scope", "runs"), [(WorkerScope(), False), (SHOP, False), (BILLING, True)])
def test_a_reserved_task_runs_in_its_scopes_only(scope: WorkerScope, runs: bool) -> None:
    privileges = gate(NAME, reserved=(("app.tasks.*", frozenset({"billing"})),))
    assert privileges.refusal(job(scope=scope)) == (
        "" if runs else f"fn: {NAME!r} is reserved for rows of worker 'billing'"
    )


def test_a_row_without_a_scope_is_refused_where_one_is_required() -> None:
    privileges = gate(scope_required=True)
    assert privileges.refusal(job()).startswith("worker: ")
    assert privileges.refusal(job(scope=BILLING)) == ""
    assert privileges.refusal(job(BUILTIN_PRUNE, id=BUILTIN_PRUNE)) == ""


def test_entries_in_code_are_not_narrowed() -> None:
    privileges = gate(allow=(), scope_required=True, reserved=((NAME, frozenset({"x"})),))
    assert privileges.refusal(job(id="code:j", rev=None)) == ""


def test_what_is_forbidden_stays_so_whatever_gets_registered() -> None:
    privileges = gate(allow=("app.*",))
    assert privileges.forbidden(job("app.later")) == ""
    assert "qbeat_allow" in privileges.forbidden(job("other.later"))
    assert "privileged" in privileges.forbidden(job("celery.map"))


def test_patterns_that_match_nothing_are_named() -> None:
    privileges = gate(allow=("app.tasks.*", "ap.tasks.*"), reserved=(("billing.*", frozenset({"billing"})),))
    assert privileges.unmatched() == [
        "qbeat_allow: 'ap.tasks.*' matches no registered task",
        "qbeat_reserved: 'billing.*' matches no registered task",
    ]


def test_a_form_offers_the_names_of_the_scopes_at_hand() -> None:
    privileges = gate("app.tasks.a", "exact.name", "free", allow=("free",))
    assert privileges.may_run() == ["free"]
    assert privileges.may_run([WorkerScope(), SHOP]) == ["app.tasks.a", "exact.name", "free"]
