"""What every gate promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celery_qbeat.errors import NotBound
from celery_qbeat.gates import RedisGate, StandaloneGate
from celery_qbeat.ports import Gate
from celery_qbeat.testing import OpenGate
from tests.contract.making_gates import INSTANCE, OTHER, Stopwatch, held

# ---------------------------------------------------------------- every gate


MakeGate = Callable[[], Gate]


@pytest.fixture(params=["standalone", "redis", "open"])
def unbound(request: pytest.FixtureRequest) -> Iterator[MakeGate]:
    """Makes gates of one kind that guard no database yet."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    with ExitStack() as stack:

        def make() -> Gate:
            gate: Gate
            if request.param == "redis":
                gate = RedisGate(url, "test", 3.0, 0.1, "here:1", clock=Stopwatch())
            else:
                gate = StandaloneGate() if request.param == "standalone" else OpenGate()
            stack.callback(gate.release)
            return gate

        yield make


@pytest.fixture
def gate(unbound: MakeGate) -> Gate:
    made = unbound()
    made.bind(INSTANCE)
    return made


def test_a_gate_that_nobody_else_wants_holds_and_keeps_one_term(gate: Gate) -> None:
    terms = {held(gate).term for _ in range(5)}
    assert len(terms) == 1


def test_a_lease_is_trusted_now(gate: Gate) -> None:
    assert held(gate).trusted_until > time.monotonic()


def test_a_gate_that_yielded_does_not_hold_at_once_again(gate: Gate) -> None:
    held(gate)
    gate.resign_until_replaced()
    assert gate.acquire_or_renew() is None
    assert gate.acquire_or_renew() is None


def test_a_gate_may_yield_what_it_never_had(gate: Gate) -> None:
    gate.resign_until_replaced()
    assert gate.acquire_or_renew() is None


def test_release_may_be_called_twice_and_before_anything_else(unbound: MakeGate) -> None:
    gate = unbound()
    gate.release()
    gate.bind(INSTANCE)
    gate.acquire_or_renew()
    gate.release()
    gate.release()


def test_a_gate_that_guards_no_database_refuses_to_hold(unbound: MakeGate) -> None:
    gate = unbound()
    with pytest.raises(NotBound, match=r"call bind\(store.instance\) before hold"):
        gate.acquire_or_renew()
    assert not gate.step_aside()
    gate.resign_until_replaced()
    assert gate.describe()


def test_binding_again_to_the_same_database_changes_nothing(gate: Gate) -> None:
    term = held(gate).term
    gate.bind(INSTANCE)
    assert held(gate).term == term


def test_another_database_is_held_under_a_new_term(gate: Gate) -> None:
    term = held(gate).term
    gate.bind(OTHER)
    assert held(gate).term != term


def test_what_was_yielded_of_one_database_says_nothing_of_another(unbound: MakeGate) -> None:
    gate = unbound()
    if isinstance(gate, OpenGate):
        pytest.skip("a test opens and shuts it")
    gate.bind(INSTANCE)
    held(gate)
    gate.resign_until_replaced()
    gate.bind(OTHER)
    held(gate)


def test_a_gate_says_why_it_does_not_hold(gate: Gate) -> None:
    held(gate)
    gate.resign_until_replaced()
    gate.acquire_or_renew()
    assert gate.reason() == "another beat is the writer"


def test_a_gate_that_let_go_holds_again_when_nobody_else_wants(gate: Gate) -> None:
    gate.step_aside()
    held(gate)
    gate.step_aside()
    held(gate)


def test_a_gate_describes_itself(gate: Gate) -> None:
    assert gate.describe()


def test_two_gates_have_different_terms(gate: Gate, unbound: MakeGate) -> None:
    if isinstance(gate, OpenGate):
        pytest.skip("its terms are numbers")
    first = held(gate).term
    gate.release()
    second = unbound()
    second.bind(INSTANCE)
    assert held(second).term != first


# ---------------------------------------------------------------- standalone


def test_a_standalone_gate_is_trusted_for_ever_and_stands_by_for_good_after_it_yielded() -> None:
    gate = StandaloneGate()
    gate.bind(INSTANCE)
    assert held(gate).trusted_until == float("inf")
    gate.resign_until_replaced()
    assert [gate.acquire_or_renew() for _ in range(3)] == [None] * 3
