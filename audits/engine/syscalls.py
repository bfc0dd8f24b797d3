"""System calls of the inner seal: their numbers per machine and which of them a sealed process may make, and how.

An allow-list, because a deny-list misses the calls that later kernels add. What is not here answers EPERM: everything of
the network, other processes, mounts, keys, tracing, io_uring, and chmod, which Landlock does not govern.
"""

from collections.abc import Mapping
from typing import NamedTuple

_ALLOWED = """
    read write readv writev pread64 pwrite64 preadv pwritev lseek close close_range creat stat fstat lstat
    newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd
    chdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 ftruncate fallocate fadvise64 fsync
    fdatasync flock mmap munmap mprotect mremap madvise msync mincore brk membarrier futex set_robust_list
    get_robust_list rseq sched_yield sched_getaffinity sched_getparam sched_getscheduler getcpu get_mempolicy
    mbind set_mempolicy nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sigaltstack restart_syscall poll ppoll select
    pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe pipe2 dup dup2 dup3 getpid getppid
    gettid getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getrlimit getrusage uname sysinfo
    getrandom arch_prctl set_tid_address exit exit_group wait4 umask
"""
ALLOWED = tuple(_ALLOWED.split())


class Check(NamedTuple):
    """True where the lower half of argument `position`, masked, equals `value`; the kernel reads these as 32 bits."""

    position: int
    mask: int
    value: int


_WHOLE = 0xFFFFFFFF
_CLONE_THREAD = 0x00010000
_CLONE_NEW_NAMESPACE = 0x7E020080
_O_TRUNC = 0x200


def checked(pid: int) -> Mapping[str, tuple[Check, ...]]:
    """Calls that are allowed when one of their checks holds, for the sealed process `pid`."""
    # Before its third version Landlock lets O_RDONLY | O_TRUNC empty a file that may only be read.
    opens = ((_O_TRUNC, 0), (_O_TRUNC | 1, _O_TRUNC | 1), (_O_TRUNC | 2, _O_TRUNC | 2))
    return {
        "clone": (Check(0, _CLONE_THREAD | _CLONE_NEW_NAMESPACE, _CLONE_THREAD),),  # threads yes, processes no
        "open": tuple(Check(1, mask, value) for mask, value in opens),
        "openat": tuple(Check(2, mask, value) for mask, value in opens),
        "tgkill": (Check(0, _WHOLE, pid),),
        "prlimit64": (Check(0, _WHOLE, 0),),
        "sched_setaffinity": (Check(0, _WHOLE, 0),),
        "prctl": (Check(0, _WHOLE, 15), Check(0, _WHOLE, 0x53564D41)),  # PR_SET_NAME, PR_SET_VMA
        "ioctl": (Check(1, _WHOLE, 0x5401), Check(1, _WHOLE, 0x5451)),  # TCGETS, FIOCLEX
        # Not F_SETOWN and F_SETSIG: they can signal the parent. 1030 is F_DUPFD_CLOEXEC.
        "fcntl": tuple(Check(1, _WHOLE, command) for command in (0, 1, 2, 3, 4, 5, 6, 7, 1030)),
    }


ABSENT = ("clone3",)  # answers ENOSYS, so that the C library falls back to clone, whose flags can be read


class Machine(NamedTuple):
    """A processor architecture: its name for audit records in the kernel, and the numbers of the calls it has."""

    audit_arch: int
    numbers: Mapping[str, int]


def _numbers(table: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split(":") for entry in table.split())}


# From the kernel's headers asm/unistd_64.h and asm-generic/unistd.h; a test compares where they are installed.
_X86_64 = """
    access:21 arch_prctl:158 brk:12 capset:126 chdir:80 clock_getres:229 clock_gettime:228 clock_nanosleep:230
    clone:56 clone3:435 close:3 close_range:436 creat:85 dup:32 dup2:33 dup3:292 epoll_create1:291 epoll_ctl:233
    epoll_pwait:281 epoll_wait:232 eventfd2:290 exit:60 exit_group:231 faccessat:269 faccessat2:439
    fadvise64:221 fallocate:285 fcntl:72 fdatasync:75 flock:73 fstat:5 fstatfs:138 fsync:74 ftruncate:77
    futex:202 get_mempolicy:239 get_robust_list:274 getcpu:309 getcwd:79 getdents:78 getdents64:217 getegid:108
    geteuid:107 getgid:104 getgroups:115 getpgrp:111 getpid:39 getppid:110 getrandom:318 getresgid:120
    getresuid:118 getrlimit:97 getrusage:98 gettid:186 gettimeofday:96 getuid:102 ioctl:16 landlock_add_rule:445
    landlock_create_ruleset:444 landlock_restrict_self:446 lseek:8 lstat:6 madvise:28 mbind:237 membarrier:324
    mincore:27 mkdir:83 mkdirat:258 mmap:9 mprotect:10 mremap:25 msync:26 munmap:11 nanosleep:35 newfstatat:262
    open:2 openat:257 pipe:22 pipe2:293 poll:7 ppoll:271 prctl:157 pread64:17 preadv:295 prlimit64:302
    pselect6:270 pwrite64:18 pwritev:296 read:0 readlink:89 readlinkat:267 readv:19 rename:82 renameat:264
    renameat2:316 restart_syscall:219 rmdir:84 rseq:334 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15
    rt_sigtimedwait:128 sched_getaffinity:204 sched_getparam:143 sched_getscheduler:145 sched_setaffinity:203
    sched_yield:24 select:23 set_mempolicy:238 set_robust_list:273 set_tid_address:218 sigaltstack:131 stat:4
    statfs:137 statx:332 sysinfo:99 tgkill:234 time:201 times:100 umask:95 uname:63 unlink:87 unlinkat:263
    wait4:61 write:1 writev:20
"""

_AARCH64 = """
    brk:214 capset:91 chdir:49 clock_getres:114 clock_gettime:113 clock_nanosleep:115 clone:220 clone3:435
    close:57 close_range:436 dup:23 dup3:24 epoll_create1:20 epoll_ctl:21 epoll_pwait:22 eventfd2:19 exit:93
    exit_group:94 faccessat:48 faccessat2:439 fadvise64:223 fallocate:47 fcntl:25 fdatasync:83 flock:32 fstat:80
    fstatfs:44 fsync:82 ftruncate:46 futex:98 get_mempolicy:236 get_robust_list:100 getcpu:168 getcwd:17
    getdents64:61 getegid:177 geteuid:175 getgid:176 getgroups:158 getpid:172 getppid:173 getrandom:278
    getresgid:150 getresuid:148 getrlimit:163 getrusage:165 gettid:178 gettimeofday:169 getuid:174 ioctl:29
    landlock_add_rule:445 landlock_create_ruleset:444 landlock_restrict_self:446 lseek:62 madvise:233 mbind:235
    membarrier:283 mincore:232 mkdirat:34 mmap:222 mprotect:226 mremap:216 msync:227 munmap:215 nanosleep:101
    newfstatat:79 openat:56 pipe2:59 ppoll:73 prctl:167 pread64:67 preadv:69 prlimit64:261 pselect6:72
    pwrite64:68 pwritev:70 read:63 readlinkat:78 readv:65 renameat:38 renameat2:276 restart_syscall:128 rseq:293
    rt_sigaction:134 rt_sigprocmask:135 rt_sigreturn:139 rt_sigtimedwait:137 sched_getaffinity:123
    sched_getparam:121 sched_getscheduler:120 sched_setaffinity:122 sched_yield:124 set_mempolicy:237
    set_robust_list:99 set_tid_address:96 sigaltstack:132 statfs:43 statx:291 sysinfo:179 tgkill:131 times:153
    umask:166 uname:160 unlinkat:35 wait4:260 write:64 writev:66
"""

MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(0xC000003E, _numbers(_X86_64)),
    "aarch64": Machine(0xC00000B7, _numbers(_AARCH64)),
}
