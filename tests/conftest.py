"""Fixtures for every test. PostgreSQL and Valkey are started when the first test asks for the database, and only then."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="session")
def services() -> Iterator[None]:
    """Both servers, for as long as the tests run."""
    from django.conf import settings

    from auditor import embedded

    if settings.EMBEDDED_DATA is None:
        yield
        return
    running = embedded.start(settings.EMBEDDED_DATA, durable=False)
    try:
        yield
    finally:
        running.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services: None) -> None:
    """pytest-django asks for this before it makes the test database."""


@pytest.fixture(scope="session")
def static_files() -> None:
    """The static files gathered for a site that runs in a process of its own, with the application's own settings."""
    from django.conf import settings

    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "auditor.settings", "SECRET_KEY": settings.SECRET_KEY}
    command = [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser. `make test` installs it."""
    import chromium as tool

    path = tool.find()
    if path is None:
        pytest.fail("There is no Chromium; `python tools/chromium.py` says how to get one.")
    return path
