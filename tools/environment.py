"""Makes the virtual environment .venv and installs a requirements file into it, unless exactly that is already there.

    python3 tools/environment.py requirements.txt

Needs nothing but Python. Pythons that are too old can still read it and say what is wrong.
"""
# ruff: noqa: S603  every command is written here

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OLDEST = (3, 11)
INDEX_NAME = (
    "TORCH_INDEX"  # PyPI's torch for Linux is for GPUs and takes gigabytes; PyTorch's own index has a small build
)


def main(requirements: str) -> int:
    """Exit code: 0 where the environment holds what the file asks for."""
    if sys.version_info < OLDEST:
        print(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}.")
        return 1
    files = closure(ROOT / requirements)
    if is_usable():
        if all(read(stamp(file)) == fingerprint(file) for file in files):
            return 0
    elif make() != 0:
        return 1
    print(f"Installing {requirements} into .venv; the first time takes minutes", flush=True)
    install_torch(files)
    if pip("install", "--quiet", "--requirement", str(ROOT / requirements)) != 0:
        print(f"Installing {requirements} failed; pip says why above. The next try goes on from here.")
        return 1
    for file in files:
        stamp(file).write_text(fingerprint(file))
    return 0


def closure(file: Path) -> list[Path]:
    """The file and those it includes with -r, included ones first."""
    included = re.findall(r"(?m)^-r (\S+)", read(file))
    return [inner for name in included for inner in closure(file.parent / name)] + [file]


def fingerprint(file: Path) -> str:
    """Changes when the file, one it includes, or the Python of the environment does."""
    texts = [read(VENV / "pyvenv.cfg"), *map(read, closure(file))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def stamp(file: Path) -> Path:
    """Where it is noted that the file was installed."""
    return VENV / f".installed-{file.name}"


def is_usable() -> bool:
    """Whether .venv has a Python that runs and is new enough."""
    try:
        code = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
        return subprocess.call([PYTHON, "-c", code], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def make() -> int:
    """Makes .venv from the Python that runs this."""
    print(f"Creating .venv with Python {sys.version.split()[0]}", flush=True)
    code = subprocess.call([sys.executable, "-m", "venv", "--clear", VENV])
    if code != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        print("Python's module venv failed; see above. Debian and Ubuntu have it in the package python3-venv.")
    return code


def install_torch(files: list[Path]) -> None:
    """Takes torch from the package index that TORCH_INDEX names; without one, the next step takes what pip finds."""
    index = os.environ.get(INDEX_NAME)
    pin = re.search(r"(?m)^torch==\S+", "\n".join(map(read, files)))
    if pin and index and pip("install", "--quiet", "--no-deps", "--index-url", index, pin.group()) != 0:
        print(f"{index} did not give {pin.group()}; pip chooses the build.", flush=True)


def pip(*arguments: str) -> int:
    """Runs the environment's own pip."""
    options = ["--disable-pip-version-check", "--no-input"]
    return subprocess.call([PYTHON, "-m", "pip", *options, *arguments])


def read(file: Path) -> str:
    """Text of a file; empty where there is none."""
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
