"""Uploads: list, upload, what inspection read."""

import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST, require_safe
from django_htmx.http import HttpResponseClientRefresh

from audits.engine.architectures import ARCHITECTURES
from audits.forms import UploadForm
from audits.methods.contract import INPUTS
from audits.methods.errors import AuditError
from audits.models import Artifact, Role
from audits.reports import model_facts
from audits.services import artifacts as service
from audits.services.access import require
from audits.uploads import TOO_LARGE
from audits.views.context import current_team, rights, team_or_404

PER_PAGE = 50


@require_safe
def artifact_list(request: HttpRequest) -> HttpResponse:
    """All uploads of the team, the newest first."""
    artifacts = Artifact.objects.visible_to(request.user).filter(team=current_team(request))
    kind = request.GET.get("kind", "")
    if kind in Artifact.Kind.values:
        artifacts = artifacts.filter(kind=kind)
    page = Paginator(artifacts.select_related("inspection", "uploaded_by"), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "artifact_list.html", {"page": page, "kind": kind, "kinds": Artifact.Kind.choices})


def upload(request: HttpRequest) -> HttpResponse:
    """The form for a new upload. Errors come with status 422 or 413, so that the script can tell them from a redirect."""
    team = team_or_404(request)
    require(request.user, team, Role.AUDITOR)
    networks = {
        name: [(option.name, option.help, option.is_list) for option in network.options]
        for name, network in ARCHITECTURES.items()
    }
    form = UploadForm(request.POST or None, request.FILES or None, architectures=networks)
    if request.method != "POST":
        return render(request, "artifact_upload.html", {"form": form, "limit_mb": settings.UPLOAD_LIMIT_MB})
    status = 422
    if getattr(request, TOO_LARGE, False):
        form = UploadForm(request.POST, architectures=networks)
        form.errors.pop("file", None)
        form.add_error(
            "file", f"The file is larger than {settings.UPLOAD_LIMIT_MB} MB, the most that this site accepts."
        )
        status = 413
    elif form.is_valid():
        try:
            artifact = _received(request, team, form.cleaned_data)
        except AuditError as error:
            form.add_error("file", str(error))
        else:
            messages.success(request, f"“{artifact.name}” is uploaded and is being read.")
            return redirect("artifact", artifact.pk)
    context = {"form": form, "limit_mb": settings.UPLOAD_LIMIT_MB}
    return render(request, "artifact_upload.html", context, status=status)


def _received(request: HttpRequest, team: Any, data: dict[str, Any]) -> Artifact:
    return service.receive_artifact(
        actor=request.user,
        team=team,
        kind=data["kind"],
        upload=data["file"],
        name=data["name"],
        options=data["options"],
    )


@require_safe
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One upload: what inspection read, or why it could not."""
    artifact = _artifact(request, pk)
    used_in = artifact.audits_of_model if artifact.kind == Artifact.Kind.MODEL else artifact.audits_of_dataset
    context = {
        "artifact": artifact,
        "audits": used_in.all()[:10],
        "facts": model_facts(artifact.report),
        "roles": {name: role.title for name, role in INPUTS.items()},
        **rights(request, artifact.team),
    }
    return render(request, "artifact_detail.html", context)


@require_GET
def status(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The state of the inspection, for htmx to ask again; once it is final the page loads anew."""
    artifact = _artifact(request, pk)
    if not request.htmx:
        return redirect("artifact", artifact.pk)
    if artifact.inspection.is_final:
        return HttpResponseClientRefresh()
    return render(request, "_artifact_status.html", {"artifact": artifact})


@require_POST
def read_again(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Has a file read again that could not be read."""
    artifact = _artifact(request, pk)
    service.read_again(actor=request.user, artifact=artifact)
    return redirect("artifact", artifact.pk)


def _artifact(request: HttpRequest, pk: uuid.UUID) -> Artifact:
    visible = Artifact.objects.visible_to(request.user).select_related("inspection", "team", "uploaded_by")
    return get_object_or_404(visible, pk=pk)
