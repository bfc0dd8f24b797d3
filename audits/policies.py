"""Where the lines are drawn. The house policy adopts what the methods' cards suggest; an audit keeps the bounds it used."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from audits.methods.catalogue import find
from audits.methods.contract import Bound

HOUSE = {"name": "House policy", "version": "2026-12-01", "status": "internal default, no legal force"}


def house_policy(methods: Iterable[str]) -> dict[str, Any]:
    """The house policy for these methods, as an audit stores it."""
    return HOUSE | {"bounds": {key: [asdict(bound) for bound in find(key).method.bounds] for key in methods}}


def bounds_of(policy: dict[str, Any], method: str) -> list[Bound]:
    """The bounds that a stored policy sets for one method."""
    return [Bound(**bound) for bound in policy.get("bounds", {}).get(method, [])]
