"""The settings of the tests: the application's own, pointed at servers that `conftest.py` starts when a test needs them.

Where the servers will listen is known beforehand, so nothing has to run yet when the settings are read. With DATABASE_URL
in the environment the tests use the server that it names.
"""

import atexit
import os
import secrets
from contextlib import ExitStack

from auditor import embedded

_folders = ExitStack()
atexit.register(_folders.close)
FOLDER = _folders.enter_context(embedded.temporary_folder())
EMBEDDED_DATA = None if "DATABASE_URL" in os.environ else FOLDER

for _name, _value in embedded.environment(FOLDER, secrets.token_urlsafe(50)).items():
    os.environ.setdefault(_name, _value)

from auditor.settings import *  # noqa: E402, F403
from auditor.settings import STORAGES  # noqa: E402

# Pages name their static files as they lie in the source, so that no test of a page needs them to be gathered first.
STORAGES = {**STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
STATIC_ROOT = FOLDER / "static"
STATIC_ROOT.mkdir()
