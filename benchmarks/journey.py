"""From pressing Run to the finished fairness report on the sample: where does the time go?

    python -m auditor.embedded run -- .venv/bin/python -m benchmarks.journey [--quick]

Uploads the sample, has the confined child read it, then requests the audit and executes its runs in this process as a worker
would, without the broker's few milliseconds. Prints each part's share of the wall time, the median of some rounds.
"""

import os
import statistics
import sys
import time
from collections.abc import Mapping

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "auditor.settings")
django.setup()

from django.core.files.uploadedfile import SimpleUploadedFile  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

from audits import execution  # noqa: E402
from audits.models import Artifact, Audit, Preparation, Team, User  # noqa: E402
from audits.samples.demo import AUDITS, FOLDER, SampleAudit  # noqa: E402
from audits.services.artifacts import receive_artifact  # noqa: E402
from audits.services.audits import request_audit  # noqa: E402
from audits.services.teams import create_team  # noqa: E402


def main() -> None:
    """Prints the table for the audit with a model and for the audit of predictions alone."""
    rounds = 1 if "--quick" in sys.argv else 5
    call_command("migrate", verbosity=0)
    owner, _ = User.objects.get_or_create(username="benchmark")
    team = create_team(name="Benchmark", owner=owner)
    for sample in (AUDITS[2], AUDITS[0]):
        files = {name: _read(team, owner, name) for name in (sample.dataset, sample.model) if name}
        report(sample.title, [one_round(team, owner, sample, files) for _ in range(rounds)])


def _read(team: Team, owner: User, name: str) -> Artifact:
    kind = "dataset" if name.endswith((".csv", ".parquet")) else "model"
    upload = SimpleUploadedFile(name, (FOLDER / name).read_bytes())
    artifact = receive_artifact(actor=owner, team=team, kind=kind, upload=upload)
    execution.inspect(artifact.pk)
    artifact.inspection.refresh_from_db()
    return artifact


def one_round(team: Team, owner: User, sample: SampleAudit, files: Mapping[str, Artifact]) -> dict[str, float]:
    """Wall seconds by part for one audit from the request to the served report."""
    team.audits.all().delete()
    Preparation.objects.filter(team=team).delete()  # so that every round predicts anew
    start = time.perf_counter()
    audit = request_audit(
        actor=owner,
        team=team,
        dataset=files[sample.dataset],
        model=files.get(sample.model),
        roles=sample.roles,
        positive_label=sample.positive_label,
        methods={"fairness.group_metrics": {}},
        seed=1,
    )
    requested = time.perf_counter()
    run = audit.runs.get()
    execution.execute(run.pk)
    executed = time.perf_counter()
    _serve(owner, audit)
    served = time.perf_counter()
    run.refresh_from_db()
    if run.status != "completed":
        raise SystemExit(f"{sample.title}: {run.status}: {run.reason}")
    parts = {"request": requested - start}
    for step in run.steps.all():
        parts |= _of_a_child(step.name, step.seconds)
    parts |= _of_a_child("measure", run.seconds)
    parts["store and judge"] = executed - start - sum(parts.values())
    parts["report page"] = served - executed
    parts["TOTAL"] = served - start
    return parts


def _of_a_child(name: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """Parts of one child's wall time; what it does not tell apart is its sealing, its end and the waiting for it."""
    told = {part: value for part, value in seconds.items() if part != "total"}
    rest = seconds["total"] - sum(value for part, value in told.items() if part != "checking")
    return {f"{name}: {part}": value for part, value in told.items()} | {f"{name}: rest": rest}


def _serve(owner: User, audit: Audit) -> None:
    client = Client(HTTP_HOST="localhost")
    client.force_login(owner)
    answer = client.get(f"/audits/{audit.pk}/")
    if answer.status_code != 200:
        raise SystemExit(f"the report answered {answer.status_code}")


def report(title: str, rounds: list[dict[str, float]]) -> None:
    """Prints medians and shares."""
    print(f"\n{title} ({len(rounds)} rounds, medians, wall seconds)")
    total = statistics.median(one["TOTAL"] for one in rounds)
    for name in rounds[0]:
        seconds = statistics.median(one.get(name, 0.0) for one in rounds)
        print(f"  {name:<28}{seconds:8.3f} s {100 * seconds / total:6.1f} %")


if __name__ == "__main__":
    main()
