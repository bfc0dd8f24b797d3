"""Programs that attack: each shows by a canary that it ran, and by a control without the seal that it would have succeeded."""

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from audits.engine import sandbox, seal

CANARY = "the canary sang"
LEAK = "the attack worked"

_HARNESS = """
import ctypes, fcntl, os, resource, signal, socket, subprocess, sys
sys.stdout.reconfigure(line_buffering=True)
secret, readable, outside, victim, port, datagrams = sys.argv[1:7]
victim, port = int(victim), int(port)
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
def attack():
    BODY
print("CANARY")
try:
    worked = attack()
except Exception as error:
    print("stopped by", type(error).__name__, error)
else:
    print("nothing there" if worked is False else "LEAK")
"""

ATTACKS = {
    "read a secret": "return open(secret).read()",
    "read the passwords": "return open('/etc/passwd').read()",
    "read the environment of another process": "return open(f'/proc/{victim}/environ', 'rb').read()",
    "read the memory map of another process": "return open(f'/proc/{victim}/maps').read()",
    "find a secret in its own environment": "return 'PLANTED_SECRET' in os.environ",
    "use a file that its parent left open": "return os.read(57, 1) == b's'",
    "connect by TCP": "socket.create_connection(('127.0.0.1', port), 2)",
    "send by UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "send to a socket in the file system": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', datagrams)",
    "fork": "pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
    "start a program": "subprocess.run(['/bin/true'], check=True)",
    "become another program": "os.execv('/bin/echo', ['echo', 'LEAK'])",
    "write outside": "open(outside, 'w').write('x')",
    "write over what it may read": "open(readable, 'w').write('x')",
    "empty what it may read": "os.open(readable, os.O_RDONLY | os.O_TRUNC)\n    return os.path.getsize(readable) == 0",
    "change the mode of what it may read": "os.chmod(readable, 0o600)",
    "link to a secret": "os.link(secret, 'link')\n    return open('link').read()",
    "point at a secret": "os.symlink(secret, 'pointer')\n    return open('pointer').read()",
    "kill another process": "os.kill(victim, signal.SIGCONT)",
    "trace another process": "return checked(libc.ptrace(16, victim, 0, 0))",
    "limit another process": "resource.prlimit(victim, resource.RLIMIT_CORE)",
    "pin another process": "os.sched_setaffinity(victim, os.sched_getaffinity(0))",
    "have the kernel signal another process": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, victim)",
    "outlive its parent": "return checked(libc.prctl(1, 0, 0, 0, 0))",
    "hide bytes in memory": "os.write(os.memfd_create('x'), b'x')",
    "use the shared memory folder": "open(f'/dev/shm/{os.path.basename(outside)}', 'w').write('x')",
    "ask for io_uring": "return checked(libc.syscall(425, 1, ctypes.create_string_buffer(120)))",
}
MAY_BE_OFF = {"trace another process", "ask for io_uring"}  # hardened hosts forbid these to everybody


def _program(body):
    return _HARNESS.replace("BODY", body).replace("CANARY", CANARY).replace("LEAK", LEAK)


@pytest.fixture
def battlefield(tmp_path):
    """A secret, a readable file, a place outside, a process, and listeners; as arguments for the programs."""
    secret, readable, datagrams = tmp_path / "secret", tmp_path / "readable", tmp_path / "datagrams"
    secret.write_text("secret")
    readable.write_text("readable")
    victim = subprocess.Popen(["sleep", "60"])
    listener = socket.create_server(("127.0.0.1", 0))
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(datagrams))
    outside = tmp_path / f"auditor-outside-{os.getpid()}"
    yield [secret, readable, outside, victim.pid, listener.getsockname()[1], datagrams]
    listener.close()
    listening.close()
    victim.kill()
    victim.wait()
    Path(f"/dev/shm/{outside.name}").unlink(missing_ok=True)


@pytest.fixture
def left_open(battlefield):
    """The secret, open under the number 57 in this process and willing to be inherited."""
    place = os.open(battlefield[0], os.O_RDONLY)
    os.dup2(place, 57, inheritable=True)
    yield
    os.close(57)
    os.close(place)


@pytest.mark.usefixtures("left_open")
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_stopped(name, battlefield, run_sealed, monkeypatch):
    monkeypatch.setenv("PLANTED_SECRET", "1")
    ended = run_sealed(_program(ATTACKS[name]), *battlefield, readable=[battlefield[1]])
    assert CANARY in ended.log
    assert LEAK not in ended.log
    assert ended.log.count("\n") == 2, ended.log
    assert battlefield[1].read_text() == "readable"


@pytest.mark.usefixtures("left_open")
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_works_without_the_seal(name, battlefield, run_free, monkeypatch):
    monkeypatch.setenv("PLANTED_SECRET", "1")
    said = run_free(_program(ATTACKS[name]), *battlefield, close_fds=False)
    if LEAK not in said and name in MAY_BE_OFF:
        pytest.skip(f"this host forbids it to everybody: {said}")
    assert CANARY in said
    assert LEAK in said


# ------------------------------------------------------------------------------------------------------------- resources

_SING = f"print({CANARY!r}, flush=True)\n"


def test_memory_ends_at_the_limit(run_sealed, run_free):
    code = _SING + "held = []\nfor i in range(64):\n    held.append(bytearray(16 << 20))\nprint('took a gigabyte')"
    assert "took a gigabyte" in run_free(code)
    ended = run_sealed(code, memory_bytes=600 << 20)
    assert CANARY in ended.log
    assert "MemoryError" in ended.log


def test_processor_time_ends_at_the_limit(run_sealed, run_free):
    code = _SING + "import time\nwhile time.process_time() < {}: pass\nprint('span on')"
    assert "span on" in run_free(code.format(1.2))
    ended = run_sealed(code.format(60), cpu_seconds=1)
    assert CANARY in ended.log
    assert ended.code == -signal.SIGXCPU


@pytest.mark.slow
def test_processor_time_cannot_be_ignored(run_sealed):
    code = _SING + "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    ended = run_sealed(code, cpu_seconds=1)  # and two seconds of grace
    assert CANARY in ended.log
    assert ended.code == -signal.SIGKILL
    assert ended.seconds < 10


def test_sleeper_that_ignores_every_signal_ends_at_the_clock(run_sealed):
    code = _SING + (
        "import signal, time\nfor s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(60)"
    )
    ended = run_sealed(code, wall_seconds=1.5)
    assert "deaf" in ended.log
    assert (ended.why, ended.code) == ("wall", -signal.SIGKILL)
    assert ended.seconds < 3


def test_flood_of_output_is_stopped_and_cut(run_sealed):
    ended = run_sealed(_SING + "while True: print('x' * 10_000)", output_bytes=1 << 20)
    assert ended.why == "output"
    assert len(ended.log) <= sandbox.LOG_KEPT


FILLERS = {
    "one huge file": "f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()",
    "several large files": "for i in range(10_000): open(str(i), 'wb').write(bytes(1 << 20)); time.sleep(0.02)",
    "many empty files": "for i in range(400_000): open(str(i), 'w').close()",
    "a deep tree": "while True: os.mkdir('d'); os.chdir('d')",
    "an unreadable folder": "os.mkdir('locked', 0)\ntime.sleep(1)",
}


@pytest.mark.parametrize("name", FILLERS)
def test_scratch_cannot_be_filled_and_is_removed(name, run_sealed, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    code = _SING + "import os, time\n" + FILLERS[name]
    ended = run_sealed(code, scratch_bytes=32 << 20, files=500, wall_seconds=5)
    assert CANARY in ended.log
    stopped_itself = ended.why == "exited" and ("File too large" in ended.log or "Too many" in ended.log)
    assert stopped_itself or ended.why == "scratch" or name == "an unreadable folder"
    assert not list(tmp_path.glob(f"{sandbox.PREFIX}*"))


def test_threads_end_at_the_limit(run_sealed, run_free):
    code = _SING + (
        "import _thread, os\nlock = _thread.allocate_lock(); lock.acquire(); n = 0\ntry:\n"
        "    while n < 1500: _thread.start_new_thread(lock.acquire, ()); n += 1\n"
        "except (RuntimeError, MemoryError): pass\nos.write(1, b'threads %d\\n' % n); os._exit(0)"
    )
    assert "threads 1500" in run_free(code)
    ended = run_sealed(code, memory_bytes=2 << 30)  # root is not bound by the count, but every stack takes memory
    assert CANARY in ended.log
    assert 0 < int(re.search(r"threads (\d+)", ended.log)[1]) < 1_000


# --------------------------------------------------------------------------------------------------------- other machines


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86_64 processor")
@pytest.mark.parametrize("attack", ["i386 gate", "x32 numbers"])
def test_foreign_numbering_of_calls_kills_the_process(attack, run_sealed, run_free):
    code = _SING + textwrap.dedent(
        """
        import ctypes, mmap, sys
        if sys.argv[1] == "x32 numbers":
            ctypes.CDLL(None).syscall(0x40000000 | 39)
        else:
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        print("came through")
        """
    )
    assert "came through" in run_free(code, attack)
    ended = run_sealed(code, attack)
    assert CANARY in ended.log
    assert ended.code == -signal.SIGSYS


@pytest.mark.parametrize("crash", ["os.abort()", "ctypes.string_at(0)"])
def test_crash_of_the_child_is_told_by_its_signal(crash, run_sealed):
    ended = run_sealed(_SING + f"import ctypes, os\n{crash}")
    assert CANARY in ended.log
    assert -ended.code in (signal.SIGABRT, signal.SIGSEGV)


# ---------------------------------------------------------------------------------------------------------- a lost parent


def _alive(marker):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def test_child_dies_with_its_parent_and_its_folder_is_swept(tmp_path, level, monkeypatch):
    marker = f"marker-{os.getpid()}-{time.time_ns()}"
    sleeper = tmp_path / f"{marker}.py"
    sleeper.write_text("import time\ntime.sleep(60)")
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, sys.argv[1])\nfrom audits.engine.sandbox import *\n"
            f"level = Level({level.level!r}, {level.layers!r})\n"
            "with room() as place: run(sys.argv[2], room=place, level=level)",
            str(sandbox.ROOT),
            str(sleeper),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 20
    while len(_alive(marker)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_alive(marker)) >= 2, "the child never started"
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    assert sandbox.sweep_scratch(older_than_seconds=0) == 0, "a folder in use was swept"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 2
    while _alive(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _alive(marker) == []
    assert sandbox.sweep_scratch(older_than_seconds=3600) == 0, "a young folder was swept"
    assert sandbox.sweep_scratch(older_than_seconds=0) == 1
    assert not list(tmp_path.glob(f"{sandbox.PREFIX}*"))


def test_child_of_a_parent_that_is_already_gone_leaves_at_once(run_sealed, monkeypatch, level):
    if level.has_namespaces:
        pytest.skip("bubblewrap watches the parent itself")
    monkeypatch.setattr(sandbox.os, "getpid", lambda: 1)
    ended = run_sealed(_SING)
    assert ended.code == seal.ORPHANED
    assert CANARY not in ended.log
