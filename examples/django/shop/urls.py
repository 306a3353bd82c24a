"""One page."""

from django.urls import path
from orders.views import order

urlpatterns = [path("orders/", order)]
