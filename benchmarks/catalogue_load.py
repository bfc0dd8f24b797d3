"""Seconds to load the catalogue in a fresh interpreter, numpy's share of them, and which heavy libraries came along.

python -m benchmarks.catalogue_load [--quick]. Goal: below 0.3 CPU seconds, with none of the heavy libraries. CPU seconds are
held against the goal, since a busy machine stretches the others.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

GOAL_SECONDS = 0.3
HEAVY = ("torch", "scipy", "polars", "plotly", "pandas", "onnxruntime", "sklearn", "transformers", "django")
PROGRAM = f"""
import json, sys, time
wall, cpu = time.perf_counter(), time.process_time()
import numpy
numpy_cpu = time.process_time() - cpu
from audits.methods.catalogue import catalogue
methods = len(catalogue())
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
heavy = [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps(dict(cpu=cpu, numpy_cpu=numpy_cpu, wall=wall, methods=methods, heavy=heavy)))
"""


class Load(NamedTuple):
    """One fresh interpreter: CPU seconds in all and of numpy alone, seconds passed, methods found, heavy libraries loaded."""

    cpu: float
    numpy_cpu: float
    wall: float
    methods: int
    heavy: list[str]


def load_once() -> Load:
    """Loads the catalogue in a new interpreter, whose own start is left out."""
    root = Path(__file__).resolve().parents[1]
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=root)
    return Load(**json.loads(out.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two runs instead of five")
    quick = parser.parse_args().quick
    load_once()  # writes the bytecode and warms the disk cache
    runs = [load_once() for _ in range(2 if quick else 5)]
    cpu, numpy_cpu, wall = (
        statistics.median(getattr(run, name) for run in runs) for name in ("cpu", "numpy_cpu", "wall")
    )
    heavy = runs[-1].heavy
    print(f"catalogue of {runs[-1].methods} methods, median of {len(runs)} fresh interpreters:")
    print(
        f"{cpu:.3f} CPU s (goal {GOAL_SECONDS}), {wall:.3f} s passed; numpy alone {numpy_cpu:.3f} CPU s ({numpy_cpu / cpu:.0%})"
    )
    print(f"heavy libraries loaded: {', '.join(heavy) or 'none'}")
    return 0 if cpu < GOAL_SECONDS and not heavy else 1


if __name__ == "__main__":
    sys.exit(main())
