"""``path("admin/forkq/", include("forkq.contrib.django.urls"))``: a page of figures for staff."""

from __future__ import annotations

from django.urls import path

from .views import overview

app_name = "forkq"
urlpatterns = [path("", overview, name="overview")]
