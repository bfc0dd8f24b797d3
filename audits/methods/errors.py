"""Errors that are the input's fault. Their message is shown to the user: what was found, what is needed, what to do."""


class AuditError(Exception):
    """The input's fault; the run becomes *failed* and the message is what the user reads."""


class UnsuitableInput(AuditError):
    """The data can be read but this method cannot answer its question on it."""


class UnreadableArtifact(AuditError):
    """A file is damaged, empty, or not what its name says."""


class RefusedArtifact(AuditError):
    """A file is of a format that is code by nature; the message says how to convert it."""


class LimitExceeded(AuditError):
    """The job needed more time, memory or disk than it may have."""
