"""The addresses of the site: pages and REST."""

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("audits.api.urls")),
    path("", include("audits.urls")),
]
