"""Who may do what to which job; see `celery_qbeat.django.permissions`."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.http import QueryDict

from celery_qbeat.django.permissions import CHOOSE_SCOPE, RUN_NOW, narrowed, scopes_of, within


class NoNul:
    """A mixin of admins: what an address or a form says with a NUL in it names nothing. PostgreSQL refuses to look."""

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        request.GET, request.POST = _without_nul(request.GET), self._with_keys(_without_nul(request.POST))
        return super().changelist_view(request, extra_context)  # type: ignore[misc]

    def _with_keys(self, values: QueryDict) -> QueryDict:
        """A form whose selected keys are all keys of the table: a word is no number of a run."""
        key = self.model._meta.pk  # type: ignore[attr-defined]
        selected = values.getlist(ACTION_CHECKBOX_NAME)
        good = [text for text in selected if _is_key(key, text)]
        if good == selected:
            return values
        kept = values.copy()
        kept.setlist(ACTION_CHECKBOX_NAME, good)
        return kept

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        found: Any = None if "\0" in object_id else super().get_object(request, object_id, from_field)  # type: ignore[misc]
        return found


def _is_key(field: Any, text: str) -> bool:
    try:
        field.run_validators(field.to_python(text))
    except ValidationError:
        return False
    return True


def _without_nul(values: QueryDict) -> QueryDict:
    if not any("\0" in text for name, texts in values.lists() for text in (name, *texts)):
        return values
    kept = QueryDict(mutable=True)
    for name, texts in values.lists():
        good = [text for text in texts if "\0" not in text]
        if good and "\0" not in name:
            kept.setlist(name, good)
    return kept


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
