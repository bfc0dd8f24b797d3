"""Rows to JSON and JSON to plain values. They translate and validate shape; they do not decide."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from audits.api.parsing import storable
from audits.methods.catalogue import FAMILIES, Entry, Parameter, catalogue
from audits.methods.contract import INPUTS, Kind
from audits.models import ApiToken, Artifact, Audit, Comment, Decision, Finding, Inspection, Run, RunResult, Status
from audits.models.reviews import VERDICTS
from audits.models.teams import TOKEN_DAYS
from audits.models.work import FINAL

SEVERITIES = tuple(severity.label.lower() for severity in Finding.Severity)
AUDIT_STATUSES = ("queued", "running", "completed", "incomplete")
ARTIFACT_KINDS = tuple(Artifact.Kind.values)
INPUT_KINDS = tuple(kind.value for kind in Kind if kind is not Kind.RUNTIME)
JSON_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
OBJECT = {"type": "object", "additionalProperties": {}}


class Choice(serializers.ChoiceField):
    """One of several words; a refusal names them."""

    default_error_messages: ClassVar = {"invalid_choice": "It is one of {choices}; found “{input}”."}

    def fail(self, key: str, **found: Any) -> NoReturn:
        """Raises ValidationError."""
        super().fail(key, choices=", ".join(map(str, self.choices)), **found)


class Strict(serializers.Serializer):
    """A body whose every field is known: a misspelt name must not be dropped in silence."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuses fields that are not named here."""
        known = [name for name, field in self.fields.items() if not field.read_only]
        unknown = [str(name)[:60] for name in self.initial_data if name not in [*known, "csrfmiddlewaretoken"]]
        if unknown:
            words = f"There is no such field; there are {', '.join(known)}."
            raise ValidationError({name: [words] for name in unknown})
        return attrs


# ------------------------------------------------------------------------------------------------------------- artifacts


class ArtifactSerializer(serializers.ModelSerializer):
    """An upload and how far reading it has come."""

    kind = Choice(choices=ARTIFACT_KINDS)
    uploaded_by = serializers.CharField(source="uploaded_by.username")
    status = Choice(choices=Status.values, source="inspection.status")
    progress = serializers.SerializerMethodField(help_text="Share of the reading that is done")
    reason = serializers.CharField(source="inspection.reason", help_text="Why it could not be read")
    options = serializers.DictField()

    class Meta:
        model = Artifact
        fields = (
            "id",
            "team",
            "kind",
            "name",
            "filename",
            "sha256",
            "size",
            "options",
            "uploaded_by",
            "created_at",
            "status",
            "progress",
            "reason",
        )
        read_only_fields = fields

    def get_progress(self, artifact: Artifact) -> float:
        """In [0, 1]."""
        inspection: Inspection = artifact.inspection
        return inspection.percent / 100


class ArtifactDetailSerializer(ArtifactSerializer):
    """An upload with what was read in it."""

    report = serializers.SerializerMethodField(help_text="Format, columns or shapes, warnings; null until it is read")
    sandbox = serializers.DictField(source="inspection.sandbox", help_text="The confinement it was read in")

    class Meta(ArtifactSerializer.Meta):
        fields = (*ArtifactSerializer.Meta.fields, "report", "sandbox")
        read_only_fields = fields

    @extend_schema_field(OBJECT | {"nullable": True})
    def get_report(self, artifact: Artifact) -> Any:
        """As the confined child wrote it."""
        inspection: Inspection = artifact.inspection
        return inspection.report


@extend_schema_field(OBJECT)
class OptionsField(serializers.Field):
    """An object, or its text in a multipart form."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The object."""
        try:
            options = storable(data) if isinstance(data, str) else data
        except json.JSONDecodeError as error:
            raise ValidationError(f"It must be a JSON object; {error}.") from None
        except ValueError as error:
            raise ValidationError(f"It must be a JSON object that can be stored; {error}.") from None
        if not isinstance(options, dict):
            raise ValidationError("It must be a JSON object, e.g. {“architecture”: …}.")
        return options

    def to_representation(self, value: Any) -> Any:
        """As it is."""
        return value


@extend_schema_field(OpenApiTypes.BINARY)
class UploadField(serializers.FileField):
    """A file as the document shows it: bytes."""


class UploadSerializer(Strict):
    """A new artifact, as multipart/form-data."""

    kind = Choice(choices=ARTIFACT_KINDS)
    file = UploadField(max_length=255, allow_empty_file=True)  # the service says what to do about an empty one
    name = serializers.CharField(max_length=200, required=False, allow_blank=True, help_text="Else the file's own")
    options = OptionsField(required=False, help_text="What the file does not say itself, e.g. its architecture")


class ReadAgainSerializer(Strict):
    """What to read it with this time."""

    options = OptionsField(required=False, help_text="Replaces the options; without it they stay")


class ArtifactFilters(serializers.Serializer):
    """How a list of artifacts is narrowed."""

    kind = Choice(choices=ARTIFACT_KINDS, required=False)


# ------------------------------------------------------------------------------------------------------------------ runs


class RunSerializer(serializers.ModelSerializer):
    """One method on one audit's artifacts."""

    title = serializers.SerializerMethodField(help_text="The method's name for people")
    settings = serializers.SerializerMethodField(help_text="As used; a secret shows as dots")
    status = Choice(choices=Status.values)
    sandbox = serializers.DictField(help_text="The confinement it ran in")
    progress = serializers.SerializerMethodField(help_text="Share of the work that is done")
    seconds = serializers.DictField(help_text="Where the time went")

    class Meta:
        model = Run
        fields = (
            "id",
            "audit",
            "method",
            "method_version",
            "title",
            "settings",
            "status",
            "cancel_requested",
            "progress",
            "progress_words",
            "reason",
            "reference",
            "tries",
            "sandbox",
            "seconds",
            "created_at",
            "started_at",
            "finished_at",
        )
        read_only_fields = fields

    def get_progress(self, run: Run) -> float:
        """In [0, 1]."""
        return run.percent / 100

    def get_title(self, run: Run) -> str:
        """The key itself where the method is no longer in the catalogue."""
        return method_title(run.method)

    @extend_schema_field(OBJECT)
    def get_settings(self, run: Run) -> dict[str, object]:
        """Nothing where the method is gone: nobody can tell any more which of its settings were secret."""
        return run.shown_settings if run.method in catalogue() else {}


def method_title(key: str) -> str:
    """The method's name for people; its key where an upgrade removed it."""
    entry = catalogue().get(key)
    return entry.method.title if entry else key


class ResultSerializer(serializers.ModelSerializer):
    """What a run measured. An undefined value is null and `undefined` says why."""

    method = serializers.CharField(source="run.method")
    method_version = serializers.CharField(source="run.method_version")
    measurements = serializers.ListField(child=serializers.DictField(), source="data.measurements")
    controls = serializers.ListField(child=serializers.DictField(), source="data.controls")
    tables = serializers.ListField(child=serializers.DictField(), source="data.tables")
    notes = serializers.ListField(child=serializers.CharField(), source="data.notes")
    ledger = serializers.DictField(help_text="Rows in, dropped by reason, used")

    class Meta:
        model = RunResult
        fields = (
            "run",
            "method",
            "method_version",
            "attempt",
            "measurements",
            "controls",
            "tables",
            "notes",
            "ledger",
            "sha256",
            "created_at",
        )
        read_only_fields = fields


# ---------------------------------------------------------------------------------------------------------------- audits


class ArtifactNameSerializer(serializers.ModelSerializer):
    """An artifact where it is only mentioned."""

    class Meta:
        model = Artifact
        fields = ("id", "name", "sha256")
        read_only_fields = fields


class AuditSerializer(serializers.ModelSerializer):
    """One request with its runs and how many checks came out how."""

    status = serializers.SerializerMethodField(
        help_text="“completed”: every run has a result. “incomplete”: every run has ended and some have none."
    )
    verdicts = serializers.SerializerMethodField(help_text="Number of findings by verdict")
    dataset = ArtifactNameSerializer()
    model = ArtifactNameSerializer(allow_null=True)
    roles = serializers.DictField(help_text="Input name to column name, or to a list of names")
    missing = Choice(choices=Audit.Missing.values)
    requested_by = serializers.CharField(source="requested_by.username")
    runs = RunSerializer(many=True)

    class Meta:
        model = Audit
        fields = (
            "id",
            "team",
            "title",
            "status",
            "verdicts",
            "dataset",
            "model",
            "roles",
            "positive_label",
            "missing",
            "seed",
            "requested_by",
            "created_at",
            "evaluated_at",
            "runs",
        )
        read_only_fields = fields

    @extend_schema_field(Choice(choices=AUDIT_STATUSES))
    def get_status(self, audit: Audit) -> str:
        """From the runs; they were fetched together."""
        return audit_status([run.status for run in audit.runs.all()])

    @extend_schema_field(
        {
            "type": "object",
            "properties": {verdict: {"type": "integer"} for verdict, _ in VERDICTS},
            "required": [verdict for verdict, _ in VERDICTS],
        }
    )
    def get_verdicts(self, audit: Audit) -> dict[str, int]:
        """Every verdict is there, also with 0."""
        verdicts = [finding.verdict for finding in audit.findings.all()]
        return {verdict: verdicts.count(verdict) for verdict, _ in VERDICTS}


def audit_status(runs: list[str]) -> str:
    """One word for an audit. A run without a result never looks like one that passed."""
    if any(status not in FINAL for status in runs):
        return "queued" if all(status == Status.QUEUED for status in runs) else "running"
    return "completed" if all(status == Status.COMPLETED for status in runs) else "incomplete"


class AuditDetailSerializer(AuditSerializer):
    """One request with the policy that its results are held against."""

    policy = serializers.DictField(help_text="Name, version and bounds, as they stood when it was requested")

    class Meta(AuditSerializer.Meta):
        fields = (*AuditSerializer.Meta.fields, "policy")
        read_only_fields = fields


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "example": {"y_true": "income", "sensitive_features": ["sex", "race"]},
    }
)
class RolesField(serializers.Field):
    """Input name to column name, or to a list of names."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The mapping as given."""
        if not isinstance(data, dict):
            raise ValidationError("It must map input names to column names, e.g. {“y_true”: “income”}.")
        for name, column in data.items():
            names = column if isinstance(column, list) else [column]
            if not all(isinstance(one, str) for one in names):
                raise ValidationError(f"The role “{name[:60]}” needs a column name or a list of names.")
        return data


@extend_schema_field(
    {
        "oneOf": [
            {"type": "object", "additionalProperties": OBJECT},
            {"type": "array", "items": {"type": "string"}},
        ],
        "example": {"fairness.group_metrics": {}},
    }
)
class MethodsField(serializers.Field):
    """Method key to settings, or only the keys."""

    def to_internal_value(self, data: Any) -> dict[str, dict[str, Any]]:
        """Always the mapping."""
        if isinstance(data, list) and all(isinstance(key, str) for key in data):
            return {key: {} for key in data}
        if isinstance(data, dict) and all(isinstance(settings, dict) for settings in data.values()):
            return data
        raise ValidationError("It must map method keys to settings, e.g. {“fairness.group_metrics”: {}}, or list keys.")


class AuditRequestSerializer(Strict):
    """A new audit."""

    title = serializers.CharField(max_length=200, required=False, allow_blank=True)
    dataset = serializers.UUIDField()
    model = serializers.UUIDField(required=False, allow_null=True)
    roles = RolesField(help_text="Input name to column name, or to a list of names")
    positive_label = serializers.CharField(max_length=200, required=False, allow_blank=True)
    missing = Choice(choices=Audit.Missing.values, required=False)
    methods = MethodsField(help_text="Method key to settings, or a list of keys for their defaults")
    seed = serializers.IntegerField(min_value=0, max_value=2**53 - 1, required=False, help_text="Else drawn")


class AuditFilters(serializers.Serializer):
    """How a list of audits is narrowed."""

    dataset = serializers.UUIDField(required=False)
    model = serializers.UUIDField(required=False)


# -------------------------------------------------------------------------------------------------------------- findings


class FindingSerializer(serializers.ModelSerializer):
    """One judged measurement."""

    title = serializers.CharField()
    family = Choice(choices=list(FAMILIES))
    method_title = serializers.SerializerMethodField()
    measurement = serializers.DictField(help_text="As judged: value, interval, n; value null where it is undefined")
    bound = serializers.DictField(help_text="The bound it was held against")
    verdict = Choice(choices=[verdict for verdict, _ in VERDICTS])
    severity = serializers.SerializerMethodField()
    state = Choice(choices=Finding.State.values)

    class Meta:
        model = Finding
        fields = (
            "id",
            "team",
            "audit",
            "run",
            "identity",
            "title",
            "family",
            "method",
            "method_title",
            "measurement",
            "bound",
            "verdict",
            "because",
            "severity",
            "p_adjusted",
            "state",
            "created_at",
        )
        read_only_fields = fields

    def get_method_title(self, finding: Finding) -> str:
        """The key itself where the method is no longer in the catalogue."""
        return method_title(finding.method)

    @extend_schema_field(Choice(choices=SEVERITIES))
    def get_severity(self, finding: Finding) -> str:
        """In words."""
        return SEVERITIES[finding.severity - 1]


class CommentSerializer(serializers.ModelSerializer):
    """A remark on a finding, in Markdown."""

    author = serializers.CharField(source="author.username")

    class Meta:
        model = Comment
        fields = ("id", "author", "text", "created_at")
        read_only_fields = fields


class DecisionSerializer(serializers.ModelSerializer):
    """A change of a finding's state."""

    author = serializers.CharField(source="author.username")
    state = Choice(choices=Finding.State.values)

    class Meta:
        model = Decision
        fields = ("author", "state", "reason", "expires_on", "created_at")
        read_only_fields = fields


class FindingDetailSerializer(FindingSerializer):
    """A finding with what was said and decided."""

    comments = CommentSerializer(many=True)
    decisions = DecisionSerializer(many=True)

    class Meta(FindingSerializer.Meta):
        fields = (*FindingSerializer.Meta.fields, "comments", "decisions")
        read_only_fields = fields


class CommentRequestSerializer(Strict):
    """A new remark."""

    text = serializers.CharField(max_length=10_000)


class DecisionRequestSerializer(Strict):
    """A new decision."""

    state = Choice(choices=Finding.State.values)
    reason = serializers.CharField(max_length=10_000, required=False, allow_blank=True)
    expires_on = serializers.DateField(required=False, allow_null=True, help_text="Needed to accept a risk")


class FindingFilters(serializers.Serializer):
    """How a list of findings is narrowed."""

    audit = serializers.UUIDField(required=False)
    family = Choice(choices=list(FAMILIES), required=False)
    verdict = Choice(choices=[verdict for verdict, _ in VERDICTS], required=False)
    severity = Choice(choices=SEVERITIES, required=False)
    state = Choice(choices=Finding.State.values, required=False)


# --------------------------------------------------------------------------------------------------------------- methods


class InputSerializer(serializers.Serializer):
    """What a method needs."""

    name = serializers.CharField()
    title = serializers.CharField()
    kind = Choice(choices=INPUT_KINDS)
    help = serializers.CharField()
    required = serializers.BooleanField()
    derived_from = serializers.ListField(
        child=serializers.ListField(child=serializers.CharField()),
        help_text="Sets of inputs that it is computed from where no column holds it",
    )


class BoundSerializer(serializers.Serializer):
    """Where the method's card suggests to draw a line."""

    measurement = serializers.CharField()
    limit = serializers.FloatField()
    severity = Choice(choices=SEVERITIES)
    why = serializers.CharField()
    rule = Choice(choices=("interval", "test"))


class ApplicabilitySerializer(serializers.Serializer):
    """Whether the method can run on what was named, going by the roles that the columns seem to have."""

    can_run = serializers.BooleanField()
    missing = serializers.ListField(child=serializers.CharField(), help_text="Names of the inputs it lacks")


class MethodSerializer(serializers.Serializer):
    """The card of an audit method."""

    key = serializers.CharField()
    family = Choice(choices=list(FAMILIES))
    title = serializers.CharField(source="method.title")
    question = serializers.CharField(source="method.question")
    source = serializers.CharField(source="method.source")
    limits = serializers.ListField(child=serializers.CharField(), source="method.limits")
    advice = serializers.CharField(source="method.advice")
    clauses = serializers.ListField(child=serializers.CharField(), source="method.clauses")
    cost = Choice(choices=("seconds", "minutes", "hours"), source="method.cost")
    version = serializers.CharField(source="method.version")
    inputs = serializers.SerializerMethodField()
    settings = serializers.SerializerMethodField(help_text="JSON schema of the method's settings")
    bounds = BoundSerializer(many=True, source="method.bounds")
    applicability = serializers.SerializerMethodField(help_text="null unless ?dataset= or ?model= is given")

    @extend_schema_field(InputSerializer(many=True))
    def get_inputs(self, entry: Entry) -> list[dict[str, Any]]:
        """Required ones first; what the engine gives by itself is not listed."""
        asked = [(i, i in entry.required) for i in entry.inputs if INPUTS[i.name].kind is not Kind.RUNTIME]
        return [
            {
                "name": one.name,
                "title": one.title,
                "kind": one.kind.value,
                "help": one.help,
                "required": required,
                "derived_from": [sorted(needs) for needs in one.derived_from],
            }
            for one, required in asked
        ]

    @extend_schema_field(OBJECT)
    def get_settings(self, entry: Entry) -> dict[str, Any]:
        """As the signature states them."""
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {parameter.name: setting_schema(parameter) for parameter in entry.parameters},
        }

    @extend_schema_field(ApplicabilitySerializer(allow_null=True))
    def get_applicability(self, entry: Entry) -> dict[str, Any] | None:
        """From the view, which knows the artifacts."""
        lacking = self.context.get("lacking")
        if lacking is None:
            return None
        missing = [one.name for one in lacking[entry.key]]
        return {"can_run": not missing, "missing": missing}


def setting_schema(parameter: Parameter) -> dict[str, Any]:
    """JSON schema of one setting. A secret's default is not shown either."""
    setting = parameter.setting
    known = {
        "type": JSON_TYPES.get(parameter.type, "string"),
        "description": f"{setting.help} [{setting.unit}]" if setting.unit else setting.help,
        "minimum": setting.low,
        "maximum": setting.high,
        "enum": list(setting.choices) or None,
        "writeOnly": True if setting.secret else None,
        "default": None if setting.secret else parameter.default,
    }
    return {name: value for name, value in known.items() if value is not None}


class MethodFilters(serializers.Serializer):
    """For which artifacts a method's applicability is told."""

    dataset = serializers.UUIDField(required=False)
    model = serializers.UUIDField(required=False)


# ---------------------------------------------------------------------------------------------------------------- tokens


class TokenSerializer(serializers.ModelSerializer):
    """A token without its secret."""

    scopes = serializers.ListField(child=Choice(choices=ApiToken.Scope.values))

    class Meta:
        model = ApiToken
        fields = ("id", "team", "name", "ending", "scopes", "created_at", "expires_at", "last_used_at")
        read_only_fields = fields


class NewTokenSerializer(TokenSerializer):
    """A token with its secret, this once."""

    secret = serializers.CharField(help_text="Shown now and never again")

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "secret")
        read_only_fields = fields


class TokenRequestSerializer(Strict):
    """A new token."""

    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=Choice(choices=ApiToken.Scope.values), allow_empty=False)
    days = serializers.IntegerField(min_value=1, max_value=366, default=TOKEN_DAYS)
