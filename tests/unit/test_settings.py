"""The qbeat_* keys: found wherever Celery finds settings, and refused with a sentence when wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.errors import SettingsError
from celery_qbeat.settings import Retention, Settings, read_settings


def app_with(namespace: str | None = None, **keys: Any) -> Celery:
    app = Celery("t", broker="memory://")
    app.config_from_object(SimpleNamespace(**keys), namespace=namespace)
    return app


def test_without_a_key_every_setting_has_its_default() -> None:
    assert read_settings(app_with().conf) == Settings()


@pytest.mark.parametrize(
    ("namespace", "key"), [(None, "qbeat_poll_interval"), ("CELERY", "CELERY_QBEAT_POLL_INTERVAL")]
)
def test_keys_are_found_in_an_object_even_before_celery_has_read_it(namespace: str | None, key: str) -> None:
    assert read_settings(app_with(namespace, **{key: 0.5}).conf).poll_interval == 0.5


def test_keys_set_on_the_configuration_are_found() -> None:
    app = Celery("t", broker="memory://")
    app.conf.qbeat_retention = {"succeeded": 1}
    app.conf.update(qbeat_queues=["q"], qbeat_cron=True)
    settings = read_settings(app.conf)
    assert settings.retention == Retention(succeeded=1)
    assert (settings.queues, settings.cron) == (("q",), True)


@pytest.mark.parametrize("key", ["CELERY_QBEAT_POLL_INTERVAL", "QBEAT_POLL_INTERVAL"])
def test_a_key_that_celery_does_not_find_is_told_instead_of_ignored(key: str) -> None:
    with pytest.raises(SettingsError, match=f"{key} is not read: write it as qbeat_poll_interval"):
        read_settings({key: 0.5})


def test_an_unknown_key_names_the_nearest_and_all_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting qbeat_pol_interval; did you mean qbeat_poll_interval\?"):
        read_settings({"qbeat_pol_interval": 1})
    with pytest.raises(SettingsError, match="Known: qbeat_create_tables, qbeat_cron"):
        read_settings({"qbeat_zzz": 1})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("poll_interval", 0.04, "qbeat_poll_interval = 0.04"),
        ("poll_interval", 61, "qbeat_poll_interval = 61"),
        ("poll_interval", float("nan"), "qbeat_poll_interval = nan"),
        ("cron", "yes", "qbeat_cron = 'yes'"),
        ("functions", "a.b", r"must be a list of names; write it like \['a.b'\]"),
        ("functions", [1], "qbeat_functions.0 = 1"),
        ("privileged", ["ops"], "'ops' is not a namespace; write 'ops.', or put it into qbeat_denied"),
        ("namespace", "a b", "qbeat_namespace = 'a b'"),
        ("retention", {"sent": 1}, "qbeat_retention.sent = 1"),
        ("lock_ttl", 0, "qbeat_lock_ttl = 0"),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_settings({f"qbeat_{key}": value})


def test_a_url_is_never_shown_in_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"qbeat_database_url": b"postgresql://me:secret@host/db\xff"})
    assert "secret" not in str(caught.value)


@given(
    st.dictionaries(
        st.text(max_size=30) | st.sampled_from([f"qbeat_{n}" for n in Settings.model_fields]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3)),
    )
)
def test_any_configuration_gives_settings_or_a_settings_error(conf: dict[str, Any]) -> None:
    outcome: Settings | SettingsError
    try:
        outcome = read_settings(conf)
    except SettingsError as error:
        outcome = error
    assert isinstance(outcome, Settings) or str(outcome)
