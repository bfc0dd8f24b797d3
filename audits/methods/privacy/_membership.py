"""What the membership audits share: the check of the membership column and the thinning of samples for figures."""

import numpy as np

from audits.methods.contract import Array
from audits.methods.errors import UnsuitableInput

DRAWN = 2000  # values of each sample that a result keeps for its histogram


def member_mask(is_member: Array, records: int, what: str) -> Array:
    """Membership as booleans, shape (n,). `what` names the records in the message, e.g. "canary"."""
    marks = np.asarray(is_member)
    if marks.size != records:
        raise UnsuitableInput(f"There are {records} scores but {marks.size} membership marks; give one per {what}.")
    if not np.isin(marks, (0, 1)).all():
        strange = marks[~np.isin(marks, (0, 1))][0]
        raise UnsuitableInput(f"Membership must be 1 (trained on) or 0 (held out) for every {what}; found {strange!s}.")
    return marks.astype(bool)


def finite(values: Array, what: str) -> Array:
    """The values as float64, shape (n,). `what` names them in the message, e.g. "loss"."""
    numbers = np.asarray(values, float)
    bad = np.count_nonzero(~np.isfinite(numbers))
    if bad:
        raise UnsuitableInput(
            f"{bad} of {numbers.size} records have no finite {what}; leave them out or clip probabilities before the log."
        )
    return numbers


def thinned(sample: Array, rng: np.random.Generator, size: int = DRAWN) -> Array:
    """At most `size` values drawn at random without replacement: enough for a histogram, shape (<= size,)."""
    return sample if sample.size <= size else rng.choice(sample, size, replace=False)
