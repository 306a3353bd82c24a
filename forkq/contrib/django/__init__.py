"""forkq in a Django project: add ``"forkq.contrib.django"`` to INSTALLED_APPS.

Then there are the settings FORKQ and FORKQ_ON_COMMIT, the module ``jobs`` of each app,
``manage.py forkq``, and ``perform_async_on_commit``. docs/django.md has it all.
"""
