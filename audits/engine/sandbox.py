"""Runs a Python program in a sealed child and watches it: the only door through which uploaded files are opened.

The child starts from nothing (fresh interpreter, emptied environment, closed files, no input) and seals itself before it
imports a library, see `seal`. Where user namespaces exist, bubblewrap adds a file system, a process table and a network of
its own. The parent watches the clock, the log and the scratch folder, and kills.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from audits.engine.seal import landlock_abi
from audits.engine.wire import printable

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "audits"
PREFIX = "auditor-child-"
POLL_SECONDS = 0.05
BEAT_SECONDS = 0.5
LOG_KEPT = 16_000  # characters of the log's end

_START = "import sys; sys.path.insert(0, sys.argv[1]); from audits.engine.seal import start; start(sys.argv[2])"


@dataclass(frozen=True)
class Limits:
    """What one job may use. `memory_bytes` is address space; `threads` is what the numeric libraries are told."""

    memory_bytes: int = 6 << 30
    cpu_seconds: int = 2 * 3600
    wall_seconds: float = 2 * 3600
    scratch_bytes: int = 1 << 30
    files: int = 1_000
    output_bytes: int = 1 << 20
    threads: int = 1


@dataclass(frozen=True)
class Level:
    """How well this host confines the child: A best, D limits on resources alone; `reasons` say why not better."""

    level: Literal["A", "B", "C", "D"]
    layers: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    landlock_abi: int = 0

    @property
    def has_namespaces(self) -> bool:
        """Whether bubblewrap is wrapped around the child."""
        return "namespaces" in self.layers


@dataclass(frozen=True)
class Room:
    """The folders of one child: `job` it may read, `scratch` it may write. Both are gone afterwards."""

    job: str
    scratch: str


@dataclass(frozen=True)
class Ended:
    """How a child ended. `code` is its exit code, negative for a signal; `log` is the end of what it printed."""

    why: Literal["exited", "wall", "output", "scratch", "cancelled"]
    code: int
    log: str
    seconds: float
    has_own_user: bool


# --------------------------------------------------------------------------------------------------------------- a child


def run(
    program: str,
    arguments: Sequence[str] = (),
    *,
    room: Room,
    readable: Sequence[str] = (),
    limits: Limits | None = None,
    level: Level | None = None,
    beat: Callable[[], bool] | None = None,
) -> Ended:
    """Runs the Python file `program` sealed until it ends or must be ended. `beat` returning False cancels it.

    `readable` are further files it may read. Never raises for what the program does.
    """
    limits, level = limits or Limits(), level or probe()
    readable = [*_system_paths(), program, room.job, *readable]
    user = _user_of_its_own(readable)
    if user is not None:
        os.chown(room.scratch, user, user)
    spec = {
        "program": program,
        "arguments": list(arguments),
        "readable": readable,
        "writable": room.scratch,
        "limits": _rlimits(limits, user),
        "require": [layer for layer in level.layers if layer in ("landlock", "seccomp")],
        "parent": 0 if level.has_namespaces else os.getpid(),
    }
    command = [sys.executable, "-I", "-B", "-c", _START, str(ROOT), json.dumps(spec)]
    if level.has_namespaces:
        command = [*_bubblewrap(readable, room.scratch), *command]
    identity: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        child = subprocess.Popen(  # noqa: S603  our own interpreter and a program of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(room.scratch, limits.threads),
            cwd=room.scratch,
            start_new_session=True,
            **identity,
        )
        try:
            why = _watch(child, log, room.scratch, limits, begun, beat)
        finally:
            _kill(child)
        code = child.returncode
        if level.has_namespaces and code > 128:
            code = 128 - code  # bubblewrap reports a signal as a shell does
        return Ended(why, code, _tail(log), time.monotonic() - begun, user is not None)


def _watch(
    child: subprocess.Popen[bytes],
    log: IO[bytes],
    scratch: str,
    limits: Limits,
    begun: float,
    beat: Callable[[], bool] | None,
) -> Literal["exited", "wall", "output", "scratch", "cancelled"]:
    beaten = begun
    while True:
        try:
            child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            return "exited"
        now = time.monotonic()
        if now - begun > limits.wall_seconds:
            return "wall"
        if os.fstat(log.fileno()).st_size > limits.output_bytes:
            return "output"
        if holds_more_than(scratch, limits.scratch_bytes, limits.files):
            return "scratch"
        if beat and now - beaten >= BEAT_SECONDS:
            beaten = now
            if not beat():
                return "cancelled"


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 4 * LOG_KEPT))
    return printable(log.read(4 * LOG_KEPT).decode("utf-8", "replace"))[-LOG_KEPT:]


def holds_more_than(top: str, max_bytes: int, max_files: int) -> bool:
    """Whether a folder is over its limits. Stops at the first entry too many, so that counting cannot be stalled."""
    entries = used = 0
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entries > max_files or used > max_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue  # the child removed it meanwhile
        except OSError:
            return True  # too deep, or made unreadable on purpose
    return False


# ---------------------------------------------------------------------------------------------------------------- start


def _system_paths() -> list[str]:
    """The interpreter, the libraries and this code. Never /etc, homes, /run or another process."""
    prefixes = [place for prefix in (sys.prefix, sys.base_prefix) for place in (prefix, os.path.realpath(prefix))]
    places = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu", "/dev/urandom"]
    facts = [f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "self")]
    return [place for place in [*places, *facts, *dict.fromkeys(prefixes), str(PACKAGE)] if os.path.exists(place)]


def _environment(scratch: str, threads: int) -> dict[str, str]:
    pools = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "RAYON")
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        **dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), scratch),
        **{f"{pool}_NUM_THREADS": str(threads) for pool in pools},
        "POLARS_MAX_THREADS": str(threads),
        # There is no network to reach; these keep libraries from trying, and from writing identities to disk.
        **dict.fromkeys(("ORT_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK"), "1"),
        **dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "HF_DATASETS_OFFLINE"), "1"),
    }


def _rlimits(limits: Limits, user: int | None) -> dict[str, int]:
    return {
        "AS": limits.memory_bytes,
        "CPU": limits.cpu_seconds,
        "FSIZE": limits.scratch_bytes,
        "NOFILE": 256,
        # Counts every thread of the user, so those that run already are added; root is not bound by it.
        "NPROC": 64 + 8 * limits.threads + (_threads_of(os.geteuid()) if user is None else 0),
    }


def _threads_of(user: int) -> int:
    count = 0
    if not os.path.isdir("/proc/self/task"):
        return 4_096
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{name}/task")
                count += status.st_nlink - 2 if status.st_uid == user else 0
    return count


_counter = iter(range(1 << 62))


def _user_of_its_own(readable: Sequence[str]) -> int | None:
    """For a worker that is root: a user id that nobody has, if everything the child must read is open to all.

    The range is what systemd sets apart for users made up on the spot.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        return None
    if not all(_open_to_all(path) for path in readable if not path.startswith("/proc/")):
        return None
    return 61_184 + (os.getpid() + next(_counter)) % 4_336


def _open_to_all(path: str) -> bool:
    whole = Path(os.path.realpath(path))
    mode = whole.stat().st_mode
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    return mode & needed == needed and all(folder.stat().st_mode & 0o001 for folder in whole.parents)


def _bubblewrap(readable: Sequence[str], scratch: str) -> list[str]:
    binds = [
        word for path in readable if not path.startswith(("/proc/", "/dev/")) for word in ("--ro-bind", path, path)
    ]
    return [
        str(shutil.which("bwrap")),
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *binds,
        *(
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--bind",
            scratch,
            scratch,
            "--remount-ro",
            "/",
            "--chdir",
            scratch,
            "--",
        ),
    ]


# --------------------------------------------------------------------------------------------------------------- folders


@contextlib.contextmanager
def room() -> Iterator[Room]:
    """Folders for one child, locked while in use and removed afterwards whatever lies in them."""
    top = tempfile.mkdtemp(prefix=PREFIX)
    lock = os.open(top, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.chmod(top, 0o711)  # noqa: S103  a child of another user passes through to its folders
        made = Room(os.path.join(top, "job"), os.path.join(top, "scratch"))
        os.mkdir(made.job, 0o755)
        os.mkdir(made.scratch, 0o700)
        yield made
    finally:
        remove(top)
        os.close(lock)


def remove(top: str) -> None:
    """Removes a tree of any depth and any mode; `shutil.rmtree` gives up on both."""
    for command in (["rm", "-rf", "--", top], ["chmod", "-R", "u+rwX", "--", top], ["rm", "-rf", "--", top]):
        if not os.path.lexists(top):
            return
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # noqa: S603


def sweep_scratch(older_than_seconds: float) -> int:
    """Removes folders whose worker died before it could. Returns how many; folders in use are locked and stay."""
    removed = 0
    for top in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            removed += _remove_orphan(top, older_than_seconds)
    return removed


def _remove_orphan(top: Path, older_than_seconds: float) -> bool:
    place = os.open(top, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(place)
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < older_than_seconds:
            return False
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(str(top))
        return True
    finally:
        os.close(place)


# --------------------------------------------------------------------------------------------------------------- levels


@functools.cache
def probe() -> Level:
    """The best level of this host, found by trying to do what it must forbid. Asked once per process."""
    reasons = []
    if shutil.which("bwrap") is None:
        reasons.append("bubblewrap is not installed")
    else:
        found = _try(namespaces=True)
        if found.has_namespaces and found.level in ("A", "C"):
            return found
        reasons += found.reasons
    found = _try(namespaces=False)
    return Level(found.level, found.layers, (*reasons, *found.reasons), found.landlock_abi)


def _try(*, namespaces: bool) -> Level:
    trial = Level("D", ("namespaces",) if namespaces else ())
    limits = Limits(wall_seconds=30, cpu_seconds=20)
    with room() as folders:
        ended = run(str(PACKAGE / "engine" / "probe.py"), room=folders, limits=limits, level=trial)
    name = "bubblewrap" if namespaces else "the seal"
    try:
        errors = json.loads(ended.log.splitlines()[-1])
        return judge(errors, ended.has_own_user)
    except (IndexError, ValueError, KeyError, TypeError):
        return Level("D", (), (f"{name} does not work here: {ended.log.strip()[-200:] or ended.why}",))


def judge(errors: dict[str, int], has_own_user: bool = False) -> Level:
    """The level that follows from what the trial program could and could not do."""
    layers, reasons = ["rlimits"], []
    if has_own_user:
        layers.append("own user")
    if errors["stat /etc/passwd"] == errno.ENOENT:
        layers.append("namespaces")
    else:
        reasons.append("no namespaces around the child")
    if errors["open /proc/version"] == errno.EACCES:
        layers.append("landlock")
    else:
        reasons.append("the kernel has no Landlock")
    if errors["socket"] == errno.EPERM:
        layers.append("seccomp")
    else:
        reasons.append("system calls are not filtered")
    has = {name: name in layers for name in ("namespaces", "landlock", "seccomp")}
    level: Literal["A", "B", "C", "D"] = "D"
    if has["seccomp"]:
        level = "A" if all(has.values()) else "B" if has["landlock"] else "C" if has["namespaces"] else "D"
    return Level(level, tuple(layers), tuple(reasons), landlock_abi() if has["landlock"] else 0)
