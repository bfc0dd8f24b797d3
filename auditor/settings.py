"""One settings file, read from the environment and safe by default. `.env.example` documents every variable."""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import environ
from csp.constants import NONE, SELF

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

SECRET_KEY = env.str("SECRET_KEY", "")  # an empty key stops Django at the first use; `checks.py` names a weak one
DEBUG = env.bool("DEBUG", False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
SITE_URL = env.str("SITE_URL", "http://localhost:8000")
SECURE = env.bool("SECURE", False)  # the site is served over https

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "js_lib_bootstrap5",
    "csp",
    "audits",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "auditor.urls"
WSGI_APPLICATION = "auditor.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "audits.views.context.team",
            ]
        },
    }
]

# ------------------------------------------------------------------------------------------------ database, broker, files

DATABASES = {"default": env.db_url("DATABASE_URL", "postgres://auditor@localhost/auditor")}
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"].setdefault("CONN_MAX_AGE", 60)
DATABASES["default"].setdefault("OPTIONS", {}).setdefault(
    "options", "-c statement_timeout=30000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=60000"
)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

STORAGE_URL = env.str("STORAGE_URL", f"file://{BASE_DIR / '.data' / 'files'}")


def _storage(url: str) -> dict[str, object]:
    """Django's storage settings for file:///path or s3://bucket?endpoint=https://host&region=name."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        options = {"location": parts.path, "base_url": None, "file_permissions_mode": 0o640}
        return {"BACKEND": "audits.storage.DurableFileSystemStorage", "OPTIONS": options}
    if parts.scheme == "s3":
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        s3 = {"bucket_name": parts.netloc, "default_acl": None, "querystring_auth": True, "file_overwrite": True}
        s3 |= {"endpoint_url": query.get("endpoint"), "region_name": query.get("region")}
        return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": s3}
    raise environ.ImproperlyConfigured(f"STORAGE_URL must begin with file:// or s3://, found {parts.scheme!r}")


STORAGES = {
    "default": _storage(STORAGE_URL),
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
UPLOAD_LIMIT_MB = env.int("UPLOAD_LIMIT_MB", 2048)
FILE_UPLOAD_HANDLERS = ["audits.uploads.LimitedUploadHandler"]
FILE_UPLOAD_TEMP_DIR = env.str("FILE_UPLOAD_TEMP_DIR", None)

# ------------------------------------------------------------------------------------------------------------------ queue

CELERY_BROKER_URL = env.str("BROKER_URL", "redis://localhost:6379/0")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False  # the row, not the message, says whether the work is done
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "light"
CELERY_WORKER_MAX_TASKS_PER_CHILD = 50
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False  # a run outlives the broker; its lease guards it
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600, "health_check_interval": 25, "socket_keepalive": True}
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 30
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1}
CELERY_BEAT_SCHEDULE = {"sweep": {"task": "audits.tasks.sweep", "schedule": 60.0}}
CELERY_BEAT_SCHEDULE_FILENAME = env.str("BEAT_SCHEDULE_FILE", "/tmp/celerybeat-schedule")  # noqa: S108

LEASE_SECONDS = env.float("LEASE_SECONDS", 60.0)
SANDBOX_REQUIRED = env.str("SANDBOX_REQUIRED", "B")  # the weakest level a worker may start with; D allows all

# ------------------------------------------------------------------------------------------------------- people and safety

AUTH_USER_MODEL = "audits.User"
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "dashboard"
LOGOUT_REDIRECT_URL = "sign-in"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE
SECURE_HSTS_SECONDS = 31_536_000 if SECURE else 0
SECURE_SSL_REDIRECT = SECURE
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SECURE else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "object-src": [NONE],
    }
}

vars().update(env.email_url("EMAIL_URL", default="consolemail://"))

# ------------------------------------------------------------------------------------------------------------------ pages

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"


def _package_data(package: str, folder: str) -> str:
    """Folder of static files inside an installed package, found without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise environ.ImproperlyConfigured(f"the package {package} is not installed")
    return str(Path(spec.submodule_search_locations[0]) / folder)


STATICFILES_DIRS = [BASE_DIR / "static", ("plotly", _package_data("plotly", "package_data"))]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "audits.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["audits.api.permissions.TeamPermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PAGINATION_CLASS": "audits.api.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "audits.api.errors.one_shape",
    "PAGE_SIZE": 50,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Auditor",
    "DESCRIPTION": "Submit models and data sets, request audits, fetch findings.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "WorkStatus": "audits.models.work.Status.values",
        "AuditStatus": "audits.api.serializers.AUDIT_STATUSES",
        "ArtifactKind": "audits.api.serializers.ARTIFACT_KINDS",
        "InputKind": "audits.api.serializers.INPUT_KINDS",
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", "INFO")},
}
