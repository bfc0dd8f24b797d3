"""A room for sealed programs, and the ways of confining them that this host has."""

import subprocess
import sys

import pytest

from audits.engine import sandbox


def _levels():
    """The seal alone and, where bubblewrap works, the seal inside it."""
    sealed = sandbox._try(namespaces=False)
    best = sandbox.probe()
    return [sealed, best] if best.has_namespaces else [sealed]


LEVELS = _levels()


@pytest.fixture(params=LEVELS, ids=[f"level {level.level}" for level in LEVELS])
def level(request):
    return request.param


@pytest.fixture
def run_sealed(tmp_path, level):
    """Runs Python code sealed and returns how it ended; `readable` are files it may read."""

    def run(code, *arguments, readable=(), **limits):
        program = tmp_path / "program.py"
        program.write_text(code)
        limits = {"wall_seconds": 20, "cpu_seconds": 10, **limits}
        with sandbox.room() as room:
            return sandbox.run(
                str(program),
                list(map(str, arguments)),
                room=room,
                readable=list(map(str, readable)),
                limits=sandbox.Limits(**limits),
                level=level,
            )

    return run


@pytest.fixture
def run_free(tmp_path):
    """Runs the same code without any confinement and returns what it printed: the control of a hostile program."""

    def run(code, *arguments, **options):
        program = tmp_path / "free.py"
        program.write_text(code)
        command = [sys.executable, "-I", "-B", str(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False, **options)
        return done.stdout + done.stderr

    return run
