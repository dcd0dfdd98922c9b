"""Up to when a queue was read, against the arrival times of every message."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.dispatchers.celery.unread_backlog import Backlog

KEYS = ("a", "b")
STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from(KEYS), max_size=6), st.integers(1, 4), st.integers(0, 2)), max_size=30
)


@given(STEPS)
def test_nothing_unread_is_older_than_what_it_says(steps: list[tuple[list[str], int, int]]) -> None:
    backlog, lists, now = Backlog(), {key: deque[int]() for key in KEYS}, 0
    for arriving, reads, too_many in steps:
        for key in arriving:
            now += 1
            lists[key].append(now)
        for _ in range(reads):
            key = next((key for key in KEYS if lists[key]), None)
            if key is None:
                break
            lists[key].popleft()
            backlog.read(key)
        now += 1
        if not any(lists.values()):
            backlog.empty(now)
        elif backlog.counted_out:
            backlog.count(now, {key: len(left) + too_many for key, left in lists.items()})
        unread = [times[0] for times in lists.values() if times]
        assert all(oldest > backlog.read_up_to for oldest in unread)


def test_an_endless_flood_is_followed_with_a_delay() -> None:
    backlog, unread, now = Backlog(), 100, 0.0
    for _ in range(200):
        now += 1
        unread += 10
        for _ in range(10):
            backlog.read("a")
            unread -= 1
        if backlog.counted_out:
            backlog.count(now, Counter(a=unread))
    assert now - backlog.read_up_to <= 30
