"""Takes orders."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .jobs import Confirm
from .models import Order


@csrf_exempt  # so that curl may post; a form of yours sends its token
@require_POST
@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    """Stores an order. Its job leaves when the row is committed (FORKQ_ON_COMMIT)."""
    made = Order.objects.create(email=request.POST["email"], total=request.POST["total"])
    Confirm.perform_async(made.pk)
    return JsonResponse({"order": made.pk}, status=201)
