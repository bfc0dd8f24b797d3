"""The catalogue of audit methods, for people."""

import inspect
import re
import sys
import textwrap
from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from audits.methods.catalogue import FAMILIES, Entry, catalogue
from audits.policies import HOUSE
from audits.reports import input_titles


@require_safe
def catalogue_page(request: HttpRequest) -> HttpResponse:
    """All methods by family."""
    families = [
        (title, [(entry, input_titles(entry)) for entry in catalogue().values() if entry.family == family])
        for family, title in FAMILIES.items()
    ]
    return render(request, "method_list.html", {"families": families, "total": len(catalogue())})


@require_safe
def detail(request: HttpRequest, key: str) -> HttpResponse:
    """One method: what it measures and how, what it needs, where the house policy draws its lines."""
    entry = catalogue().get(key)
    if entry is None:
        raise Http404(f"There is no audit method “{key}”.")
    context = {"entry": entry, "family": FAMILIES[entry.family], "paragraphs": paragraphs(entry), "policy": HOUSE}
    return render(request, "method_detail.html", context)


@dataclass(frozen=True)
class Paragraph:
    """A part of a docstring. `plain` text flows; the rest (formulae, tables) keeps its lines. `label`: "Source", "Limits"."""

    text: str
    plain: bool = True
    label: str = ""


def paragraphs(entry: Entry) -> list[Paragraph]:
    """The paper that a method's module opens with, in paragraphs."""
    text = inspect.cleandoc(sys.modules[entry.method.audit.__module__].__doc__ or "")
    out: list[Paragraph] = []
    for block in re.split(r"\n\s*\n|\n(?=(?:Source|Limits|Agrees with):)", text):
        label, _, rest = block.partition(":")
        if label in ("Source", "Limits", "Agrees with"):
            out.append(Paragraph(_flow(rest), label=label))
        elif any(line.startswith(("  ", "- ")) for line in block.splitlines()):
            out.append(Paragraph(textwrap.dedent(block), plain=False))
        else:
            out.append(Paragraph(_flow(block)))
    return out


def _flow(block: str) -> str:
    """Lines joined, the first letter a capital."""
    text = " ".join(block.split())
    return text[:1].upper() + text[1:]
