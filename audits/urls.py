"""Addresses of the pages."""

from django.urls import path

from audits.views import access, artifacts, audits, findings, methods, teams

urlpatterns = [
    path("", teams.dashboard, name="dashboard"),
    path("sign-in/", access.sign_in, name="sign-in"),
    path("sign-out/", access.sign_out, name="sign-out"),
    path("health", access.health, name="health"),
    path("artifacts/", artifacts.artifact_list, name="artifacts"),
    path("artifacts/upload/", artifacts.upload, name="artifact-upload"),
    path("artifacts/<uuid:pk>/", artifacts.detail, name="artifact"),
    path("artifacts/<uuid:pk>/status/", artifacts.status, name="artifact-status"),
    path("artifacts/<uuid:pk>/read-again/", artifacts.read_again, name="artifact-read-again"),
    path("audits/", audits.audit_list, name="audits"),
    path("audits/new/", audits.new, name="audit-new"),
    path("audits/<uuid:pk>/", audits.detail, name="audit"),
    path("audits/<uuid:pk>/progress/", audits.progress, name="audit-progress"),
    path("audits/<uuid:pk>/cancel/", audits.cancel, name="audit-cancel"),
    path("runs/<uuid:pk>/cancel/", audits.cancel_run, name="run-cancel"),
    path("runs/<uuid:pk>/retry/", audits.retry_run, name="run-retry"),
    path("findings/", findings.finding_list, name="findings"),
    path("findings/<uuid:pk>/", findings.detail, name="finding"),
    path("findings/<uuid:pk>/comment/", findings.comment, name="finding-comment"),
    path("findings/<uuid:pk>/decide/", findings.decide, name="finding-decide"),
    path("methods/", methods.catalogue_page, name="methods"),
    path("methods/<str:key>/", methods.detail, name="method"),
    path("tokens/", teams.tokens, name="tokens"),
    path("tokens/<uuid:pk>/revoke/", teams.revoke, name="token-revoke"),
    path("team/", teams.switch, name="team-switch"),
    path("history/", teams.events, name="events"),
]
