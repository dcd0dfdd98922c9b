"""The form of a worker scope."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from celery_qbeat.django.models import Worker
from celery_qbeat.django.permissions import refused_scope_name

_LISTS = {
    "queues": "Queues that jobs of this scope may name, one a line. Empty: those of the setting qbeat_queues.",
    "functions": "Tasks that jobs of this scope may run, one a line: shop.cleanup, or shop.* for all that start with "
    "shop. – Empty: every task that rows may run.",
}


class WorkerForm(forms.ModelForm):
    """Names and lists of names."""

    class Meta:
        model = Worker
        fields = ("name", "enabled", "description", "queue", "queues", "functions")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, text in _LISTS.items():
            if name in self.fields:
                self.fields[name].help_text = text
                self.fields[name].widget = forms.Textarea(attrs={"rows": 4, "cols": 50, "spellcheck": "false"})
                self.initial[name] = "\n".join(str(self.initial.get(name) or "").replace(",", " ").split())
        if "queue" in self.fields:
            self.fields["queue"].help_text = "For jobs that name no queue. Empty: where Celery routes them."

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if not name.isprintable() or name != name.strip():
            raise ValidationError("Use characters that can be seen, such as billing.")
        if refusal := refused_scope_name(name):
            raise ValidationError(refusal)
        return name

    def clean_queues(self) -> str:
        return self._listed("queues")

    def clean_functions(self) -> str:
        """Only exact names and `prefix.*` are patterns; others would silently match nothing."""
        text = self._listed("functions")
        for pattern in text.split("\n"):
            if "*" in pattern.removesuffix(".*"):
                raise ValidationError(f"{pattern!r} matches nothing: a star stands at the end, after a dot: shop.*")
        return text

    def _listed(self, name: str) -> str:
        return "\n".join(self.cleaned_data[name].replace(",", " ").split())
