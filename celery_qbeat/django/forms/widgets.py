"""Widgets of plain HTML: they work without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget


class Suggesting(AdminTextInputWidget):
    """A text input with a list of suggestions."""

    template_name = "admin/qbeat/widgets/suggesting.html"

    def __init__(self, attrs: Any = None) -> None:
        super().__init__({"autocomplete": "off", "spellcheck": "false", "size": 40, **(attrs or {})})
        self.suggestions: Iterable[str] = ()

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        context["widget"]["attrs"]["list"] = f"{context['widget']['attrs'].get('id', name)}_suggestions"
        context["widget"]["suggestions"] = self.suggestions
        return context


class Boxes(forms.CheckboxSelectMultiple):
    """Check boxes in a row."""

    template_name = "admin/qbeat/widgets/boxes.html"
    use_fieldset = True


class LocalTime(forms.TextInput):
    """The browser's own picker of date and time."""

    input_type = "datetime-local"

    def __init__(self, attrs: Any = None) -> None:
        super().__init__({"step": "1", **(attrs or {})})


class JsonText(forms.Textarea):
    """A small editor for JSON."""

    def __init__(self, attrs: Any = None) -> None:
        super().__init__({"rows": 3, "cols": 60, "spellcheck": "false", "class": "qb-json", **(attrs or {})})
