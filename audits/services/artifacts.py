"""Receiving uploads."""

import hashlib
import os
from typing import Any

from django.core.files.storage import default_storage
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from audits.methods.errors import AuditError
from audits.models import Artifact, Event, Inspection, Role, Team, User
from audits.services.access import require
from audits.tasks import ring_inspection


def receive_artifact(
    *, actor: User, team: Team, kind: str, upload: UploadedFile, name: str = "", options: dict[str, Any] | None = None
) -> Artifact:
    """Stores an upload under its hash and has it read. The bytes are safe before the row says that they exist."""
    require(actor, team, Role.AUDITOR)
    if kind not in Artifact.Kind.values:
        raise AuditError(f"An artifact is a model or a data set; found {kind!r}.")
    if not upload.size:
        raise AuditError(f"The file “{upload.name}” is empty (0 bytes). Choose the file again.")
    filename = os.path.basename(upload.name or "upload")[:255]
    digest = _sha256(upload)
    stored = f"artifacts/{team.pk}/{digest}"
    if not default_storage.exists(stored):
        upload.seek(0)
        default_storage.save(stored, upload)
    with transaction.atomic():
        artifact = Artifact.objects.create(
            team=team,
            kind=kind,
            name=(name.strip() or os.path.splitext(filename)[0])[:200],
            filename=filename,
            file=stored,
            sha256=digest,
            size=upload.size,
            options=options or {},
            uploaded_by=actor,
        )
        inspection = Inspection.objects.create(artifact=artifact)
        Event.record("uploaded", artifact, team=team, actor=actor, sha256=digest, size=upload.size)
        ring_inspection(inspection)
    return artifact


def _sha256(upload: UploadedFile) -> str:
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    return digest.hexdigest()


@transaction.atomic
def read_again(*, actor: User, artifact: Artifact, options: dict[str, Any] | None = None) -> None:
    """Has a file read again that could not be read, for example after its architecture was named."""
    require(actor, artifact.team, Role.AUDITOR)
    if Inspection.objects.requeue(artifact.pk):  # options of a file that was read are what its audits rest on
        if options is not None:
            artifact.options = options
            artifact.save(update_fields=["options"])
        Event.record("asked to read again", artifact, team=artifact.team, actor=actor)
        ring_inspection(artifact.inspection)
