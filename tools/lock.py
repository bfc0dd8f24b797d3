"""Pins requirements.in and requirements-dev.in: installs each into a fresh environment and writes down what came.

    python tools/lock.py [FOLDER]

Writes requirements.txt and requirements-dev.txt into FOLDER, the root of the project by default.
"""
# ruff: noqa: S603  every command is written here

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Pinned by `make lock` from {}; do not edit by hand.\n"


def freeze(python: Path, requirements: Path) -> list[str]:
    """Installs the file and returns what the environment then holds, one pin a line."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--requirement", str(requirements)], check=True)
    done = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True)
    pins = [re.sub(r"\+cpu$", "", line) for line in done.stdout.splitlines()]  # other machines have other builds
    if odd := [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)]:
        raise SystemExit(f"Not installed from an index, so it cannot be pinned: {', '.join(odd)}")
    return pins


def main(folder: Path) -> None:
    """Writes both files once both are known."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        python = Path(scratch) / "bin" / "python"
        base = freeze(python, ROOT / "requirements.in")
        everything = freeze(python, ROOT / "requirements-dev.in")
    if moved := set(base) - set(everything):
        raise SystemExit(f"The development requirements change pins of the application: {', '.join(sorted(moved))}")
    more = [pin for pin in everything if pin not in set(base)]
    _write(folder / "requirements.txt", "requirements.in", base)
    _write(folder / "requirements-dev.txt", "requirements-dev.in", ["-r requirements.txt", *more])


def _write(file: Path, source: str, lines: list[str]) -> None:
    file.write_text(HEADER.format(source) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
