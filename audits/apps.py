"""The application's configuration."""

from django.apps import AppConfig


class AuditsConfig(AppConfig):
    """Audits of models and data sets."""

    name = "audits"
    verbose_name = "Audits"

    def ready(self) -> None:
        """Registers the system checks."""
        from audits import checks  # noqa: F401  registers itself
