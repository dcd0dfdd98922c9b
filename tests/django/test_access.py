"""Who may do what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db import connections
from django.test import override_settings

from celery_qbeat.core.privileges import BUILTIN_PRUNE
from celery_qbeat.django.forms.worker import WorkerForm
from celery_qbeat.django.models import History, Job, Request, Run, Worker
from celery_qbeat.django.permissions import make_scope_permissions, scopes_of
from tests.django.making_schemas import by_django
from tests.django.rows import make_job, make_run, make_state
from tests.django.typing_forms import ADD, change, errors, typed

LIST = "/admin/qbeat/job/"


@pytest.fixture
def scopes(site: Any) -> None:
    """Two scopes with a job each, and one job in the default scope."""
    for name in ("billing", "mail"):
        Worker.objects.create(name=name)
        make_job(f"{name}.job", worker=name, timezone="UTC")
        make_run(f"{name}.job", 1_000_000)
    make_job("plain.job", timezone="UTC")


def act(client: Any, action: str, *names: str) -> Any:
    return client.post(LIST, {"action": action, "_selected_action": names}, follow=True)


def enabled(name: str) -> bool:
    return bool(Job.objects.get(pk=name).enabled)


def listed(client: Any) -> set[str]:
    return {job.pk for job in client.get(LIST).context["cl"].result_list} - {"_builtin.prune"}


def test_a_viewer_sees_everything_and_changes_nothing(scopes: None, client_of: Any) -> None:
    viewer = client_of("view_job")
    assert listed(viewer) == {"billing.job", "mail.job", "plain.job"}
    page = viewer.get(change("plain.job"))
    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()
    assert viewer.post(change("plain.job"), typed(id=None)).status_code == 403
    assert viewer.get(ADD).status_code == 403
    for address in ("forecast/", "status/"):
        assert viewer.get(LIST + address).status_code == 200


def test_nobody_without_a_permission_gets_in(scopes: None, client_of: Any) -> None:
    stranger = client_of()
    for address in (LIST, ADD, change("plain.job"), LIST + "forecast/", LIST + "status/", "/admin/qbeat/run/"):
        assert stranger.get(address).status_code == 403, address
    assert stranger.post(f"{LIST}plain.job/run-now/").status_code in (403, 404)


def test_the_right_to_run_now_is_one_of_its_own(scopes: None, client_of: Any) -> None:
    editor = client_of("view_job", "change_job")
    act(editor, "run_now", "plain.job")
    assert editor.post(f"{LIST}plain.job/run-now/").status_code == 403
    assert not Request.objects.exists()
    runner = client_of("view_job", "run_now")
    act(runner, "run_now", "plain.job", "mail.job")
    assert runner.post(f"{LIST}billing.job/run-now/").status_code == 302
    assert set(Request.objects.values_list("job_id", flat=True)) == {"plain.job", "mail.job", "billing.job"}
    act(runner, "disable", "plain.job")
    assert enabled("plain.job")


def test_the_right_to_run_now_is_needed_for_a_release(scopes: None, client_of: Any) -> None:
    ids = {name: make_run(name, 2_000_000, "sent", lease_until_us=3_000_000) for name in ("billing.job", "mail.job")}
    chosen = list(Run.objects.filter(task_id__in=ids.values()).values_list("pk", flat=True))
    data = {"action": "release", "_selected_action": chosen}
    editor = client_of("view_job", "change_job", "view_run")
    act(editor, "release", "mail.job")
    editor.post("/admin/qbeat/run/", data)
    assert editor.post(f"{LIST}mail.job/release/").status_code == 403
    assert not Request.objects.exists()
    of_billing = client_of("edit_scope_billing", "run_now", "view_run")
    of_billing.post("/admin/qbeat/run/", data)
    assert list(Request.objects.values_list("job_id", "task_id")) == [("billing.job", ids["billing.job"])]


def test_run_now_is_a_post(site: Any, scopes: None) -> None:
    assert site.get(f"{LIST}plain.job/run-now/").status_code == 405
    assert site.post(f"{LIST}no.such.job/run-now/").status_code == 404


def test_an_editor_of_one_scope_sees_and_edits_its_jobs_only(scopes: None, client_of: Any) -> None:
    editor = client_of("edit_scope_billing")
    assert listed(editor) == {"billing.job"}
    assert editor.get(change("mail.job")).status_code == 302
    form = {"id": None, "timezone": "UTC", "schedule_kind": "every", "schedule": "2h"}
    assert editor.post(change("billing.job"), typed(**form, worker="billing")).status_code == 302
    assert editor.post(change("mail.job"), typed(**form, worker="mail")).status_code == 302
    assert {job.pk: job.schedule for job in Job.objects.filter(worker__gt="")} == {
        "billing.job": "2h",
        "mail.job": "1h",
    }
    act(editor, "disable", "billing.job", "mail.job")
    assert (enabled("billing.job"), enabled("mail.job")) == (False, True)
    runs = editor.get("/admin/qbeat/run/")
    assert {run.job_id for run in runs.context["cl"].result_list} == {"billing.job"}
    act(editor, "delete_selected", "mail.job")
    assert Job.objects.filter(pk="mail.job").exists()


def test_an_editor_of_one_scope_adds_jobs_there_and_nowhere_else(scopes: None, client_of: Any) -> None:
    editor = client_of("edit_scope_billing")
    page = editor.get(ADD)
    assert page.context["adminform"].form.fields["worker"].choices == [("billing", "billing")]
    assert editor.post(ADD, typed(id="new", worker="billing")).status_code == 302
    assert "not one of the available choices" in errors(editor.post(ADD, typed(id="other", worker="mail")))["worker"]
    assert set(errors(editor.post(ADD, typed(id="other", worker="")))) == {"worker"}
    assert Job.objects.get(pk="new").worker == "billing"


def pages() -> list[str]:
    """The path of every page of the admin of qbeat, with the ids of what belongs to another scope, and the index."""
    run = Run.objects.filter(job_id="mail.job").latest("pk").pk
    ids = {"job": "mail.job", "run": run, "worker": "mail"}
    found = ["/admin/", "/admin/qbeat/", "/admin/jsi18n/"]
    for model, admin_of in admin.site._registry.items():
        if model._meta.app_label == "qbeat":
            for pattern in admin_of.get_urls():
                path = str(pattern.pattern).replace("<path:object_id>", str(ids[model._meta.model_name]))
                found.append(f"/admin/qbeat/{model._meta.model_name}/{path}")
    return found


@pytest.mark.parametrize("rights", [("edit_scope_billing",), ("edit_scope_billing", "run_now"), ()])
def test_no_page_shows_an_editor_what_belongs_to_another_scope(
    site: Any, scopes: None, client_of: Any, rights: tuple[str, ...]
) -> None:
    make_state("mail.job", late_after_us=1, problem="a secret")
    Job.objects.filter(pk="mail.job").update(description="a secret", fn="a.secret", queue="secret")
    make_run("mail.job", 2_000_000, detail="a secret")
    user = client_of(*rights)
    shown = {path: user.get(path) for path in pages()}
    assert sum(b"secret" in site.get(path).content for path in shown) >= 3
    for path, answer in shown.items():
        assert answer.status_code < 500, path
        assert b"secret" not in answer.content, path
        assert b'value="mail"' not in answer.content, path


@pytest.mark.parametrize("trace", ["run", "history", "state", "log"])
def test_an_editor_of_one_scope_cannot_take_over_a_deleted_job(scopes: None, client_of: Any, trace: str) -> None:
    if trace == "run":
        make_run("mail.gone", 2_000_000)
    elif trace == "state":
        make_state("mail.gone")
    elif trace == "log":
        make_job("mail.gone", worker="mail")
        act(client_of("view_job", "change_job"), "disable", "mail.gone")
        Job.objects.filter(pk="mail.gone").delete()
    else:
        History._base_manager.bulk_create([History(job_id="mail.gone", since_us=1, spec=None)])
    editor = client_of("edit_scope_billing")
    found = errors(editor.post(ADD, typed(id="mail.gone", worker="billing")))
    assert "choose another id" in found["id"]
    assert client_of("add_job", "change_job").post(ADD, typed(id="mail.gone", worker="")).status_code == 302


def test_an_editor_of_one_scope_cannot_make_a_built_in_job(scopes: None, client_of: Any) -> None:
    Job.objects.filter(pk=BUILTIN_PRUNE).delete()
    row = typed(id=BUILTIN_PRUNE, fn=BUILTIN_PRUNE, worker="billing")
    assert "belong to the scheduler" in errors(client_of("edit_scope_billing").post(ADD, row))["id"]


def test_a_copy_takes_no_id_that_has_runs(scopes: None, client_of: Any) -> None:
    make_run("billing.job.copy", 2_000_000)
    act(client_of("edit_scope_billing"), "duplicate", "billing.job")
    assert set(Job.objects.filter(pk__contains="copy").values_list("pk", flat=True)) == {"billing.job.copy2"}


def test_an_editor_of_one_scope_is_offered_what_the_scope_may_run(
    scopes: None, client_of: Any, celery_app: Any
) -> None:
    names = sorted(name for name in celery_app.tasks if not name.startswith("celery."))
    Worker.objects.filter(pk="billing").update(functions=names[0])
    form = client_of("edit_scope_billing").get(ADD).context["adminform"].form
    assert form.fields["fn"].widget.suggestions == names[:1]


def test_moving_a_job_takes_both_scopes_and_the_right_to_choose(scopes: None, client_of: Any) -> None:
    form = {"id": None, "timezone": "UTC", "schedule_kind": "every", "schedule": "1h"}
    both = client_of("edit_scope_billing", "edit_scope_mail")
    both.post(change("billing.job"), typed(**form, worker="mail"))
    assert Job.objects.get(pk="billing.job").worker == "billing"
    mover = client_of("edit_scope_billing", "edit_scope_mail", "change_worker_scope")
    assert mover.post(change("billing.job"), typed(**form, worker="mail")).status_code == 302
    assert Job.objects.get(pk="billing.job").worker == "mail"
    assert "worker" in errors(mover.post(change("billing.job"), typed(**form, worker="")))
    everywhere = client_of("view_job", "change_job", "change_worker_scope")
    assert everywhere.post(change("billing.job"), typed(**form, worker="")).status_code == 302
    assert Job.objects.get(pk="billing.job").worker == ""


def test_whoever_may_not_choose_adds_to_the_default_scope(scopes: None, client_of: Any) -> None:
    adder = client_of("view_job", "add_job")
    assert adder.post(ADD, typed(id="mine", worker="billing")).status_code == 302
    assert Job.objects.get(pk="mine").worker == ""


def test_a_copy_goes_where_its_maker_could_have_added_it(scopes: None, client_of: Any) -> None:
    def copies(*permissions: str) -> set[str]:
        page = act(client_of("view_job", *permissions), "duplicate", "billing.job", "plain.job").content.decode()
        found = set(Job.objects.filter(pk__endswith=".copy").values_list("pk", flat=True))
        assert ("of the selected jobs were left" in page) == (len(found) < 2)
        Job.objects.filter(pk__in=found).delete()
        LogEntry.objects.all().delete()
        return found

    assert copies("add_job") == {"plain.job.copy"}
    assert copies("edit_scope_billing") == {"billing.job.copy"}
    assert copies("add_job", "change_worker_scope") == {"billing.job.copy", "plain.job.copy"}


def test_a_user_model_with_no_lists_of_permissions_is_good_enough() -> None:
    class Plain:
        def __init__(self, *granted: str) -> None:
            self.granted = granted

        def has_perm(self, name: str) -> bool:
            return name in self.granted

    assert scopes_of(Plain(), "view") == frozenset()
    assert scopes_of(Plain("qbeat.change_job"), "view") is None


def test_who_sees_all_but_edits_one_scope_is_told_what_was_left(scopes: None, client_of: Any) -> None:
    editor = client_of("view_job", "edit_scope_billing")
    assert listed(editor) == {"billing.job", "mail.job", "plain.job"}
    page = act(editor, "disable", "billing.job", "mail.job", "plain.job").content.decode()
    assert "1 job disabled." in page
    assert "2 of the selected jobs were left as they are" in page
    assert not enabled("billing.job")


def test_a_scopes_permission_comes_and_goes_with_it(db: None) -> None:
    scope = Worker.objects.create(name="billing")
    assert Permission.objects.get(codename="edit_scope_billing").content_type.model == "job"
    scope.delete()
    assert not Permission.objects.filter(codename="edit_scope_billing").exists()


@pytest.fixture
def folding(mariadb_url: str, django_database: Callable[[str], str], celery_app: Any) -> Iterator[str]:
    """MariaDB, whose collation folds case, in the place of the default database; its alias."""
    alias = django_database(mariadb_url)
    by_django(alias, everything=True)

    class Router:
        def db_for_read(self, *_: Any, **__: Any) -> str:
            return alias

        db_for_write = db_for_read

    ContentType.objects.clear_cache()
    with override_settings(DATABASE_ROUTERS=[Router()]):
        yield alias
    ContentType.objects.clear_cache()


def test_no_two_scopes_share_a_permission(folding: str, caplog: pytest.LogCaptureFixture) -> None:
    Worker.objects.create(name="billing")
    for name in ("Billing", "BILLING", "bílling"):
        form = WorkerForm({"name": name, "enabled": "on"})
        assert "differs in more than case" in form.errors["name"][0], name
        with pytest.raises(ValidationError, match="differs in more than case"):
            Worker.objects.create(name=name)
    assert WorkerForm({"name": "mail", "enabled": "on"}).is_valid()
    insert_scope = "INSERT INTO qbeat_workers (name, enabled, queue, queues, functions, description) "
    with connections[folding].cursor() as cursor:
        cursor.execute(insert_scope + "VALUES ('Billing', TRUE, '', '', '', '')")
    make_scope_permissions(folding, apps)
    assert "worker scope 'Billing' has no permission of its own" in caplog.text
    Worker.objects.get(name="Billing").delete()
    assert Permission.objects.get(codename="edit_scope_billing").codename == "edit_scope_billing"


def test_preview_and_lists_of_a_scope_do_not_leak_others(scopes: None, client_of: Any) -> None:
    Worker.objects.filter(name="mail").update(queue="letters", queues="parcels")
    make_state("mail.job", problem="secret reason")
    make_state("code:nightly", problem="secret reason")
    editor = client_of("edit_scope_billing")
    for address in (LIST, ADD, change("billing.job"), LIST + "status/", LIST + "forecast/", "/admin/qbeat/run/"):
        page = editor.get(address).content.decode()
        for word in ("mail.job", "secret reason", "code:nightly", "=mail", ">mail<", "letters", "parcels"):
            assert word not in page, (address, word)
    assert "code:nightly" in client_of("view_job").get(LIST + "status/").content.decode()
    leaked = editor.post(
        f"{LIST}preview/",
        typed(qbeat_object_id="mail.job", worker="billing"),
        headers={"accept": "application/json"},
    ).json()
    assert leaked["difference"] is None
