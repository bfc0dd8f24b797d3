"""`make up`: starts the database, the broker, a worker and the site, runs the sample audits, and stops all of it in order.

    python -m auditor.up [--data FOLDER]

Each part runs in a session of its own, so that Ctrl-C reaches only this process. Everything a part says is in its log under
`.data/log/`; its errors are repeated here. A part that ends by itself ends the whole, with exit code 1.
"""

import argparse
import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from auditor import embedded

ROOT = Path(__file__).resolve().parent.parent
FIRST_PORT, LAST_PORT = 8000, 8099
WORKER_GRACE_SECONDS = 10.0  # a run that is cut off is taken up again at the next start
LOG_LIMIT_BYTES = 20 << 20
ERROR_LINE = re.compile(r"\b(ERROR|CRITICAL)\b")

_direct = urllib.request.build_opener(
    urllib.request.ProxyHandler({})
)  # a proxy cannot reach this machine's own address


WORKERS = (("worker", "light", 2), ("heavy worker", "heavy", 1))
"""Name, queue, processes: methods that take minutes must not hold up those that take seconds."""


class UpError(Exception):
    """A part does not start or has ended; the message says which and what it said last."""


class Stopped(Exception):
    """The user asked to stop."""


class Part:
    """A child process with a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.old"))
        with log.open("ab") as out:
            self._read_to = self._begun_at = out.tell()
            self.process = subprocess.Popen(  # noqa: S603
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=embedded.die_with_parent(signal.SIGTERM),
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def new_lines(self) -> list[str]:
        """Whole lines that were logged since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return whole.decode(errors="replace").splitlines()

    def said(self, lines: int = 20) -> str:
        """The end of what it logged since its start."""
        with self.log.open("rb") as log:
            log.seek(self._begun_at)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def stop(self, seconds: float) -> None:
        """Asks it to end; after `seconds` its whole group is killed."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Supervisor:
    """Starts the parts one after the other and watches them until `stopping` is set."""

    def __init__(self, data: Path, stopping: threading.Event) -> None:
        self.data, self.stopping = embedded.data_folder(data), stopping
        self.logs = self.data / "log"
        self.logs.mkdir(exist_ok=True, mode=0o700)
        (self.data / "files").mkdir(exist_ok=True, mode=0o700)
        self.parts: list[Part] = []
        self.stack = ExitStack()

    def run(self) -> None:
        """Everything from the start of the database to the stop of it. Raises UpError where a part fails."""
        with self.stack:
            say("Starting PostgreSQL and Valkey")
            self.services = embedded.start(self.data)
            self.stack.callback(self.services.stop)
            port = free_port(os.environ.get("PORT", ""))
            env = self._environment(port)
            say("Preparing the database and the static files")
            self._command("migrate", "--noinput", env=env)
            self._collect_static(env)
            say("Starting the workers and the site")
            for name, queue, processes in WORKERS:
                self._start(name, worker_command(queue, processes), env, WORKER_GRACE_SECONDS)
            self._start("web", web_command(port), env, 10.0)
            demo = ("demo", "--password-file", str(self.data / "demo_password"))
            sign_in = self._command(*demo, env=env).splitlines()[-1]
            self._wait_for_the_site(port)
            samples = Part("sample audits", manage(*demo, "--audits"), self.logs / "samples.log", env)
            self.stack.callback(samples.stop, 2.0)
            say(f"\n  Auditor is at {env['SITE_URL']}\n  {sign_in}\n")
            say(f"The sample audits are running. Logs are in {self.logs}. Ctrl-C stops everything.")
            self._follow(samples)
            while True:
                self._check()
                self._pause(0.5)

    def _environment(self, port: int) -> dict[str, str]:
        env = {**os.environ, **embedded.environment(self.data, secret_key(self.data))}
        env.setdefault("SITE_URL", f"http://localhost:{port}")
        env["DJANGO_SETTINGS_MODULE"] = "auditor.settings"
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def _command(self, *arguments: str, env: Mapping[str, str]) -> str:
        """Runs one management command to its end and returns what it said."""
        part = Part(f"manage.py {arguments[0]}", manage(*arguments), self.logs / "setup.log", env)
        try:
            while part.exit_code is None:
                self._pause(0.05)
        finally:
            part.stop(5.0)
        if part.exit_code != 0:
            raise UpError(f"{part.name} failed:\n{part.said()}")
        return part.said()

    def _collect_static(self, env: Mapping[str, str]) -> None:
        """Gathers the static files again only when their sources have changed."""
        stamp, now = self.data / "static.stamp", static_fingerprint()
        gathered = (ROOT / "staticfiles" / "staticfiles.json").exists()
        if not gathered or not stamp.exists() or stamp.read_text() != now:
            self._command("collectstatic", "--noinput", env=env)
            stamp.write_text(now)

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str], grace: float) -> None:
        part = Part(name, command, self.logs / f"{name}.log", env)
        self.stack.callback(part.stop, grace)
        self.parts.append(part)

    def _wait_for_the_site(self, port: int) -> None:
        waited = 0.0
        while True:
            self._check()
            problem = health(port)
            if not problem:
                return
            if waited > 60:
                raise UpError(f"The site does not become healthy: {problem}")
            self._pause(0.2)
            waited += 0.2

    def _follow(self, samples: Part) -> None:
        """Repeats what the sample audits say until they are done. Their failure is told and ends nothing."""
        ended = None
        while ended is None:
            self._check()
            self._pause(0.5)
            ended = samples.exit_code
            for line in samples.new_lines():
                say(f"  {line}")
        say("The sample audits are done." if ended == 0 else "The sample audits did not all complete; see above.")

    def _check(self) -> None:
        """Raises UpError where a part has ended."""
        if server := self.services.died:
            raise UpError(f"{server.name} ended by itself; see {server.log}")
        for part in self.parts:
            for line in part.new_lines():
                if ERROR_LINE.search(line):
                    say(f"[{part.name}] {line}")
            if part.exit_code is not None:
                raise UpError(f"The {part.name} ended by itself with exit code {part.exit_code}:\n{part.said()}")

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise Stopped


def manage(*arguments: str) -> list[str]:
    """A management command."""
    return [sys.executable, "manage.py", *arguments]


def worker_command(queue: str, processes: int) -> list[str]:
    """A worker for one queue."""
    command = [sys.executable, "-m", "celery", "-A", "auditor", "worker", "--queues", queue, "-n", f"{queue}@%h"]
    return [*command, "--concurrency", str(processes), "--pool", "prefork", "--loglevel", "INFO", "--without-mingle"]


def web_command(port: int) -> list[str]:
    """The site on this machine's own address."""
    command = [sys.executable, "-m", "gunicorn", "auditor.wsgi", "--bind", f"127.0.0.1:{port}"]
    command += ["--workers", "2", "--threads", "4", "--timeout", "120", "--graceful-timeout", "5"]
    return [*command, "--no-control-socket"]


def secret_key(data: Path) -> str:
    """The key that signs sessions; made at the first start and kept, readable by its owner alone."""
    file = data / "secret_key"
    with suppress(FileExistsError), os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secrets.token_urlsafe(50))
    key = file.read_text()
    if len(key) < 50:
        raise UpError(f"{file} is damaged; remove it, and everybody has to sign in again.")
    return key


def free_port(wanted: str) -> int:
    """The port that the user asked for, else the first free one from 8000."""
    if wanted and not wanted.isdigit():
        raise UpError(f"PORT must be a number, found {wanted!r}.")
    candidates = [int(wanted)] if wanted else range(FIRST_PORT, LAST_PORT + 1)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise UpError(f"No free port: tried {candidates[0]} to {candidates[-1]}. Choose one with PORT=9000 make up.")


def health(port: int) -> str:
    """Why the site is not healthy yet; empty when it is."""
    try:
        with _direct.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return "" if answer.status == 200 else f"it answers {answer.status}"
    except OSError as error:
        return str(error)


def static_fingerprint() -> str:
    """Changes when a static file or a package that carries some does."""
    digest = hashlib.sha256((ROOT / "requirements.txt").read_bytes())
    for file in sorted((ROOT / "static").rglob("*")):
        if file.is_file():
            digest.update(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()


def say(line: str) -> None:
    """Prints at once, also into a pipe. A terminal that has gone away must not keep us from stopping in order."""
    with suppress(OSError):
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 after Ctrl-C, 1 where a part failed."""
    parser = argparse.ArgumentParser(prog="python -m auditor.up", description="Run the whole of Auditor here.")
    parser.add_argument("--data", type=Path, default=ROOT / ".data", help="where the data are kept")
    options = parser.parse_args(arguments)
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if not stopping.is_set():
            stopping.set()
            say("\nStopping")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it on purpose
            signal.signal(number, stop)
    try:
        Supervisor(options.data, stopping).run()
    except Stopped:
        say(f"Stopped. The data are kept in {options.data}.")
        return 0
    except (UpError, embedded.EmbeddedError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
