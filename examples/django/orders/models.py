"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order. Its confirmation is written by a job."""

    email = models.EmailField()
    total = models.DecimalField(max_digits=9, decimal_places=2)
    confirmation = models.TextField(default="")
