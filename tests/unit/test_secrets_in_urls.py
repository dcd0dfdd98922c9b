"""No message about a URL of ours shows a password, whatever its characters and however it is written."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest
from celery import Celery
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_qbeat.core.safe_text import hide_secrets, hide_secrets_in_text
from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.errors import QbeatError
from celery_qbeat.gates import RedisGate
from celery_qbeat.stores import open_store
from tests.contract.making_gates import Stopwatch

WORDS = ("Xq7Zk", "81930571", "wVvUu", "pR5yTt")
"""The parts of a password; no message has one of them for another reason."""

SIGNS = "/#?@:;&=%[] \\\t\n'\"<>,.+-!$^`{|}~\u202e\u2100é"
GLUE = st.text(alphabet=SIGNS, min_size=1, max_size=3)
PASSWORDS = st.tuples(GLUE, st.permutations(WORDS), st.lists(GLUE, min_size=4, max_size=4)).map(
    lambda parts: parts[0] * (len(parts[0]) % 2) + "".join(map("".join, zip(parts[1], parts[2], strict=True)))
)
NAMES = st.sampled_from(["", "user", "Xq7Zk"])
QUOTED = st.booleans()

LIKE_A_LIST = ":Xq7Zk:81930571:wVvUu;pR5yTt://"
"""A password with what looks like the next URL of a list."""

REDIS_URLS = (
    "redis://{user}:{password}@127.0.0.1:1/0",
    "rediss://{user}:{password}@127.0.0.1:1/0",
    "redis://{password}@127.0.0.1:1",
    "{password}@127.0.0.1:1",
    "http://:{password}@127.0.0.1",
    "redis://127.0.0.1:1/0?password={password}",
    "redis://127.0.0.1:1/0?password={password}&socket_timeout=soon",
    "unix://{user}:{password}@/nowhere/redis.sock",
    "redis+socket:///nowhere/redis.sock?password={password}",
    "sentinel://:{password}@127.0.0.1:1;sentinel://u:{password}@127.0.0.1:2/0?master_name=m",
    "sentinel://127.0.0.1:1/0?master_name=m&sentinel_password={password}",
    "sentinel://127.0.0.1:1/0?sentinel_password={password}",
)
DATABASE_URLS = (
    "postgresql+psycopg://{user}:{password}@127.0.0.1:1/db",
    "mysql+pymysql://{user}:{password}@127.0.0.1:1/db",
    "postgres://{user}:{password}@127.0.0.1",
    "oracle://{user}:{password}@127.0.0.1:1/db",
)


def spelled(url: str, user: str, password: str, quoted: bool) -> str:
    return url.format(user=user, password=quote(password, safe="") if quoted else password)


def has_no_secret(*messages: str) -> None:
    for message in messages:
        found = [word for word in WORDS if word in message]
        assert not found, message


def shows_only_itself(error: QbeatError) -> None:
    """A traceback would show the library's words, too."""
    assert error.__suppress_context__ or error.__context__ is None


def words_of_redis(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that a gate says of a URL whose server is not there."""
    try:
        gate = RedisGate(url, "test", 10, 1, "here", clock=Stopwatch())
    except QbeatError as error:
        shows_only_itself(error)
        return [str(error)]
    gate.bind("5f0c2b9e-7f43-4a55-9a3e-0d6f1c2b3a4d")
    gate.acquire_or_renew()
    try:
        gate.beats()
    except QbeatError as error:
        return [str(error), gate.describe(), caplog.text]
    return [gate.describe(), caplog.text]


# redis 4 leaves a socket open that could not connect.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("url", REDIS_URLS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(user=NAMES, password=PASSWORDS, quoted=QUOTED)
@example(user="", password=LIKE_A_LIST, quoted=False)
def test_a_redis_password_is_in_no_message(
    caplog: pytest.LogCaptureFixture, url: str, user: str, password: str, quoted: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    has_no_secret(*words_of_redis(spelled(url, user, password, quoted), caplog))


@pytest.mark.parametrize("url", DATABASE_URLS)
@settings(max_examples=25)
@given(password=PASSWORDS, quoted=QUOTED)
@example(password=LIKE_A_LIST, quoted=False)
def test_a_database_password_is_in_no_message(url: str, password: str, quoted: bool) -> None:
    try:
        store = open_store(spelled(url, "user", password, quoted))
    except QbeatError as error:
        return has_no_secret(str(error))
    has_no_secret(store.describe())
    with pytest.raises(QbeatError) as caught:
        store.open()
    return has_no_secret(str(caught.value))


@pytest.mark.parametrize("url", ["redis://{user}:{password}@127.0.0.1:1/0", "amqp://{user}:{password}@127.0.0.1:1//"])
@settings(max_examples=25)
@given(user=NAMES, password=PASSWORDS, quoted=QUOTED)
@example(user="user", password="81930571;pR5yTt://Xq7Zk,wVvUu", quoted=False)
def test_a_broker_password_is_in_no_message(url: str, user: str, password: str, quoted: bool) -> None:
    app = Celery("t", broker=spelled(url, user, password, quoted), set_as_current=False)
    try:
        broker.check_urls(app)
        connection = broker.connect(app.connection_for_write)
        has_no_secret(broker.describe(connection))
    except QbeatError as error:
        shows_only_itself(error)
        has_no_secret(str(error))


@given(url=st.sampled_from(REDIS_URLS + DATABASE_URLS), user=NAMES, password=PASSWORDS, quoted=QUOTED)
@example(url="{password}@127.0.0.1:1", user="", password="wVvUu://81930571,Xq7Zk,pR5yTt", quoted=False)
def test_hiding_needs_no_valid_url(url: str, user: str, password: str, quoted: bool) -> None:
    has_no_secret(hide_secrets(spelled(url, user, password, quoted)))


def test_a_raw_at_and_slash_before_a_socket_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    words = words_of_redis("unix://:@Xq7Zk:wVvUu/pR5yTt:@/nowhere/redis.sock", caplog)
    has_no_secret(*words)
    assert "an @ follows the host" in words[0]


def test_a_database_password_among_the_options_is_not_shown() -> None:
    store = open_store("postgresql+psycopg://127.0.0.1:1/db?connect_timeout=3&password=Xq7Zk&pR5yTt=1")
    assert store.describe() == "postgresql+psycopg://127.0.0.1:1/db?connect_timeout=3&password=***"


def test_what_is_no_secret_stays() -> None:
    assert hide_secrets("redis://u:x@host:6379/0?a=1&password=x") == "redis://***@host:6379/0?a=1&password=***"
    assert hide_secrets("redis://host:6379/0") == "redis://host:6379/0"
    assert hide_secrets("unix:///run/redis@1.sock?db=0") == "unix:///run/redis@1.sock?db=0"
    assert (
        hide_secrets_in_text("no route to amqp://u:x@host//, mail me@host")
        == "no route to amqp://***@host//, mail me@host"
    )


def test_a_list_of_urls_stays_readable() -> None:
    assert hide_secrets("amqp://u:x@a:1//;amqps://b;AMQP://u:x@c") == "amqp://***@a:1//;amqps://b;AMQP://***@c"
    assert hide_secrets("sentinel://a:1;sentinel://:x@b:2/0") == "sentinel://a:1;sentinel://***@b:2/0"
    assert hide_secrets("rediss://a/0?password=x;rediss://b/1") == "rediss://a/0?password=***;rediss://b/1"


def test_a_raw_slash_in_a_redis_password_is_explained() -> None:
    with pytest.raises(QbeatError, match=r"an @ follows the host: in a user or password write %2F for /") as caught:
        RedisGate("redis://user:12/34@127.0.0.1:1/0", "test", 10, 1, "here", clock=Stopwatch())
    assert "34" not in str(caught.value)
