"""``path("admin/jobs/", include("forkq.contrib.django.web"))``: the whole web UI, for staff.

Django's session says who asks, and Django's permissions what each may do (models.py). It works
under WSGI and ASGI.
"""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import user_passes_test
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, re_path, reverse
from django.utils.functional import lazy
from django.views.decorators.csrf import csrf_exempt

from ...errors import install

try:
    from starlette.requests import HTTPConnection

    from ...web import WebSettings, create_app
except ModuleNotFoundError as error:
    raise ImproperlyConfigured(f"the web UI needs {error.name}: {install('django,web')}") from None

from .asgi_thread import AsgiAnswer, AsgiThread
from .models import codename

_STAFF: Final = "forkq.staff"


class StaffUser(str):
    """The name of a member of the staff, with what Django permits them."""

    is_superuser = False
    permissions: frozenset[str] = frozenset()

    def may(self, action: str) -> bool:
        """Whether they have the permission for an action of the web UI."""
        return self.is_superuser or f"forkq.{codename(action)}" in self.permissions


async def _user_of(connection: HTTPConnection) -> str | None:
    """The view has put them there: no header can."""
    found: str | None = connection.scope.get(_STAFF)
    return found


def _may(user: str, action: str) -> bool:
    return isinstance(user, StaffUser) and user.may(action)


_web: Final = AsgiThread(
    lambda: create_app(WebSettings(authenticate=_user_of, authorize=_may)), name="forkq web"
)


def _is_staff(user: Any) -> bool:
    return bool(user.is_active and user.is_staff)


def _login_url() -> str:
    """The admin's page, or the project's own where there is no admin."""
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


@csrf_exempt  # each form of the web UI has a token of its own, which it checks
@user_passes_test(_is_staff, login_url=lazy(_login_url, str)())
def web(request: HttpRequest, below: str) -> HttpResponseBase:
    """One page, action or file of the web UI."""
    request.get_host()  # raises if ALLOWED_HOSTS has not got it
    return _response(request, _web.ask(_scope(request, below), request.body))


def _staff(user: Any) -> StaffUser:
    made = StaffUser(user.get_username())
    made.is_superuser = user.is_superuser
    made.permissions = frozenset(user.get_all_permissions())
    return made


def _scope(request: HttpRequest, below: str) -> dict[str, Any]:
    """The request as ASGI has it. ``below`` is its path within the web UI."""
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path[: len(request.path) - len(below)].rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode(),
        "headers": [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": None,
        _STAFF: _staff(request.user),
    }


def _response(request: HttpRequest, answer: AsgiAnswer) -> HttpResponseBase:
    response: HttpResponseBase
    if not answer.is_stream:
        response = HttpResponse(b"".join(answer.chunks()), status=answer.status)
    elif isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(answer.chunks_async(), status=answer.status)
    else:
        response = StreamingHttpResponse(answer.chunks(), status=answer.status)
    del response.headers["Content-Type"]
    for name, value in answer.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = value
    return response


urlpatterns = [re_path(r"^(?P<below>.*)$", web, name="forkq_web")]
