"""The link to the web UI in the index of Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse

from .models import WebUI

if TYPE_CHECKING:
    Base = admin.ModelAdmin[WebUI]
else:
    Base = admin.ModelAdmin


@admin.register(WebUI)
class WebUILink(Base):
    """Leads to the web UI. It is there if the project's URLs include the web UI."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the index shows it."""
        return _url() is not None

    def has_view_permission(self, request: HttpRequest, obj: WebUI | None = None) -> bool:
        """All staff may look."""
        return _url() is not None

    def has_add_permission(self, request: HttpRequest, obj: WebUI | None = None) -> bool:
        """There is nothing to add, to change or to delete."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The link of the index."""
        return redirect(str(_url()))


def _url() -> str | None:
    try:
        return reverse("forkq_web", kwargs={"below": ""})
    except NoReverseMatch:
        return None
