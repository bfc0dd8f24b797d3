"""Real processes against the test database: workers and a web server, started and killed by tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """The settings of this test process, for another process."""
    db = connection.settings_dict
    host = db["OPTIONS"].get("host", "")  # the folder of a socket
    password = f":{db['PASSWORD']}" if db["PASSWORD"] else ""
    port = f":{db['PORT']}" if db["PORT"] else ""
    query = f"?host={host}" if host else ""
    address = f"postgres://{db['USER']}{password}@{db['HOST']}{port}/{db['NAME']}{query}"
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/tmp"),
        "DJANGO_SETTINGS_MODULE": "auditor.settings",
        "DATABASE_URL": address,
        "BROKER_URL": settings.CELERY_BROKER_URL,
        "SECRET_KEY": settings.SECRET_KEY,
        "STORAGE_URL": settings.STORAGE_URL,
        "LEASE_SECONDS": "4",
        "SANDBOX_REQUIRED": settings.SANDBOX_REQUIRED,
        "OMP_NUM_THREADS": "1",
    } | more


class Program:
    """A process in a group of its own, with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL to the whole group, as a power cut would."""
        for process in [*self.descendants(), psutil.Process(self.process.pid)]:
            try:
                if os.getpgid(process.pid) == self.process.pid:
                    os.kill(process.pid, signal.SIGKILL)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        self.process.wait(10)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def descendants(self) -> list[psutil.Process]:
        """Processes that it started, and theirs."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def sealed_children(self) -> list[psutil.Process]:
        """The confined children that are at work now."""
        return [p for p in self.descendants() if _is_sealed_child(p)]


def _is_sealed_child(process: psutil.Process) -> bool:
    try:
        return any("audits/engine/child.py" in word for word in process.cmdline())
    except psutil.Error:
        return False


@contextmanager
def worker(folder: Path, name: str, **env: str) -> Iterator[Program]:
    """A Celery worker on the test database and broker."""
    command = [sys.executable, "-m", "celery", "-A", "auditor", "worker", "-Q", "light,heavy", "-c", "1"]
    program = Program([*command, "-n", f"{name}@%h", "--loglevel=INFO"], folder / f"{name}.log", environment(**env))
    try:
        yield program
    finally:
        program.stop()


@contextmanager
def site(folder: Path, **env: str) -> Iterator[str]:
    """gunicorn on the test database; gives the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "auditor.wsgi", "-b", f"127.0.0.1:{port}", "-w", "1", "--threads", "4"]
    program = Program(command, folder / "web.log", environment(**env))
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(address), 30, "the web server to answer", program)
        yield address
    finally:
        program.stop()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def until(true: Callable[[], Any], seconds: float, what: str, program: Program | None = None) -> None:
    """Waits for a condition; on time-out fails with the program's log."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end or (program and program.process.poll() is not None):
            log = program.log.read_text(errors="replace")[-4000:] if program else ""
            raise AssertionError(f"waited {seconds:g} s in vain for {what}\n{log}")
        time.sleep(0.1)
