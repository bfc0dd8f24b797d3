"""The inner seal: a process locks itself in, needing no privilege, and then runs a Python program it does not trust.

Limits on resources, no new privileges, no capabilities, Landlock (files, TCP, signals) and a seccomp allow-list, applied
before any library is imported. The filter is put together here as classic BPF and loaded through prctl, so that nothing
beyond the C library is needed. Sources: landlock(7), seccomp(2), and the kernel's uapi headers of those names.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from audits.engine.syscalls import ABSENT, ALLOWED, MACHINES, checked

CANNOT_SEAL = 96  # exit code: a layer that the parent counts on is missing
ORPHANED = 97  # exit code: the parent died before its death could be noticed

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2


def start(text: str) -> None:
    """Seals this process as the JSON in `text` says, then runs its program. The process was started for this alone."""
    spec = json.loads(text)
    layers = seal(spec)
    lacking = set(spec["require"]) - set(layers)
    if lacking:
        _leave(CANNOT_SEAL, f"cannot seal: no {', '.join(sorted(lacking))}")
    if spec["parent"] and os.getppid() != spec["parent"]:
        _leave(ORPHANED, "the parent is gone")
    os.chdir(spec["writable"])
    sys.argv = [spec["program"], *spec["arguments"]]
    runpy.run_path(spec["program"], run_name="__main__")


def _leave(code: int, words: str) -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    os._exit(code)


def seal(spec: Mapping[str, Any]) -> list[str]:
    """Applies every layer that this machine has and names them. Cannot be undone."""
    _offer_to_the_oom_killer()
    _limit_resources(spec["limits"])
    if sys.platform != "linux":
        return ["rlimits"]
    libc = ctypes.CDLL(None, use_errno=True)
    layers = ["rlimits"]
    for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_PDEATHSIG, signal.SIGKILL), (PR_SET_DUMPABLE, 0)):
        _call(libc, "prctl", option, value, 0, 0, 0)
    if _drop_capabilities(libc):
        layers.append("no capabilities")
    if restrict_paths(libc, spec["readable"], [spec["writable"]]):
        layers.append("landlock")
    if filter_calls(libc):
        layers.append("seccomp")
    return layers


def _call(libc: ctypes.CDLL, name: str, *arguments: Any) -> int:
    result = getattr(libc, name)(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(result)


# ------------------------------------------------------------------------------------------------------------ resources


def _offer_to_the_oom_killer() -> None:
    """When memory runs out the kernel should take this process and not the worker."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _limit_resources(limits: Mapping[str, int]) -> None:
    """Sets limits by name, e.g. {"AS": bytes}; a lower hard limit that is already there stays."""
    for name, value in {**limits, "CORE": 0, "MEMLOCK": 0}.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        # SIGXCPU comes at the soft limit; a process that ignores it is killed at the hard one.
        hard = value + 2 if name == "CPU" else value
        before = resource.getrlimit(kind)[1]
        if before != resource.RLIM_INFINITY:
            hard = min(hard, before)
        try:
            resource.setrlimit(kind, (min(value, hard), hard))
        except (OSError, ValueError):
            if sys.platform == "linux":  # macOS knows RLIMIT_AS by name only
                raise


def _drop_capabilities(libc: ctypes.CDLL) -> bool:
    """Even root keeps nothing but its name: no override of file permissions, no privileged call."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return False
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _call(libc, "syscall", machine.numbers["capset"], header, bytes(24))
    return True


# ------------------------------------------------------------------------------------------------------------- Landlock

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15
_READ = _READ_FILE | _READ_DIR
_READ_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PATH_BENEATH = 1


def landlock_abi(libc: ctypes.CDLL | None = None) -> int:
    """Version of Landlock in this kernel; 0 where it is absent or switched off."""
    if sys.platform != "linux":
        return 0
    libc = libc or ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, 1)))


def restrict_paths(libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str]) -> bool:
    """From now on only these paths and what lies beneath them can be opened, no TCP, no signals to outside."""
    abi = landlock_abi(libc)
    if abi < 1:
        return False
    handled = 0x1FFF | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    ruleset = struct.pack("=QQQ", handled, 0b11, 0b11)  # files; TCP bind and connect; abstract sockets and signals
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _call(libc, "syscall", _CREATE_RULESET, ruleset, size, 0)
    for path, access in [(path, _READ) for path in readable] + [(path, _READ_WRITE) for path in writable]:
        _allow_beneath(libc, rules, path, access & handled)
    _allow_beneath(libc, rules, os.devnull, _READ_FILE | _WRITE_FILE)
    _call(libc, "syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)
    return True


def _allow_beneath(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # not every system has every folder of the list
    try:
        access &= ~0 if os.path.isdir(path) else _OF_FILES
        _call(libc, "syscall", _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)


# -------------------------------------------------------------------------------------------------------------- seccomp

_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_X32_BIT = 0x40000000  # a second numbering of the same calls, which no table here covers


def _errno(number: int) -> int:
    return 0x00050000 | number


def filter_calls(libc: ctypes.CDLL) -> bool:
    """Loads the allow-list; False on an architecture without a table."""
    program = filter_program(platform.machine(), os.getpid())
    if not program:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    try:
        _call(libc, "prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS):  # a kernel built without filters
            return False
        raise
    return True


def filter_program(machine: str, pid: int) -> bytes:
    """The allow-list as classic BPF, eight bytes an instruction; empty for an architecture without a table."""
    known = MACHINES.get(machine)
    if known is None:
        return b""
    # A foreign architecture kills the process and not just its thread: a lost thread hangs its pool.
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, known.audit_arch),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    for name in ALLOWED:
        steps += _when(known.numbers.get(name), [(_RETURN, 0, 0, _ALLOW)])
    for name in ABSENT:
        steps += _when(known.numbers.get(name), [(_RETURN, 0, 0, _errno(errno.ENOSYS))])
    for name, checks in checked(pid).items():
        block = []
        for check in checks:
            block += [
                (_LOAD, 0, 0, _ARGUMENTS + 8 * check.position),  # the lower half: both machines are little-endian
                (_AND, 0, 0, check.mask),
                (_JUMP_IF_EQUAL, 0, 1, check.value),
                (_RETURN, 0, 0, _ALLOW),
            ]
        steps += _when(known.numbers.get(name), [*block, (_RETURN, 0, 0, _errno(errno.EPERM))])
    steps.append((_RETURN, 0, 0, _errno(errno.EPERM)))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _when(number: int | None, block: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    return [] if number is None else [(_JUMP_IF_EQUAL, 0, len(block), number), *block]
