"""`make up`: the parts start in order, a part that dies ends the whole, Ctrl-C leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from auditor import embedded, up
from auditor.up import Part, Supervisor, UpError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder() -> Iterator[Path]:
    with embedded.temporary_folder() as folder:
        yield folder


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Part]:
    """A part that ignores SIGTERM and has a child that does so too."""
    code = "trap '' TERM; sleep 600 & echo started; wait; sleep 600"
    part = Part("stubborn", ["bash", "-c", code], tmp_path / "part.log", os.environ)
    until(lambda: part.new_lines() == ["started"])
    yield part
    part.stop(0)


def until(true, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def speak(tmp_path: Path, text: str) -> Part:
    part = Part("speaker", ["printf", text], tmp_path / "speaker.log", os.environ)
    part.process.wait()
    return part


def test_a_part_is_stopped_with_everything_it_started(part: Part) -> None:
    family = [psutil.Process(part.process.pid), *psutil.Process(part.process.pid).children(recursive=True)]
    assert len(family) == 2
    part.stop(0.2)
    assert part.exit_code is not None
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in family))


def test_lines_are_read_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    part = speak(tmp_path, "one\\ntwo\\nthr")
    assert part.new_lines() == ["one", "two"]
    assert part.new_lines() == []
    assert part.said() == "one\ntwo\nthr"


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "LOG_LIMIT_BYTES", 10)
    speak(tmp_path, "more than ten bytes\\n")
    part = speak(tmp_path, "new\\n")
    assert part.said() == "new"
    assert (tmp_path / "speaker.log.old").read_text() == "more than ten bytes\n"


def test_the_errors_of_a_part_are_repeated_and_its_end_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(folder / "data", threading.Event())
    supervisor.services = type("Running", (), {"died": None})()
    script = "echo 2026-01-01 INFO audits fine; echo 2026-01-01 ERROR audits broken; exit 7"
    supervisor._start("worker", ["sh", "-c", script], os.environ, 1.0)
    supervisor.parts[0].process.wait()
    with pytest.raises(UpError, match=r"(?s)The worker ended by itself with exit code 7:.*ERROR audits broken"):
        supervisor._check()
    assert capsys.readouterr().out == "[worker] 2026-01-01 ERROR audits broken\n"
    supervisor.stack.close()


def test_the_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    key = up.secret_key(tmp_path)
    assert len(key) >= 50
    assert up.secret_key(tmp_path) == key
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600


def test_a_damaged_key_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("")
    with pytest.raises(UpError, match="damaged"):
        up.secret_key(tmp_path)


def test_a_taken_port_is_passed_over_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(up, "FIRST_PORT", port)
        monkeypatch.setattr(up, "LAST_PORT", port + 20)
        assert port < up.free_port("") <= port + 20
        with pytest.raises(UpError, match="No free port"):
            up.free_port(str(port))
    with pytest.raises(UpError, match="must be a number"):
        up.free_port("http")


# ------------------------------------------------------------------------------------------------------------- the whole


class Whole:
    """`python -m auditor.up` on data of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = {"PATH": os.environ["PATH"], "PORT": str(self.port), "OMP_NUM_THREADS": "1"}
        environment["SANDBOX_REQUIRED"] = os.environ.get("SANDBOX_REQUIRED", "B")
        self.output = data.parent / "output.txt"
        with self.output.open("wb") as out:
            command = [sys.executable, "-m", "auditor.up", "--data", str(data)]
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, seconds: float = 120.0) -> None:
        def true() -> bool:
            assert self.process.poll() is None or words in self.said(), self.said()
            return words in self.said()

        until(true, seconds)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def health(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
            return answer.status


@pytest.fixture
def whole(folder: Path) -> Iterator[Whole]:
    whole = Whole(folder / "data")
    yield whole
    if whole.process.poll() is None:
        whole.process.terminate()
        whole.process.wait(60)


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.slow
def test_up_serves_the_site_and_ctrl_c_leaves_no_process_and_keeps_the_data(whole: Whole) -> None:
    whole.wait_for("Auditor is at")
    assert whole.health() == 200
    assert subprocess.call([sys.executable, "tools/healthcheck.py", str(whole.port)], cwd=ROOT) == 0
    assert re.search(rf"http://localhost:{whole.port}\n  Sign in as alice", whole.said())
    family = whole.family()
    assert {"postgres", "valkey-server"} <= {process.name() for process in family}
    whole.process.send_signal(signal.SIGINT)
    assert whole.process.wait(60) == 0, whole.said()
    until(lambda: all_gone(family))
    assert "Stopped. The data are kept" in whole.said()
    kept = [str(path.relative_to(whole.data)) for path in whole.data.rglob("*") if path.is_file()]
    assert "secret_key" in kept
    assert any(name.startswith("files/") for name in kept)


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_everything_stops(whole: Whole) -> None:
    whole.wait_for("Auditor is at")
    family = whole.family()
    worker = next(
        process for process in family if "celery" in process.cmdline() and process.ppid() == whole.process.pid
    )
    worker.kill()
    assert whole.process.wait(60) == 1
    assert re.search(r"The (heavy )?worker ended by itself with exit code -9", whole.said())
    until(lambda: all_gone(family))
