"""What Celery itself prints of a project's configuration has no password of ours in it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from celery_qbeat.settings import Settings
from tests.celeryproc import Project

PASSWORD = "s3cr3t/#?:;&= @%é"
SPELLINGS = {"plain": PASSWORD, "quoted": quote(PASSWORD, safe="")}
FRAGMENTS = ("s3cr3t", quote(PASSWORD, safe=""))
URLS = sorted(f"qbeat_{name}" for name in Settings.model_fields if "url" in name)


def urls_with(password: str) -> dict[str, str]:
    return dict.fromkeys(URLS, f"redis://user:{password}@host:1/0")


def without_secrets(text: str, names: list[str]) -> None:
    for name in names:
        assert name in text
    for fragment in FRAGMENTS:
        assert fragment not in text


@pytest.mark.parametrize("password", SPELLINGS.values(), ids=SPELLINGS)
def test_celery_report_hides_our_urls(make_project: Callable[..., Project], password: str) -> None:
    project = make_project("memory://", urls_with(password))
    answer = project.cli("report")
    assert answer.returncode == 0, answer.stderr
    without_secrets(answer.stdout, URLS)


def test_celery_report_hides_our_urls_in_a_namespace(make_project: Callable[..., Project]) -> None:
    project = make_project("memory://")
    settings = {f"CELERY_{name.upper()}": url for name, url in urls_with(PASSWORD).items()}
    lines = "".join(f"{name} = {url!r}\n" for name, url in settings.items())
    (project.folder / "namespaced.py").write_text(
        f"from celery import Celery\nimport sys\n{lines}CELERY_BROKER_URL = 'memory://'\n"
        "app = Celery('namespaced')\napp.config_from_object(sys.modules[__name__], namespace='CELERY')\n"
        "assert app.conf.qbeat_redis_url\n"
    )
    answer = project.cli("-A", "namespaced", "report")
    assert answer.returncode == 0, answer.stderr
    without_secrets(answer.stdout.lower(), [])
    assert "qbeat_redis_url" in answer.stdout.lower()


def test_celery_inspect_conf_hides_our_urls(make_project: Callable[..., Project], redis_url: str) -> None:
    project = make_project(redis_url, urls_with(PASSWORD))
    project.worker("--pool=solo")
    answer = project.cli("inspect", "conf", "--timeout=20")
    assert answer.returncode == 0, answer.stderr
    without_secrets(answer.stdout, URLS)


@pytest.mark.parametrize("setting", ["qbeat_redis_url", "broker_url"])
def test_a_start_error_has_no_part_of_a_password(make_project: Callable[..., Project], setting: str) -> None:
    project = make_project("memory://")
    project.configure(**{setting: "redis://:s3cr3t/pa?ss#w0rd@127.0.0.1:1/0"})
    beat = project.beat()
    assert beat.wait_exit() == 1
    said = beat.output()
    assert f"celery_qbeat: {setting}: " in said
    assert "%2F for /" in said
    assert "Traceback" not in said
    assert not [part for part in ("s3cr3t", "pa?", "ss#", "w0rd") if part in said]
