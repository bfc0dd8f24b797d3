"""The addresses of the API."""

from django.contrib.auth.decorators import login_required
from django.urls import path

from audits.api import artifacts, audits, documents, findings, methods, runs, tokens
from audits.api.views import Nowhere

urlpatterns = [
    path("artifacts/", artifacts.Artifacts.as_view(), name="api-artifacts"),
    path("artifacts/<uuid:id>/", artifacts.OneArtifact.as_view(), name="api-artifact"),
    path("artifacts/<uuid:id>/read-again/", artifacts.ReadAgain.as_view(), name="api-artifact-read-again"),
    path("audits/", audits.Audits.as_view(), name="api-audits"),
    path("audits/<uuid:id>/", audits.OneAudit.as_view(), name="api-audit"),
    path("audits/<uuid:id>/cancel/", audits.CancelAudit.as_view(), name="api-audit-cancel"),
    path("runs/<uuid:id>/", runs.OneRun.as_view(), name="api-run"),
    path("runs/<uuid:id>/result/", runs.OneResult.as_view(), name="api-run-result"),
    path("runs/<uuid:id>/cancel/", runs.CancelRun.as_view(), name="api-run-cancel"),
    path("runs/<uuid:id>/retry/", runs.RetryRun.as_view(), name="api-run-retry"),
    path("findings/", findings.Findings.as_view(), name="api-findings"),
    path("findings.csv", findings.FindingsCSV.as_view(), name="api-findings-csv"),
    path("findings/<uuid:id>/", findings.OneFinding.as_view(), name="api-finding"),
    path("findings/<uuid:id>/comments/", findings.Comments.as_view(), name="api-finding-comments"),
    path("findings/<uuid:id>/decisions/", findings.Decisions.as_view(), name="api-finding-decisions"),
    path("methods/", methods.Methods.as_view(), name="api-methods"),
    path("methods/<str:key>/", methods.OneMethod.as_view(), name="api-method"),
    path("tokens/", tokens.Tokens.as_view(), name="api-tokens"),
    path("tokens/<uuid:id>/", tokens.OneToken.as_view(), name="api-token"),
    path("schema/", documents.Schema.as_view(), name="api-schema"),
    path("docs/", login_required(documents.Docs.as_view()), name="api-docs"),
    path("<path:rest>", Nowhere.as_view(), name="api-nowhere"),
]
