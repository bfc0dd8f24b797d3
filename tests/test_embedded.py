"""The servers out of Python packages: they start, keep their data, and come back after anything was killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from auditor import embedded
from auditor.embedded import EmbeddedError, Services

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for data; pytest's own are closed to the account that PostgreSQL runs under when the tests run as root."""
    with embedded.temporary_folder() as folder:
        yield folder


@pytest.fixture
def running(folder: Path) -> Iterator[Services]:
    services = embedded.start(folder / "data", durable=False)
    yield services
    services.stop()


def remember(services: Services, word: str) -> None:
    with psycopg.connect(services.database_url) as connection:
        connection.execute("create table if not exists kept (word text)")
        connection.execute("insert into kept values (%s)", [word])
    with broker(services) as client:
        client.rpush("kept", word)


def remembered(services: Services) -> tuple[list[str], list[str]]:
    with psycopg.connect(services.database_url) as connection:
        rows = [word for (word,) in connection.execute("select word from kept order by word")]
    with broker(services) as client:
        return rows, sorted(client.lrange("kept", 0, -1))


def broker(services: Services) -> redis.Redis:
    return redis.Redis(unix_socket_path=services.broker_url.removeprefix("redis+socket://"), decode_responses=True)


def serving(folder: Path) -> list[psutil.Process]:
    """Server processes that run on data below the folder, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()) and process.name() in (
                "postgres",
                "valkey-server",
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def holder(data: Path) -> subprocess.Popen[str]:
    """Another Python process that starts the servers and waits."""
    code = (
        "import sys, time; from pathlib import Path; from auditor import embedded;"
        "embedded.start(Path(sys.argv[1]), durable=False); print('started', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(data)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.stdout.close()
    return process


def test_both_servers_answer_and_stop_without_leaving_a_process(folder: Path) -> None:
    services = embedded.start(folder / "data", durable=False)
    remember(services, "once")
    assert remembered(services) == (["once"], ["once"])
    assert services.died is None
    services.stop()
    assert serving(folder) == []


def test_the_broker_keeps_every_second_and_refuses_rather_than_forgets(running: Services) -> None:
    with broker(running) as client:
        expected = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        assert {name: client.config_get(name)[name] for name in expected} == expected


def test_the_database_flushes_every_commit_unless_it_is_for_tests(folder: Path) -> None:
    shown = {}
    for durable in (True, False):
        services = embedded.start(folder / "data", durable=durable)
        with psycopg.connect(services.database_url) as connection:
            names = ("fsync", "synchronous_commit", "full_page_writes")
            shown[durable] = [connection.execute(f"show {name}").fetchone()[0] for name in names]
        services.stop()
    assert shown == {True: ["on", "on", "on"], False: ["off", "off", "off"]}


def test_the_application_role_cannot_read_files_of_the_server(running: Services) -> None:
    with psycopg.connect(running.database_url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select pg_read_file('postgresql.conf')")


def test_nobody_else_may_enter_the_folder_of_the_sockets(running: Services, folder: Path) -> None:
    sockets = embedded.addresses(folder / "data").sockets
    assert sockets.stat().st_mode & 0o077 == 0


def test_a_second_start_keeps_the_data_and_takes_seconds(folder: Path) -> None:
    first = embedded.start(folder / "data", durable=False)
    remember(first, "kept")
    first.stop()
    begun = time.monotonic()
    second = embedded.start(folder / "data", durable=False)
    took = time.monotonic() - begun
    assert remembered(second) == (["kept"], ["kept"])
    second.stop()
    assert took < 10


def test_a_second_start_at_the_same_time_is_refused_in_words(running: Services, folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=rf"Process {os.getpid()} is already running on the data"):
        embedded.start(folder / "data")
    assert running.died is None


@pytest.mark.parametrize("victim", ["postgres", "valkey"])
def test_after_kill_9_of_a_server_the_next_start_works_and_keeps_the_data(folder: Path, victim: str) -> None:
    services = embedded.start(folder / "data", durable=True)
    remember(services, "before the kill")
    server = getattr(services, victim)
    time.sleep(1.2)  # the broker flushes once a second
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(10)
    assert services.died is server
    services.stop()
    again = embedded.start(folder / "data", durable=True)
    assert remembered(again) == (["before the kill"], ["before the kill"])
    again.stop()


def test_after_kill_9_of_the_process_that_started_them_the_next_start_works(folder: Path) -> None:
    process = holder(folder / "data")
    before = serving(folder)
    assert len(before) == 2
    process.kill()
    process.wait()
    services = embedded.start(folder / "data", durable=False)
    remember(services, "after")
    assert remembered(services) == (["after"], ["after"])
    assert not any(old.is_running() for old in before)
    services.stop()
    assert serving(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_servers_die_with_the_process_that_started_them(folder: Path) -> None:
    process = holder(folder / "data")
    process.kill()
    process.wait()
    end = time.monotonic() + 15
    while serving(folder) and time.monotonic() < end:
        time.sleep(0.1)
    assert serving(folder) == []


def test_a_pid_file_that_names_somebody_elses_process_is_ignored(folder: Path) -> None:
    services = embedded.start(folder / "data", durable=False)
    services.stop()
    cluster = (folder / "data" / "postgres").resolve()
    lines = [str(os.getpid()), str(cluster), "0", "5432", "", "", "0 0", "ready"]
    (cluster / "postmaster.pid").write_text("\n".join(lines) + "\n")
    (folder / "data" / "valkey" / "valkey.pid").write_text(f"{os.getpid()}\n")
    again = embedded.start(folder / "data", durable=False)
    assert again.died is None
    again.stop()


def test_a_cluster_that_was_not_made_whole_is_made_again(folder: Path) -> None:
    half = folder / "data" / "postgres.new"
    half.mkdir(parents=True)
    (folder / "data").chmod(0o711)
    (half / "PG_VERSION").write_text("18\n")
    services = embedded.start(folder / "data", durable=False)
    remember(services, "whole")
    services.stop()
    assert not half.exists()


def test_data_of_another_postgresql_are_refused_in_words(folder: Path) -> None:
    cluster = folder / "data" / "postgres"
    cluster.mkdir(parents=True)
    (folder / "data").chmod(0o711)
    (cluster / "PG_VERSION").write_text("15\n")
    with pytest.raises(EmbeddedError, match="written by PostgreSQL 15; this version runs 18"):
        embedded.start(folder / "data")
    assert serving(folder) == []


def test_a_damaged_cluster_is_named_with_the_servers_own_words(folder: Path) -> None:
    embedded.start(folder / "data", durable=False).stop()
    ((folder / "data" / "postgres").resolve() / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(EmbeddedError, match=r"(?s)PostgreSQL does not start.*pg_control"):
        embedded.start(folder / "data", durable=False)
    assert serving(folder) == []


@pytest.mark.parametrize("name", ["long/" * 30 + "data", "with space and ümlaut/data"])
def test_a_path_that_no_socket_can_have_works(folder: Path, name: str) -> None:
    data = folder / name
    data.parent.mkdir(parents=True)
    where = embedded.addresses(embedded.data_folder(data))
    assert len(str(where.sockets)) < 100
    services = embedded.start(data, durable=False)
    remember(services, "far down")
    assert remembered(services) == (["far down"], ["far down"])
    services.stop()
    shutil.rmtree(where.sockets)


def test_celery_can_use_the_brokers_address(running: Services) -> None:
    from kombu import Connection

    with Connection(running.broker_url) as connection, connection.SimpleQueue("greetings") as queue:
        queue.put("hello")
        message = queue.get(timeout=5)
        message.ack()
    assert message.payload == "hello"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its servers to another account")
def test_root_with_a_closed_folder_gets_its_cluster_elsewhere_and_a_link() -> None:
    with tempfile.TemporaryDirectory() as closed:  # mode 0700
        data = Path(closed) / "data"
        services = embedded.start(data, durable=False)
        cluster = (data / "postgres").resolve()
        sockets = embedded.addresses(data).sockets
        try:
            remember(services, "elsewhere")
            services.stop()
            again = embedded.start(data, durable=False)
            assert remembered(again) == (["elsewhere"], ["elsewhere"])
            again.stop()
            assert (data / "postgres").is_symlink()
            assert cluster.is_relative_to(embedded.SHARED_PLACE)
            assert cluster.stat().st_mode & 0o077 == 0
            assert Path(closed).stat().st_mode & 0o077 == 0
        finally:
            services.stop()
            shutil.rmtree(cluster.parent)
            shutil.rmtree(sockets)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its servers to another account")
def test_postgresql_does_not_run_as_root(running: Services) -> None:
    assert psutil.Process(running.postgres.process.pid).username() == embedded.ACCOUNT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its servers to another account")
def test_a_package_in_a_closed_folder_is_copied_to_where_the_account_may_read_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SHARED_PLACE", folder / "shared")
    monkeypatch.setattr(embedded, "_open_to_others", lambda path: "site-packages" not in str(path))
    services = embedded.start(folder / "data", durable=False)
    assert psutil.Process(services.postgres.process.pid).exe().startswith(str(folder / "shared"))
    services.stop()


def test_valkey_alone_listens_on_the_port_it_is_given(folder: Path) -> None:
    first = embedded.start_valkey(folder / "first")
    assert first.port is not None
    assert first.url == f"redis://127.0.0.1:{first.port}/0"
    first.kill()
    second = embedded.start_valkey(folder / "second", port=first.port)
    assert second.port == first.port
    second.stop()


def test_a_command_runs_with_the_servers_and_its_exit_code_comes_back() -> None:
    code = (
        "import os, sys, psycopg; psycopg.connect(os.environ['DATABASE_URL']).close();"
        "sys.exit(3 if {'BROKER_URL', 'STORAGE_URL', 'SECRET_KEY'} <= set(os.environ) else 4)"
    )
    command = [sys.executable, "-m", "auditor.embedded", "run", "--", sys.executable, "-c", code]
    assert subprocess.call(command, cwd=ROOT) == 3
