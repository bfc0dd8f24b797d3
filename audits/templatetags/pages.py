"""Small parts of pages: links of the navigation, names of methods, Markdown of comments, queries of lists."""

from typing import Any

import nh3
from django import template
from django.http import QueryDict
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

from audits.methods.catalogue import FAMILIES, catalogue

register = template.Library()

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_ACRONYMS = {"tpr", "fpr", "fnr", "tnr", "ppv", "npv", "auc", "roc", "ece", "mse", "l1", "l2"}
_TAGS = {"p", "br", "strong", "em", "code", "pre", "blockquote", "ul", "ol", "li", "a", "hr"}
_TAGS |= {"h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"}


@register.inclusion_tag("_nav_link.html", takes_context=True)
def nav_link(context: Any, address: str, words: str, icon: str, *also: str) -> dict[str, Any]:
    """One link of the navigation; it is current on its own page and on those named in `also`."""
    request = context.get("request")
    match = getattr(request, "resolver_match", None)
    name = match.url_name if match else ""
    return {"address": address, "words": words, "icon": icon, "current": name == address, "within": name in also}


@register.filter
def method_title(key: str) -> str:
    """A method's name for people; its key where the catalogue no longer has it."""
    entry = catalogue().get(key)
    return entry.method.title if entry else key


@register.filter
def family_title(key: str) -> str:
    """A family's name for people."""
    return FAMILIES.get(key, key)


@register.filter
def words(name: object) -> str:
    """An identifier in words: "selection_rate" becomes "Selection rate", "tpr" becomes "TPR"."""
    text = " ".join(part.upper() if part in _ACRONYMS else part for part in str(name).split("_"))
    return text[:1].upper() + text[1:]


@register.filter
def item(mapping: Any, key: Any) -> Any:
    """The value under a key; None where there is none."""
    return mapping.get(key) if hasattr(mapping, "get") else None


@register.filter
def markdown(text: str) -> SafeString:
    """Markdown as HTML: no raw HTML, only the tags of a text, links that vouch for nothing."""
    html = nh3.clean(
        _MARKDOWN.render(text),
        tags=_TAGS,
        attributes={"a": {"href", "title"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
    )
    return mark_safe(html)  # noqa: S308  nh3 has just cleaned it


@register.simple_tag(takes_context=True)
def query(context: Any, **changes: Any) -> str:
    """The page's query string with some values changed; None drops one."""
    params: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        if value is None:
            params.pop(name, None)
        else:
            params[name] = value
    return f"?{params.urlencode()}"
