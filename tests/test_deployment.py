"""What can be checked about the deployment where no container engine runs: its files parse, agree and ask for little."""

import ast
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from auditor.up import WORKERS, worker_command

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LONG_RUNNING = sorted(name for name, service in SERVICES.items() if service["restart"] != "no")
ONE_SHOT = sorted(set(SERVICES) - set(LONG_RUNNING))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
NOT_OURS = {"PATH", "HOME", "TMPDIR", "CHROMIUM", "DJANGO_SETTINGS_MODULE"}  # the system's, or the tests' alone


def variables_read() -> dict[str, ast.expr | None]:
    """Names of the variables that the code reads through `env` or `os.environ`, with the default where one is given."""
    found: dict[str, ast.expr | None] = {}
    files = [*(ROOT / "auditor").rglob("*.py"), *(ROOT / "audits").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and re.match(r"(env|os\.environ|os)(\.\w+)?$", ast.unparse(node.func)):
                name = node.args[0] if node.args else None
                keyword = next((k.value for k in node.keywords if k.arg == "default"), None)
                default = node.args[1] if len(node.args) > 1 else keyword
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                name, default = node.slice, None
            else:
                continue
            if isinstance(name, ast.Constant) and re.fullmatch(r"[A-Z][A-Z0-9_]+", str(name.value)):
                found.setdefault(name.value, default)
    return {name: default for name, default in found.items() if name not in NOT_OURS}


def documented() -> dict[str, tuple[str, str]]:
    """Variable of .env.example: its value and the comment above it."""
    found = {}
    comment: list[str] = []
    for line in EXAMPLE.splitlines():
        if setting := re.fullmatch(r"#?([A-Z][A-Z0-9_]+)=(.*)", line):
            found[setting[1]] = (setting[2], " ".join(comment))
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        else:
            comment = []
    return found


def interpolated() -> set[str]:
    return set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))


def resolved(value: str, given: dict[str, str]) -> str:
    """What compose makes of ${NAME:-default} and ${NAME:?message}."""

    def one(found: re.Match[str]) -> str:
        if found["name"] in given:
            return given[found["name"]]
        assert found["kind"] == ":-", f"{found['name']} is required"
        return found["rest"]

    return re.sub(r"\$\{(?P<name>\w+)(?P<kind>:[-?])(?P<rest>[^}]*)\}", one, str(value)).replace("$$", "$")


def images() -> Iterator[str]:
    yield from (service["image"] for service in SERVICES.values() if "build" not in service)
    yield from re.findall(r"(?m)^FROM (\S+)", DOCKERFILE)


def pins(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith(("#", "-r "))]
    return dict(line.split("==") for line in lines if "==" in line)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ----------------------------------------------------------------------------------------------------------- environment


def test_the_scan_of_the_source_finds_what_the_settings_read() -> None:
    assert {"SECRET_KEY", "DATABASE_URL", "BROKER_URL", "STORAGE_URL", "EMAIL_URL", "SECURE", "PORT"} <= set(
        variables_read()
    )


def test_every_variable_that_the_code_reads_is_documented() -> None:
    assert set(variables_read()) - set(documented()) == set()


def test_every_variable_of_the_compose_file_is_documented() -> None:
    assert interpolated() - set(documented()) == set()


def test_no_variable_is_documented_that_nobody_reads() -> None:
    assert set(documented()) - set(variables_read()) - interpolated() == set()


@pytest.mark.parametrize("name", sorted(documented()))
def test_every_documented_variable_has_a_sentence_and_its_default(name: str) -> None:
    comment = documented()[name][1]
    assert re.search(r"Default: .+\.$", comment), f"{name}: {comment!r}"
    assert len(comment.split()) > 5
    default = variables_read().get(name)
    if isinstance(default, ast.Constant) and isinstance(default.value, int | float | str) and default.value != "":
        stated = re.search(r"Default: (.+)\.$", comment)[1]
        if isinstance(default.value, str):
            assert stated == default.value
        else:
            assert float(stated) == float(default.value)


def test_the_example_holds_no_secret() -> None:
    secret = {name: value for name, (value, _) in documented().items() if re.search(r"PASSWORD|SECRET|KEY", name)}
    assert len(secret) >= 5
    assert set(secret.values()) == {""}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_no_secret_is_written_into_the_compose_file(service: str) -> None:
    for name, value in SERVICES[service].get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|KEY|AUTH", name) and not name.endswith("INITDB_ARGS"):
            assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{service}: {name}"
        for password in re.findall(r"://[^/@:]*:((?:\$\{[^}]*\}|[^@/])+)@", str(value)):
            assert password.startswith("${"), f"{service}: {name}"


def test_compose_hands_our_services_only_variables_that_are_read() -> None:
    known = set(variables_read()) | {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "TMPDIR"}
    for name, service in SERVICES.items():
        if "build" in service:
            assert set(service.get("environment", {})) - known == set(), name


def test_the_worker_gets_no_more_than_it_needs() -> None:
    assert set(SERVICES["worker"]["environment"]) == {
        *("SECRET_KEY", "DATABASE_URL", "BROKER_URL", "STORAGE_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("LOG_LEVEL", "LEASE_SECONDS", "SANDBOX_REQUIRED", "TMPDIR"),
    }


def test_the_bucket_maker_cannot_reach_the_database() -> None:
    assert not {"DATABASE_URL", "SECRET_KEY", "BROKER_URL"} & set(SERVICES["bucket"]["environment"])


def test_the_settings_accept_what_compose_sets_and_find_it_fit_for_production() -> None:
    given = {name: secrets.token_hex(32) for name, (value, _) in documented().items() if value == ""}
    given |= {
        "CSRF_TRUSTED_ORIGINS": "https://auditor.example.org",
        "SECURE": "1",
        "ALLOWED_HOSTS": "auditor.example.org",
    }
    environment = {name: resolved(value, given) for name, value in SERVICES["web"]["environment"].items()}
    environment |= {"PATH": os.environ["PATH"], "FILE_UPLOAD_TEMP_DIR": "/tmp"}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    expected = r"drf_spectacular\.W\d+|security\.W005|security\.W021"  # schema hints; subdomains and preloading are the operator's
    found = set(re.findall(r"\(([\w.]+\.[EWC]\d+)\)", done.stderr))
    assert {name for name in found if not re.fullmatch(expected, name)} == set(), done.stderr
    assert "Traceback" not in done.stderr


# -------------------------------------------------------------------------------------------------------------- services


def test_the_compose_file_has_the_services_that_the_design_names() -> None:
    assert LONG_RUNNING == ["beat", "heavy-worker", "postgres", "store", "valkey", "web", "worker"]
    assert ONE_SHOT == ["bucket", "migrate", "store-volume"]


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_every_long_running_service_has_a_health_check_and_restarts(service: str) -> None:
    check = SERVICES[service]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(check)
    assert SERVICES[service]["restart"] == "unless-stopped"


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_is_hardened(service: str) -> None:
    found = SERVICES[service]
    user = str(found["user"]).split(":")
    assert all(part.isdigit() and int(part) > 0 for part in user), "an account by number, and not root"
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "cap_add" not in found
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not found.get("privileged")
    assert found["mem_limit"]
    assert found["pids_limit"] > 0
    assert all("size=" in mount or "uid=" in mount for mount in found.get("tmpfs", []))


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_services_wait_until_what_they_need_is_well(service: str) -> None:
    for needed, how in SERVICES[service].get("depends_on", {}).items():
        done = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert how["condition"] == done, f"{service} needs {needed}"


def test_only_the_site_is_reachable_and_only_from_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["web"]
    assert all(port.startswith("127.0.0.1:") for port in published["web"])
    assert COMPOSE["networks"]["back"]["internal"] is True
    assert all(service.get("networks", []) in ([], ["back"]) for name, service in SERVICES.items() if name != "web")


def test_every_image_is_pinned_by_an_exact_version() -> None:
    for image in images():
        assert re.search(r":v?\d+\.\d+", image), image


def test_nothing_of_the_host_is_mounted_but_one_script_to_read() -> None:
    binds = [volume for service in SERVICES.values() for volume in service.get("volumes", []) if volume[0] in "./~"]
    assert binds == ["./tools/postgres-role.sh:/docker-entrypoint-initdb.d/role.sh:ro"]
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used - set(COMPOSE["volumes"]) == {"./tools/postgres-role.sh"}


def test_the_workers_listen_to_the_queues_that_tasks_are_sent_to() -> None:
    def listened(command: str) -> str:
        return re.search(r"--queues (\w+)", command)[1]

    by_compose = {listened(SERVICES[name]["command"]) for name in ("worker", "heavy-worker")}
    by_up = {listened(" ".join(worker_command(queue, processes))) for _, queue, processes in WORKERS}
    source = (ROOT / "audits" / "tasks.py").read_text()
    named = {word for word in re.findall(r'"(\w+)"', source) if word in ("light", "heavy", "default", "celery")}
    assert by_compose == by_up == named


# ----------------------------------------------------------------------------------------------------------------- image


def test_the_image_is_built_on_a_pinned_slim_python_and_does_not_run_as_root() -> None:
    bases = re.findall(r"(?m)^FROM (\S+)", DOCKERFILE)
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", bases[0])
    users = re.findall(r"(?m)^USER (\S+)", DOCKERFILE)
    assert users[-1].split(":")[0] == SERVICES["web"]["user"].split(":")[0] != "0"
    assert DOCKERFILE.index(f"USER {users[-1]}") < DOCKERFILE.index("\nCMD ")


def test_the_image_leaves_the_health_check_to_each_service() -> None:
    assert not re.search(r"(?m)^HEALTHCHECK", DOCKERFILE)


def test_the_image_holds_no_secret() -> None:
    assert not re.search(r"(?m)^(ENV|ARG)\b[^\n]*(SECRET|PASSWORD|TOKEN|KEY)", DOCKERFILE)


def test_only_named_files_go_into_the_image_and_all_that_are_needed_do() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = [line[1:] for line in lines if line[0] == "!"]
    assert all((ROOT / path).exists() for path in allowed), allowed
    assert not any(path.startswith((".env", ".git", ".data", ".venv", "tests")) for path in allowed)
    scripts = set(re.findall(r"tools/\w+\.py", (ROOT / "docker-compose.yml").read_text()))
    assert scripts <= set(allowed)
    assert {"auditor", "audits", "templates", "static", "manage.py", "requirements.txt"} <= set(allowed)


# ---------------------------------------------------------------------------------------------------------- requirements


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned(file: str) -> None:
    for line in (ROOT / file).read_text().splitlines():
        assert line.startswith("#") or line == "-r requirements.txt" or re.fullmatch(r"[\w.-]+==[\w.]+", line), line


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("requirements.in", ["requirements.txt"]),
        ("requirements-dev.in", ["requirements.txt", "requirements-dev.txt"]),
    ],
)
def test_the_pins_cover_what_is_asked_for(source: str, files: list[str]) -> None:
    held = {normal(name) for file in files for name in pins(file)}
    lines = [line for line in (ROOT / source).read_text().splitlines() if line and not line.startswith(("#", "-"))]
    asked = {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
    assert len(asked) > 5
    assert asked - held == set()


def test_no_requirement_is_pinned_twice() -> None:
    names = [normal(name) for file in ("requirements.txt", "requirements-dev.txt") for name in pins(file)]
    assert sorted(names) == sorted(set(names))


# -------------------------------------------------------------------------------------------------------------- commands


def test_continuous_integration_runs_what_everybody_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-1] == "exec make test"


def test_the_shell_scripts_parse() -> None:
    assert subprocess.call(["bash", "-n", ".ci/run"], cwd=ROOT) == 0
    assert subprocess.call(["sh", "-n", "tools/postgres-role.sh"], cwd=ROOT) == 0


@pytest.mark.parametrize("target", ["up", "test", "fast", "lint", "bench", "lock", "clean"])
def test_make_knows_the_target_and_says_so(target: str) -> None:
    assert subprocess.call(["make", "--dry-run", target], cwd=ROOT, stdout=subprocess.DEVNULL) == 0
    assert re.search(rf"(?m)^# make {target} ", (ROOT / "Makefile").read_text())


def test_an_old_python_is_refused_in_words() -> None:
    code = (
        "import sys; sys.version_info = (3, 9, 0); sys.path.insert(0, 'tools');"
        "import environment; sys.exit(environment.main('requirements.txt'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stdout


def test_requirements_are_installed_again_only_when_they_or_the_python_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import environment

    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "is_usable", lambda: True)
    monkeypatch.setattr(environment, "pip", lambda *arguments, errors=None: calls.append(arguments) or 0)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "base.txt").write_text("one==1\n")
    (tmp_path / "more.txt").write_text("-r base.txt\ntwo==2\n")

    def installs(file: str) -> bool:
        calls.clear()
        assert environment.main(file) == 0
        return bool(calls)

    assert installs("more.txt")
    assert not installs("more.txt")
    assert not installs("base.txt")
    (tmp_path / "base.txt").write_text("one==1.1\n")
    assert installs("more.txt")
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.12.0\n")
    assert installs("base.txt")


def test_a_failed_installation_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import environment

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "is_usable", lambda: True)
    monkeypatch.setattr(environment, "pip", lambda *arguments, errors=None: 1)
    (tmp_path / ".venv").mkdir()
    (tmp_path / "base.txt").write_text("one==1\n")
    assert environment.main("base.txt") == 1
    assert environment.main("base.txt") == 1
