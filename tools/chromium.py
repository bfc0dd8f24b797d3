"""Makes sure that a Chromium is here for the browser tests; prints its path."""
# ruff: noqa: S603, S607  every command is written here

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a browser on this machine; CHROMIUM names one that lies elsewhere."""
    wanted = os.environ.get("CHROMIUM")
    if wanted:
        return shutil.which(wanted)
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Installs Debian's package, where that is this user's to do."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.call(["apt-get", "update", "-qq"], env=environment, stdout=sys.stderr)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    subprocess.call(command, env=environment, stdout=sys.stderr)


def main() -> int:
    """0 where a browser is there in the end."""
    if find() is None:
        install()
    path = find()
    if path is None:
        print(
            "The browser tests need Chromium. Install it (Debian and Ubuntu: sudo apt install chromium), or name one "
            "with CHROMIUM=/path/to/chromium. `make fast` runs the tests that need none.",
            file=sys.stderr,
        )
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
