"""The Celery application. It carries work; the rows in PostgreSQL say what work there is."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "auditor.settings")

app = Celery("auditor")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
