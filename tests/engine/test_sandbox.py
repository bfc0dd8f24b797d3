"""The inner seal, its levels, and what a sealed child is given."""

import errno
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from audits.engine import sandbox, seal
from audits.engine.syscalls import ABSENT, ALLOWED, MACHINES, checked

X86_64, AARCH64 = MACHINES["x86_64"], MACHINES["aarch64"]

# -------------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_are_those_of_the_kernels_header(machine, header):
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    defined = dict(re.findall(r"#define (__NR\w+) (\w+)", Path(header).read_text()))
    numbers = MACHINES[machine].numbers
    for name, number in numbers.items():
        value = defined[f"__NR_{name}"]
        while value in defined:
            value = defined[value]
        assert int(value) == number, name
    if machine == "x86_64":  # the other header also names calls that 64-bit machines lack
        assert {*ALLOWED, *ABSENT, *checked(1)} <= set(numbers)


@pytest.mark.parametrize(
    "forbidden",
    ["socket", "connect", "sendto", "execve", "fork", "kill", "ptrace", "chmod", "fchmodat2", "mount", "bpf"],
)
def test_dangerous_calls_are_on_no_list(forbidden):
    assert forbidden not in {*ALLOWED, *ABSENT, *checked(1)}


# -------------------------------------------------------------------------------------------------------------- the filter


def verdict(program, arch, number, *arguments):
    """What the filter answers, by a small reading of classic BPF (bpf(4)): "allow", "kill", or an error number."""
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    record = struct.pack("=iIQ6Q", number & 0x7FFFFFFF, arch, 0, *words)
    steps = list(struct.iter_unpack("=HBBI", program))
    held, at = 0, 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        match code:
            case 0x20:
                held = struct.unpack_from("=I", record, k)[0]
            case 0x54:
                held &= k
            case 0x15:
                at += yes if held == k else no
            case 0x35:
                at += yes if held >= k else no
            case 0x06:
                return {0x7FFF0000: "allow", 0x80000000: "kill"}.get(k, k & 0xFFFF)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_answers_as_its_table_says(machine):
    known = MACHINES[machine]
    program = seal.filter_program(machine, pid=4321)

    def ask(name, *arguments):
        return verdict(program, known.audit_arch, known.numbers[name], *arguments)

    assert all(ask(name) == "allow" for name in ALLOWED if name in known.numbers)
    assert ask("clone3") == errno.ENOSYS
    assert ask("clone", 0x3D0F00) == "allow"  # what the C library asks for a thread
    assert ask("clone", 0x11) == errno.EPERM  # what it asks for a process
    assert ask("clone", 0x3D0F00 | 0x10000000) == errno.EPERM  # with a user namespace
    assert ask("tgkill", 4321, 4321, 6) == "allow"
    assert ask("tgkill", 1, 1, 9) == errno.EPERM
    assert ask("prlimit64", 0) == "allow"
    assert ask("prlimit64", 1) == errno.EPERM
    assert ask("openat", 0, 0, os.O_RDONLY) == "allow"
    assert ask("openat", 0, 0, os.O_RDONLY | os.O_TRUNC) == errno.EPERM
    assert ask("openat", 0, 0, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) == "allow"
    assert ask("fcntl", 0, 3) == "allow"
    assert ask("fcntl", 0, 8) == errno.EPERM
    assert ask("prctl", 22) == errno.EPERM
    assert ask("ioctl", 0, 0x5412) == errno.EPERM  # TIOCSTI types into the terminal


def test_filter_reads_arguments_as_the_kernel_does():
    """Upper halves do not count: a call with rubbish there is judged by what the kernel will see."""
    program = seal.filter_program("x86_64", pid=1)
    number = X86_64.numbers["prlimit64"]
    assert verdict(program, X86_64.audit_arch, number, 1 << 32) == "allow"
    assert verdict(program, X86_64.audit_arch, number, (1 << 32) | 7) == errno.EPERM


def test_filter_refuses_every_number_that_is_not_on_the_list():
    program = seal.filter_program("x86_64", pid=1)
    listed = set(X86_64.numbers.values())
    assert all(
        verdict(program, X86_64.audit_arch, number) == errno.EPERM for number in range(600) if number not in listed
    )


def test_filter_kills_on_foreign_architectures():
    program = seal.filter_program("x86_64", pid=1)
    assert verdict(program, AARCH64.audit_arch, 0) == "kill"
    assert verdict(program, 0x40000003, 4) == "kill"  # i386
    assert verdict(program, X86_64.audit_arch, 0x40000000 | 39) == "kill"  # x32


def test_unknown_architecture_has_no_filter():
    assert seal.filter_program("riscv64", pid=1) == b""


# -------------------------------------------------------------------------------------------------------------- levels


def _found(*stopped):
    answers = {"socket": errno.EPERM, "open /proc/version": errno.EACCES, "stat /etc/passwd": errno.ENOENT}
    return {name: error if name in stopped else 0 for name, error in answers.items()}


@pytest.mark.parametrize(
    ("stopped", "level"),
    [
        (("socket", "open /proc/version", "stat /etc/passwd"), "A"),
        (("socket", "open /proc/version"), "B"),
        (("socket", "stat /etc/passwd"), "C"),
        (("socket",), "D"),
        (("open /proc/version", "stat /etc/passwd"), "D"),
        ((), "D"),
    ],
)
def test_level_follows_from_what_was_stopped(stopped, level):
    found = sandbox.judge(_found(*stopped))
    assert found.level == level
    assert bool(found.reasons) == (level != "A")


def test_missing_bubblewrap_lowers_the_level_and_is_told(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    found = sandbox.probe.__wrapped__()
    assert found.level in ("B", "D")
    assert "bubblewrap is not installed" in found.reasons
    assert not found.has_namespaces


def test_broken_bubblewrap_falls_back_to_the_seal_alone(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: str(fake))
    found = sandbox.probe.__wrapped__()
    assert not found.has_namespaces
    assert any("No permissions to create new namespace" in reason for reason in found.reasons)


def test_child_that_cannot_be_sealed_as_expected_runs_nothing(run_sealed, monkeypatch):
    """A kernel without Landlock, stood in for by a switch that the starting code obeys."""
    without = "from audits.engine import seal; seal.landlock_abi = lambda *_: 0; "
    start = sandbox._START.replace("from audits.engine.seal", without + "from audits.engine.seal")
    monkeypatch.setattr(sandbox, "_START", start)
    ended = run_sealed("print('it ran')")
    assert ended.code == seal.CANNOT_SEAL
    assert "it ran" not in ended.log
    assert "landlock" in ended.log


# --------------------------------------------------------------------------------------------------------------- the child


def test_honest_program_reads_its_files_and_writes_its_folder(run_sealed, tmp_path):
    given = tmp_path / "given.csv"
    given.write_text("a,b\n1,2\n")
    ended = run_sealed(
        "import os, sys\nopen('made', 'w').write(open(sys.argv[1]).read())\nos.mkdir('folder'); os.rename('made', 'folder/made')\n"
        "print(open('folder/made').read())",
        given,
        readable=[given],
    )
    assert (ended.why, ended.code) == ("exited", 0), ended.log
    assert "1,2" in ended.log


def test_child_starts_with_an_emptied_environment_and_no_capabilities(run_sealed, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    ended = run_sealed(
        "import json, os\nfrom pathlib import Path\n"
        "status = dict(line.split(':\\t', 1) for line in Path('/proc/self/status').read_text().splitlines())\n"
        "keys = ('CapEff', 'CapPrm', 'CapInh', 'NoNewPrivs', 'Seccomp')\n"
        "print(json.dumps([dict(os.environ), {key: status[key].strip() for key in keys}]))"
    )
    environment, status = json.loads(ended.log)
    assert "DATABASE_URL" not in environment
    assert environment["ORT_DISABLE_TELEMETRY"] == environment["HF_HUB_OFFLINE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert status == {
        "CapEff": "0" * 16,
        "CapPrm": "0" * 16,
        "CapInh": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }


def test_threads_setting_reaches_the_libraries(run_sealed):
    ended = run_sealed("import os; print(os.environ['OMP_NUM_THREADS'], os.environ['POLARS_MAX_THREADS'])", threads=3)
    assert ended.log.split() == ["3", "3"]


def test_standard_input_is_empty(run_sealed):
    assert "read ''" in run_sealed("import sys; print('read', repr(sys.stdin.read()))").log


def test_heavy_libraries_work_inside(run_sealed):
    ended = run_sealed(
        "import io, numpy as np, polars as pl, onnxruntime\n"
        "table = pl.DataFrame({'a': [1, 2, 3], 'b': ['x', 'y', 'x']})\n"
        "table.write_parquet('t.parquet')\nprint(pl.read_parquet('t.parquet').group_by('b').agg(pl.col('a').sum()).sort('b'))\n"
        "np.savez('t.npz', a=np.arange(3))\nprint(np.load('t.npz')['a'].sum() + 40)",
        wall_seconds=60,
        cpu_seconds=30,
    )
    assert ended.code == 0, ended.log
    assert "43" in ended.log


@pytest.mark.slow
def test_torch_works_inside(run_sealed):
    ended = run_sealed(
        "import torch\nnet = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))\n"
        "net(torch.ones(3, 1, 4, 4)).sum().backward()\ntorch.save(net.state_dict(), 'w.pt')\n"
        "print('tensors', len(torch.load('w.pt', weights_only=True)))",
        wall_seconds=120,
        cpu_seconds=60,
    )
    assert "tensors 4" in ended.log, ended.log


def test_terminal_escapes_do_not_reach_the_log(run_sealed):
    ended = run_sealed("print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\u202e done')")
    assert "red" in ended.log
    assert "\x1b" not in ended.log
    assert "\u202e" not in ended.log


def test_cancelling_kills_the_child(tmp_path, level):
    program = tmp_path / "sleeper.py"
    program.write_text("import time\ntime.sleep(60)")
    beats = iter([True, False])
    with sandbox.room() as room:
        ended = sandbox.run(str(program), room=room, level=level, beat=lambda: next(beats))
    assert ended.why == "cancelled"
    assert 0.9 < ended.seconds < 5


def test_error_of_the_watcher_kills_the_child_and_passes_on(tmp_path, level):
    program = tmp_path / "sleeper.py"
    program.write_text("import time\ntime.sleep(60)")

    def fail():
        raise ConnectionError("the database is away")

    with sandbox.room() as room, pytest.raises(ConnectionError):
        sandbox.run(str(program), room=room, level=level, beat=fail)
    assert not Path(room.scratch).exists()


# ----------------------------------------------------------------------------------------------------------- own user, rooms


def test_own_user_needs_files_that_are_open_to_all(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(0o755)
    file = folder / "file"
    file.write_text("x")
    file.chmod(0o644)
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.getuid() and place != Path("/tmp") and str(place) != "/":
            place.chmod(0o755)
    assert sandbox._open_to_all(str(file))
    folder.chmod(0o700)
    assert not sandbox._open_to_all(str(file))
    folder.chmod(0o755)
    file.chmod(0o600)
    assert not sandbox._open_to_all(str(file))


def test_tree_of_any_depth_and_mode_is_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1_500):  # far beyond the longest path that the system takes
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (top / "locked").mkdir(0o000)
    sandbox.remove(str(top))
    assert not top.exists()


def test_counting_stops_at_the_first_entry_too_many(tmp_path):
    for i in range(20):
        (tmp_path / str(i)).write_bytes(bytes(8192))
    assert sandbox.holds_more_than(str(tmp_path), 1 << 30, 19)
    assert sandbox.holds_more_than(str(tmp_path), 100_000, 1_000)
    assert not sandbox.holds_more_than(str(tmp_path), 1 << 30, 20)


def test_parent_loads_no_heavy_library():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import audits.engine.job, audits.engine.sandbox\n"
        "print([m for m in ('torch', 'polars', 'onnxruntime', 'PIL', 'scipy', 'sklearn', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(sandbox.ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
