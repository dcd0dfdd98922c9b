"""The `qbeat_*` keys: found however Celery spells them, and refused in one clear sentence."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.errors import SettingsError
from celery_qbeat.settings import Retention, Settings, read_settings


def read(**conf: Any) -> Settings:
    return read_settings(conf)


def refusal(**conf: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings(conf)
    return str(caught.value)


def test_without_any_key_the_defaults_hold() -> None:
    settings = read(broker_url="memory://")
    assert settings == Settings()
    assert (settings.database_url, settings.redis_url, settings.namespace) == (None, None, "default")
    assert (settings.lock_ttl, settings.poll_interval, settings.min_interval) == (10.0, 1.0, 1.0)
    assert (settings.cron, settings.create_tables) == (False, None)
    assert settings.retention == Retention(succeeded=7, failed=30, other=7)


def test_every_key_is_read() -> None:
    settings = read(
        qbeat_database_url="postgresql+psycopg://u:p@h/d",
        qbeat_django_database="jobs",
        qbeat_redis_url="redis://h/1",
        qbeat_namespace="shop.eu-1",
        qbeat_lock_ttl=30,
        qbeat_poll_interval=0.05,
        qbeat_min_interval=0.5,
        qbeat_cron=True,
        qbeat_functions=["a.b"],
        qbeat_privileged=("ops.",),
        qbeat_denied={"x.y"},
        qbeat_queues=["fast", "slow"],
        qbeat_retention={"succeeded": 1},
        qbeat_create_tables=True,
    )
    assert settings.database_url == "postgresql+psycopg://u:p@h/d"
    assert (settings.functions, settings.privileged, settings.denied) == (("a.b",), ("ops.",), ("x.y",))
    assert settings.queues == ("fast", "slow")
    assert settings.retention == Retention(succeeded=1, failed=30, other=7)
    assert (settings.cron, settings.create_tables, settings.poll_interval) == (True, True, 0.05)


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


# ---------------------------------------------------------------- the ways of Celery


def app_of(**settings: Any) -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(**settings)
    return app.conf


def test_keys_set_on_a_celery_app_are_found() -> None:
    assert read_settings(app_of(qbeat_namespace="shop")).namespace == "shop"


def test_keys_in_a_configuration_object_in_lower_case_are_found() -> None:
    app = Celery("shop", set_as_current=False)
    app.config_from_object(SimpleNamespace(broker_url="memory://", qbeat_cron=True))
    assert read_settings(app.conf).cron is True


def test_keys_with_a_celery_namespace_are_found() -> None:
    app = Celery("shop", set_as_current=False)
    source = SimpleNamespace(CELERY_BROKER_URL="memory://", CELERY_QBEAT_NAMESPACE="shop")
    app.config_from_object(source, namespace="CELERY")
    assert read_settings(app.conf).namespace == "shop"


@pytest.mark.parametrize("key", ["QBEAT_NAMESPACE", "CELERY_QBEAT_NAMESPACE", "Qbeat_Namespace"])
def test_a_key_that_celery_would_not_find_is_said_to_be_spelled_wrongly(key: str) -> None:
    assert refusal(**{key: "shop"}) == (
        f"{key} is not read: write it as qbeat_namespace (or with namespace='CELERY' as CELERY_QBEAT_NAMESPACE)"
    )


def test_a_celery_app_without_any_key_of_ours_is_all_right() -> None:
    assert read_settings(app_of(task_default_queue="x", beat_max_loop_interval=5)) == Settings()


# ---------------------------------------------------------------- refusals


def test_an_unknown_key_names_the_one_that_was_meant_and_all_others() -> None:
    text = refusal(qbeat_databse_url="sqlite://")
    assert text.startswith("unknown setting qbeat_databse_url; did you mean qbeat_database_url? Known: ")
    for name in Settings.model_fields:
        assert f"qbeat_{name}" in text


def test_an_unknown_key_that_resembles_none_names_all() -> None:
    assert refusal(qbeat_xyzzy=1).startswith("unknown setting qbeat_xyzzy; Known: qbeat_")


@pytest.mark.parametrize(
    ("conf", "start"),
    [
        ({"qbeat_poll_interval": 0.01}, "qbeat_poll_interval = 0.01: "),
        ({"qbeat_poll_interval": 61}, "qbeat_poll_interval = 61: "),
        ({"qbeat_poll_interval": "soon"}, "qbeat_poll_interval = 'soon': "),
        ({"qbeat_poll_interval": None}, "qbeat_poll_interval = None: "),
        ({"qbeat_lock_ttl": 0}, "qbeat_lock_ttl = 0: "),
        ({"qbeat_lock_ttl": float("inf")}, "qbeat_lock_ttl = inf: "),
        ({"qbeat_lock_ttl": float("nan")}, "qbeat_lock_ttl = nan: "),
        ({"qbeat_min_interval": 0}, "qbeat_min_interval = 0: "),
        ({"qbeat_namespace": "a b"}, "qbeat_namespace = 'a b': "),
        ({"qbeat_namespace": ""}, "qbeat_namespace = '': "),
        ({"qbeat_namespace": "a\n"}, "qbeat_namespace = 'a\\n': "),
        ({"qbeat_cron": "yes"}, "qbeat_cron = 'yes': "),
        ({"qbeat_cron": 1}, "qbeat_cron = 1: "),
        ({"qbeat_functions": "a.b"}, "qbeat_functions = 'a.b': must be a list of names; write it like ['a.b']"),
        ({"qbeat_functions": [1]}, "qbeat_functions.0 = 1: "),
        ({"qbeat_functions": [""]}, "qbeat_functions.0 = '': "),
        ({"qbeat_queues": 5}, "qbeat_queues = 5: "),
        ({"qbeat_queues": {"fast": 1}}, "qbeat_queues = {'fast': 1}: "),
        ({"qbeat_denied": b"x"}, "qbeat_denied = b'x': "),
        ({"qbeat_retention": {"suceeded": 1}}, "qbeat_retention.suceeded = 1: "),
        ({"qbeat_retention": {"failed": -1}}, "qbeat_retention.failed = -1: "),
        ({"qbeat_retention": 7}, "qbeat_retention = 7: "),
        ({"qbeat_create_tables": "perhaps"}, "qbeat_create_tables = 'perhaps': "),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_value_is_named_with_its_key(conf: dict[str, Any], start: str) -> None:
    text = refusal(**conf)
    assert text.startswith(start)
    assert "\n" not in text


@pytest.mark.parametrize("key", ["qbeat_database_url", "qbeat_redis_url"])
def test_a_url_is_never_shown(key: str) -> None:
    text = refusal(**{key: ["redis://:secret@host"]})
    assert text.startswith(f"{key} = (hidden): ")
    assert "secret" not in text


def test_a_namespace_of_tasks_ends_with_its_dot() -> None:
    assert refusal(qbeat_privileged=["ops.", "root"]) == (
        "qbeat_privileged: 'root' is not a namespace; write 'root.', or put it into qbeat_denied"
    )


@pytest.mark.parametrize("pattern", ["*", "shop*", "*.send", ".*", "shop.*.send"])
@pytest.mark.parametrize("setting", ["qbeat_allow", "qbeat_reserved"])
def test_a_pattern_is_a_name_or_ends_with_dot_and_asterisk(setting: str, pattern: str) -> None:
    value: Any = [pattern] if setting == "qbeat_allow" else {pattern: "billing"}
    assert refusal(**{setting: value}).startswith(f"{setting}: {pattern!r} is not a pattern; ")


def test_reserved_tasks_are_a_mapping_of_patterns_to_scopes() -> None:
    assert read_settings({"qbeat_reserved": {"a.*": "one", "b": ["one", "two"]}}).reserved == {
        "a.*": ("one",),
        "b": ("one", "two"),
    }
    assert "write it like {'billing.*': ['billing']}" in refusal(qbeat_reserved=["a"])
    assert refusal(qbeat_reserved={"a": []}).startswith("qbeat_reserved")


def test_the_first_thing_that_is_wrong_is_said_alone() -> None:
    assert refusal(qbeat_cron="x", qbeat_poll_interval=-1).count("qbeat_") == 1


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.text(max_size=3))


@given(st.dictionaries(st.sampled_from([f"qbeat_{name}" for name in Settings.model_fields]), ANYTHING, max_size=4))
def test_settings_are_read_or_refused_and_nothing_else(conf: dict[str, Any]) -> None:
    with suppress(SettingsError):
        read_settings(conf)
