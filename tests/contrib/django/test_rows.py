"""The rows of a Django project, walked by an iterable job: all of them once, though rows come and
go, and the job begins anew from each cursor."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from django.db import connection, models

import forkq
from forkq import cursors
from forkq.errors import InvalidJob
from forkq.features.iterable.parts import written
from forkq.testing import fake


@pytest.fixture
def table(project: Any) -> Iterator[Callable[[type[models.Model]], Any]]:
    """Makes the table of a model for one test. Returns its manager."""
    made: list[type[models.Model]] = []

    def make(model: type[models.Model]) -> Any:
        with connection.schema_editor() as editor:
            editor.create_model(model)
        made.append(model)
        return model._default_manager

    yield make
    for model in made:
        with connection.schema_editor() as editor:
            editor.delete_model(model)


def rests(make: Callable[[Any], Any]) -> list[Any]:
    """All rows; each of their cursors, as Redis has it, gives just the rest."""
    whole = list(make(None))
    for place, (_, cursor) in enumerate(whole):
        rest = list(make(msgspec.json.decode(written(cursor))))
        assert [row.pk for row, _ in rest] == [row.pk for row, _ in whole[place:]]
    return [row for row, _ in whole]


def test_rows_come_in_the_order_of_their_key(project: Any) -> None:
    for number in (3, 1, 2, 5, 4):
        project.objects.create(id=number, domain=f"{9 - number}.org", name="x")
    rows = project.objects.exclude(id=2).order_by("-name")
    by_id = rests(lambda at: cursors.django_rows(rows, at, page=2))
    assert [row.id for row in by_id] == [1, 3, 4, 5]
    by_domain = rests(lambda at: cursors.django_rows(rows, at, key="domain", page=2))
    assert [row.id for row in by_domain] == [5, 4, 3, 1]
    assert cursors.django_rows(rows, count=rows.count()).count == 4
    with pytest.raises(InvalidJob, match="page=0 is no number of items"):
        cursors.django_rows(rows, page=0)
    with pytest.raises(InvalidJob, match="the key has no column"):
        cursors.django_rows(rows, key=[])


def test_rows_that_share_a_key_are_told_and_two_fields_tell_them_apart(project: Any) -> None:
    """Also where a page ends between the two, and one of them would be left out."""
    for number in range(1, 6):
        project.objects.create(id=number, domain=f"{number}.org", name="ab"[number > 2])
    rows = project.objects.all()
    for page in (1, 2, 3):
        with pytest.raises(InvalidJob, match=r"two rows have the key \['b'\] of name: name a key"):
            list(cursors.django_rows(rows, "b", key="name", page=page))

        def walk(at: Any, page: int = page) -> Any:
            return cursors.django_rows(rows, at, key=("name", "pk"), page=page)

        assert [row.id for row in rests(walk)] == [1, 2, 3, 4, 5]


def test_a_job_sees_what_comes_behind_it_and_misses_only_what_is_gone(project: Any) -> None:
    seen: list[int] = []

    class Mail(forkq.IterableJob, name="rows.Mail"):
        def build_enumerator(self, cursor: int | None = None) -> Any:
            return cursors.django_rows(project.objects.all(), cursor, page=2)

        def each_iteration(self, site: Any) -> None:
            seen.append(site.id)
            if site.id == 30:
                project.objects.filter(id__in=(30, 40)).delete()  # 30: there it would go on
                for new in (5, 35, 60):
                    project.objects.create(id=new, domain=f"{new}.org", name="x")
                raise ConnectionError

    for number in (10, 20, 30, 40, 50):
        project.objects.create(id=number, domain=f"{number}.org", name="x")
    with fake() as jobs:
        Mail.perform_async()
        jobs.drain()
    assert seen == [10, 20, 30, 35, 50, 60]


def test_keys_of_other_types(table: Any) -> None:
    class Parcel(models.Model):
        key: Any = models.UUIDField(primary_key=True)
        at: Any = models.DateTimeField(unique=True)
        weight: Any = models.DecimalField(null=True, max_digits=5, decimal_places=2)

        class Meta:
            app_label = "sites"

    parcels = table(Parcel)
    for day in (3, 1, 2):
        at = f"2026-01-0{day}T10:00:00.25Z"
        parcels.create(key=uuid.UUID(int=9 - day), at=at, weight=day)
    found = rests(lambda at: cursors.django_rows(parcels.all(), at, page=1))
    assert [row.weight for row in found] == [3, 2, 1]
    found = rests(lambda at: cursors.django_rows(parcels.all(), at, key="at", page=1))
    assert [row.weight for row in found] == [1, 2, 3]
    with pytest.raises(InvalidJob, match=r"sites\.Parcel\.weight may be null.*that each row has"):
        cursors.django_rows(parcels.all(), key="weight")


def test_a_primary_key_of_several_fields(table: Any) -> None:
    composite: Any = getattr(models, "CompositePrimaryKey", None)
    if composite is None:
        pytest.skip("Django has composite primary keys from 5.2 on")

    class Line(models.Model):
        pk = composite("order", "number")
        order: Any = models.IntegerField()
        number: Any = models.IntegerField()

        class Meta:
            app_label = "sites"

    lines = table(Line)
    for order, number in ((2, 1), (1, 2), (1, 1), (2, 2), (1, 3)):
        lines.create(order=order, number=number)
    found = rests(lambda at: cursors.django_rows(lines.all(), at, page=2))
    assert [row.pk for row in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    for odd in (1, [1], [1, 2, 3]):
        with pytest.raises(InvalidJob, match="has not one value for each of order, number"):
            list(cursors.django_rows(lines.all(), odd))


def test_what_is_no_row_is_named(project: Any) -> None:
    project.objects.create(id=1, domain="1.org", name="x")
    with pytest.raises(InvalidJob, match=r"a dict is no row with the key id.*not columns of them"):
        list(cursors.django_rows(project.objects.values("id")))
