"""The jobs of this app. Each child of forkq imports the module ``jobs`` of every app."""

from django.utils.formats import number_format

import forkq

from .models import Order


class Confirm(forkq.Job, queue="mail", retry=5):
    """Writes the confirmation, in the language of the customer."""

    def perform(self, order_id: int) -> None:
        order = Order.objects.get(pk=order_id)
        if not order.confirmation:  # a job may run twice
            order.confirmation = f"You pay {number_format(order.total)}"
            order.save(update_fields=["confirmation"])
