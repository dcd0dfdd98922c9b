"""Who may do what to which job; see `celery_qbeat.django.permissions`."""

from __future__ import annotations

from typing import Any

from celery_qbeat.django.permissions import CHOOSE_SCOPE, RUN_NOW, narrowed, scopes_of, within


class ScopedAccess:
    """A mixin of JobAdmin."""

    def get_queryset(self, request: Any) -> Any:
        jobs = super().get_queryset(request)  # type: ignore[misc]
        return narrowed(jobs, self.visible(request)).select_related("state")

    def visible(self, request: Any) -> frozenset[str] | None:
        """The scopes whose jobs this user sees; None: all."""
        return scopes_of(request.user, "view")

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return within(self.visible(request), obj)

    def has_add_permission(self, request: Any) -> bool:
        return within(scopes_of(request.user, "add"))

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return within(scopes_of(request.user, "change"), obj)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return within(scopes_of(request.user, "delete"), obj)

    def has_run_now_permission(self, request: Any, obj: Any = None) -> bool:
        return bool(request.user.has_perm(RUN_NOW)) and self.has_view_permission(request, obj)

    def choices_of(self, request: Any, obj: Any = None) -> tuple[frozenset[str] | None, bool]:
        """The scopes that this user may put a job into (None: all), and whether there is a choice at all."""
        scopes = scopes_of(request.user, "change" if obj else "add")
        if request.user.has_perm(CHOOSE_SCOPE):
            return scopes, True
        if obj is not None:
            return scopes, False
        # Without the right to choose, a new job goes to the default scope, or to one of the user's own.
        return (frozenset({""}), False) if scopes is None else (scopes, True)
