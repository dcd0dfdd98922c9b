"""Page numbers for tables that have no end."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.utils.functional import cached_property

MOST = 10_000


class Bounded(Paginator):
    """Counts to MOST and no further: counting millions of rows would be most of the work of a page."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by()[:MOST].count()
        return found
