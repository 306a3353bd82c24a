"""A page in the look of Django's admin: queues, processes and running jobs, without arguments."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from ... import api
from ...errors import ForkqError

_MOST_ROWS: Final = 200


@staff_member_required
def overview(request: HttpRequest) -> HttpResponse:
    """The page of figures, which only reads. Without Redis it says why, with status 503."""
    context = {**admin.site.each_context(request), "title": "forkq"}
    try:
        context |= _figures()
    except ForkqError as error:
        return render(request, "forkq/overview.html", {**context, "problem": error}, status=503)
    return render(request, "forkq/overview.html", context)


def _figures() -> dict[str, Any]:
    jobs = sorted(api.running(), key=lambda job: -job.elapsed)
    return {
        "stats": api.stats(),
        "processes": api.processes()[:_MOST_ROWS],
        "jobs": jobs[:_MOST_ROWS],
        "more_jobs": max(0, len(jobs) - _MOST_ROWS),
    }
