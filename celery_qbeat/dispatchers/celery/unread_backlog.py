"""Up to which moment everything that had arrived in a queue was read. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class Backlog:
    """Follows one reader of a queue, which may be several lists, each read from its oldest message on.

    Times are seconds of any one clock. Messages that arrive meanwhile do not matter: what is counted is how many of
    those that were there at some moment are still unread.
    """

    def __init__(self) -> None:
        self.read_up_to = float("-inf")
        self._counted_at = float("-inf")
        self._left: dict[str, float] = {}

    def read(self, key: str) -> None:
        """A message of this list was read."""
        if key in self._left:
            self._left[key] -= 1
            if self._left[key] <= 0:
                del self._left[key]

    @property
    def counted_out(self) -> bool:
        """Whether all that were counted last were read, so that it is time to count again."""
        return not self._left

    def count(self, now: float, unread: Mapping[str, float]) -> None:
        """The number of unread messages in each list; one that is too high does no harm. Call it when `counted_out`."""
        self.read_up_to = self._counted_at
        self._counted_at = now
        self._left = {key: number for key, number in unread.items() if number > 0}

    def empty(self, now: float) -> None:
        """The queue is empty."""
        self.read_up_to = self._counted_at = now
        self._left = {}
