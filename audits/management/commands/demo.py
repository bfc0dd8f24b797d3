"""Makes the demo team and, with --audits, runs the sample audits through the running worker."""

import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from audits.services import demo


class Command(BaseCommand):
    """`manage.py demo` makes the team and uploads the samples; `manage.py demo --audits` waits for the sample audits."""

    help = "Make the demo team with its sample files; with --audits also run the sample audits and wait for them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the options."""
        parser.add_argument("--audits", action="store_true", help="request the sample audits and wait until they end")
        parser.add_argument("--timeout", type=float, default=900.0, help="seconds to wait for the audits")
        parser.add_argument(
            "--password-file",
            type=Path,
            default=settings.BASE_DIR / ".data" / "demo_password",
            help="where the password of the demo users is kept; made up if absent",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Runs the command."""
        password = _password(options["password_file"])
        team = demo.demo_team(password)
        demo.demo_artifacts(team)
        if options["audits"]:
            self._audits(team, options["timeout"])
        names = ", ".join(f"{name} ({role.label.lower()})" for name, *_rest, role in demo.PEOPLE)
        self.stdout.write(f"Sign in as {names} with the password {password}")

    def _audits(self, team: Any, timeout: float) -> None:
        end = time.monotonic() + timeout

        def pause() -> None:
            if time.monotonic() > end:
                raise CommandError(f"The sample audits did not end within {timeout:g} seconds. Is a worker running?")
            time.sleep(0.5)

        if not demo.run_demo(team, pause=pause, say=self.stdout.write):
            raise CommandError("A sample audit did not complete; see above and the worker's log.")


def _password(file: Path) -> str:
    if file.exists():
        return file.read_text().strip()
    password = demo.random_password()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(password + "\n")
    return password
