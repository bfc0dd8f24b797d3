"""Forms: uploads, audits (roles of columns, methods and their settings from the methods' own cards), reviews, tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms

from audits.methods.catalogue import FAMILIES, Entry, Parameter, catalogue
from audits.methods.contract import INPUTS, Input, Kind
from audits.methods.errors import AuditError
from audits.models import ApiToken, Artifact, Audit, Finding, Team, User
from audits.models.teams import TOKEN_DAYS


class StyledForm(forms.Form):
    """Gives each widget the class of the stylesheet."""

    required_css_class = "required"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            style(field)


def style(field: forms.Field) -> forms.Field:
    """The class that the stylesheet knows for this kind of widget."""
    widget = field.widget
    if isinstance(widget, forms.CheckboxSelectMultiple | forms.RadioSelect | forms.CheckboxInput):
        widget.attrs.setdefault("class", "form-check-input")
    elif isinstance(widget, forms.Select):
        widget.attrs.setdefault("class", "form-select")
    elif not isinstance(widget, forms.HiddenInput):
        widget.attrs.setdefault("class", "form-control")
    return field


# ---------------------------------------------------------------------------------------------------------------- upload


class UploadForm(StyledForm):
    """A file with its kind and name; for a file of bare weights also the network it belongs to.

    `architectures` maps a network's name to its options as (name, help, is_list); the view reads them from the engine.
    """

    kind = forms.ChoiceField(
        label="What is it?",
        choices=[(Artifact.Kind.DATASET.value, "Data set"), (Artifact.Kind.MODEL.value, "Model")],
        initial=Artifact.Kind.DATASET.value,
        widget=forms.RadioSelect,
    )
    file = forms.FileField(
        label="File",
        allow_empty_file=True,  # the service refuses an empty file in its own words
        help_text="Data: CSV, Parquet, NPZ, or a ZIP of image folders. Models: ONNX, skops, safetensors, or a PyTorch state dict.",
        error_messages={"required": "Choose a file."},
    )
    name = forms.CharField(
        label="Name", max_length=200, required=False, help_text="How it appears in lists. Left empty: the file's name."
    )
    architecture = forms.ChoiceField(
        label="Network",
        required=False,
        help_text="Only for a file of bare weights that does not name its network itself.",
    )
    class_names = forms.CharField(
        label="Class names", required=False, help_text="In the order of the outputs, separated by commas."
    )

    def __init__(self, *args: Any, architectures: Mapping[str, Sequence[tuple[str, str, bool]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.architectures = architectures
        choices = [("", "The file says it itself"), *((name, name) for name in architectures)]
        self.fields["architecture"].choices = choices
        for network, options in architectures.items():
            for name, help_text, is_list in options:
                text = f"{help_text}, separated by commas" if is_list else help_text
                field = forms.CharField(
                    label=name.replace("_", " "), required=False, help_text=text[:1].upper() + text[1:]
                )
                field.widget.attrs["inputmode"] = "text" if is_list else "numeric"
                self.fields[_option_field(network, name)] = style(field)

    def networks(self) -> Iterator[tuple[str, list[forms.BoundField]]]:
        """Each network with the fields of its options."""
        for network, options in self.architectures.items():
            yield network, [self[_option_field(network, name)] for name, _, _ in options]

    def clean(self) -> dict[str, Any]:
        """Reads the options of the chosen network."""
        data = super().clean() or self.cleaned_data
        network = data.get("architecture")
        data["options"] = {}
        if network and data.get("kind") == Artifact.Kind.MODEL:
            read = {name: self._option(network, name, is_list) for name, _, is_list in self.architectures[network]}
            data["options"] = {"architecture": network, "options": read}
            if names := [name.strip() for name in data.get("class_names", "").split(",") if name.strip()]:
                data["options"]["class_names"] = names
        return data

    def _option(self, network: str, name: str, is_list: bool) -> int | list[int] | None:
        field = _option_field(network, name)
        parts = [part.strip() for part in self.cleaned_data.get(field, "").split(",") if part.strip()]
        if not is_list and len(parts) != 1:
            self.add_error(field, f"The network {network} needs one whole number here.")
            return None
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            self.add_error(
                field, "Whole numbers only, separated by commas." if is_list else "A whole number is needed."
            )
            return None
        return numbers if is_list else numbers[0]


def _option_field(network: str, name: str) -> str:
    return f"{network}-{name}"


# ------------------------------------------------------------------------------------------------------------- new audit

ROLE_PREFIX = "role-"
SETTING_PREFIX = "set-"
ROLE_GROUPS = (
    ("Outcome", "What happened and what the model said.", ("y_true", "y_pred", "y_score")),
    ("Groups", "Whose treatment is compared.", ("sensitive_features",)),
    ("What the model reads", "Needed to run an uploaded model on the data.", ("features", "images", "token_ids")),
)


_HINTS = {  # for people; the vocabulary's own help speaks of shapes, for those who write methods
    "y_true": "What really happened.",
    "y_pred": "What the model decided.",
    "y_score": "Probability of the favourable outcome, from 0 to 1.",
    "sensitive_features": "The columns that name the groups, e.g. sex and race. The model need not read them.",
    "features": "The columns that the model reads.",
    "images": "Pictures, one per record.",
    "token_ids": "Tokenised text, one list of numbers per record.",
    "embeddings": "Activations of the layer before last, where they were exported.",
    "is_member": "1 for a record trained on, 0 for one held out.",
    "record_loss": "The model's loss on each record, where it was exported.",
    "canary_score": "How sure the auditor is that a canary was trained on; higher is surer.",
    "trigger_label": "The secret label that the owner gave each trigger.",
    "reference_predictions": "One column per unrelated model.",
}


@dataclass(frozen=True)
class RoleGroup:
    """Role fields under one heading."""

    title: str
    help: str
    fields: tuple[forms.BoundField, ...]
    folded: bool


@dataclass(frozen=True)
class MethodChoice:
    """A method in the form: ticked or not, or greyed with what it lacks."""

    entry: Entry
    missing: tuple[tuple[Input, str], ...]
    ticked: bool
    settings: tuple[forms.BoundField, ...]

    @property
    def open(self) -> bool:
        """Whether its settings show: where one of them has an error."""
        return any(field.errors for field in self.settings)


@dataclass(frozen=True)
class FamilyChoices:
    """The methods of one family in the form."""

    title: str
    choices: tuple[MethodChoice, ...]


class AuditForm(StyledForm):
    """Data set, model, roles of columns, methods and their settings. The fields follow from the chosen data set.

    `applicable` says for the roles and the model which inputs every method lacks, by key (from the service).
    """

    title = forms.CharField(label="Title", max_length=200, required=False, help_text="Left empty: the model's name.")
    dataset = forms.ModelChoiceField(
        label="Data set",
        queryset=Artifact.objects.none(),
        empty_label="Choose a data set",
        error_messages={"required": "Choose the data set to audit."},
    )
    model = forms.ModelChoiceField(
        label="Model",
        queryset=Artifact.objects.none(),
        required=False,
        empty_label="None: audit the predictions in the data",
        help_text="Without a model, the data set must hold what it predicted.",
    )
    positive_label = forms.CharField(
        label="Favourable outcome",
        max_length=200,
        required=False,
        help_text="The value of the true label that people want, e.g. “approved”.",
    )
    missing = forms.ChoiceField(
        label="Records with a missing group",
        choices=[(m.value, m.label[:1].upper() + m.label[1:]) for m in Audit.Missing],
        initial=Audit.Missing.GROUP.value,
        help_text="What happens where a sensitive column is empty.",
    )

    def __init__(self, *args: Any, team: Team | None, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ready = Artifact.objects.visible_to(user).filter(team=team).ready().select_related("inspection")
        self.fields["dataset"].queryset = ready.filter(kind=Artifact.Kind.DATASET)
        self.fields["model"].queryset = ready.filter(kind=Artifact.Kind.MODEL)
        self.chosen_dataset = self._chosen("dataset")
        self.chosen_model = self._chosen("model")
        self.columns = self.chosen_dataset.columns if self.chosen_dataset else []
        self.fields["positive_label"].widget.attrs["list"] = "outcomes"
        if self.chosen_dataset:
            self._add_roles()
            self._add_settings()
            self._fill_in()

    def _model_inputs(self) -> set[str]:
        """Names of the columns that the chosen model says it reads."""
        found = self.chosen_model.report.get("inputs") if self.chosen_model else None
        named = found if isinstance(found, list) else []
        return {str(one["name"] if isinstance(one, Mapping) else one) for one in named}

    def _fill_in(self) -> None:
        """Where data set or model was only just chosen, what was sent does not answer the new fields; they start as suggested."""
        if not self.is_bound:
            return
        self.data = self.data.copy()
        features = role_field("features")
        if self.chosen_model and self.data.get("inputs_of") != str(self.chosen_model.pk) and not self._sent(features):
            self.data.setlist(features, self.fields[features].initial)
        if self.data.get("roles_of") == str(self.chosen_dataset.pk):
            return
        for name, field in self.fields.items():
            if name.startswith(ROLE_PREFIX):
                self.data.setlist(name, field.initial if isinstance(field.initial, list) else [field.initial])
            elif name.startswith(SETTING_PREFIX) and not self.data.get("roles_of") and field.initial is not False:
                self.data.setlist(name, [field.initial])

    def _chosen(self, name: str) -> Artifact | None:
        raw = self[name].value()
        if not raw:
            return None
        try:
            found: Artifact = self.fields[name].clean(raw)
        except forms.ValidationError:
            return None
        return found

    # --- roles

    def _add_roles(self) -> None:
        names = [str(column["name"]) for column in self.columns]
        labels = [(name, _column_label(column)) for name, column in zip(names, self.columns, strict=True)]
        for role in column_roles():
            suggested = [name for name, column in zip(names, self.columns, strict=True) if _suggests(column, role)]
            if role.name == "features":
                suggested = suggested or [name for name in names if name in self._model_inputs()]
            several = role.kind is Kind.COLUMNS
            field: forms.Field
            if several:
                field = forms.MultipleChoiceField(choices=labels, widget=forms.CheckboxSelectMultiple, required=False)
                field.initial = suggested
            else:
                field = forms.ChoiceField(choices=[("", "Not in the data"), *labels], required=False)
                field.initial = suggested[0] if suggested else ""
            field.label, field.help_text = role.title, _HINTS.get(role.name, role.help)
            self.fields[role_field(role.name)] = style(field)

    def roles(self) -> dict[str, Any]:
        """The roles as they are now: what was sent, else what inspection suggests."""
        if not self.chosen_dataset:
            return {}
        found = {role.name: self[role_field(role.name)].value() for role in column_roles()}
        return {name: column for name, column in found.items() if column}

    def role_groups(self) -> list[RoleGroup]:
        """The role fields under their headings; the rarer ones are folded unless one of them is used."""
        if not self.chosen_dataset:
            return []
        groups = [
            RoleGroup(title, text, tuple(self[role_field(name)] for name in names), folded=False)
            for title, text, names in ROLE_GROUPS
        ]
        named = {name for _, _, names in ROLE_GROUPS for name in names}
        rest = tuple(self[role_field(role.name)] for role in column_roles() if role.name not in named)
        used = any(field.value() or field.errors for field in rest)
        return [*groups, RoleGroup("More roles", "For membership, canaries and watermarks.", rest, folded=not used)]

    def outcomes(self) -> list[str]:
        """Examples of the column that holds the true label, to choose the favourable outcome from."""
        label = self.roles().get("y_true")
        for column in self.columns:
            if column["name"] == label:
                examples = column.get("examples")
                return [str(example) for example in examples] if isinstance(examples, list) else []
        return []

    # --- methods

    def _add_settings(self) -> None:
        for entry in catalogue().values():
            for parameter in entry.parameters:
                self.fields[setting_field(entry, parameter)] = style(_setting(parameter))

    def families(self, missing: Mapping[str, Sequence[Input]]) -> list[FamilyChoices]:
        """Every method of every family, with what it lacks by key; none before the data set is chosen."""
        if not self.chosen_dataset:
            return []
        out = []
        for family, title in FAMILIES.items():
            choices = [
                self._choice(entry, missing.get(key, ()))
                for key, entry in catalogue().items()
                if entry.family == family
            ]
            if choices:
                out.append(FamilyChoices(title, tuple(choices)))
        return out

    def _choice(self, entry: Entry, missing: Sequence[Input]) -> MethodChoice:
        return MethodChoice(
            entry=entry,
            missing=tuple((lacked, how_to_add(lacked)) for lacked in missing),
            ticked=not missing and self._ticked(entry.key),
            settings=tuple(self[setting_field(entry, parameter)] for parameter in entry.parameters),
        )

    def _ticked(self, key: str) -> bool:
        """As the user left it; a method that could not be chosen before starts ticked."""
        if key in self._sent("offered"):
            return key in self._sent("methods")
        return True

    def _sent(self, name: str) -> list[str]:
        if not self.is_bound:
            return []
        return self.data.getlist(name) if hasattr(self.data, "getlist") else list(self.data.get(name, []))

    def clean(self) -> dict[str, Any]:
        """Reads the settings of the chosen methods in the methods' own words."""
        data = super().clean() or self.cleaned_data
        data["roles"] = {name: data.get(role_field(name)) for name in INPUTS if data.get(role_field(name))}
        data["methods"] = {}
        for key in self._sent("methods") if self.chosen_dataset else ():
            entry = catalogue().get(key)
            if entry is not None:
                data["methods"][key] = dict(self._settings(entry))
        if self.chosen_dataset and not data["methods"]:
            self.add_error(None, "Choose at least one audit method.")
        return data

    def _settings(self, entry: Entry) -> Iterator[tuple[str, Any]]:
        for parameter in entry.parameters:
            name = setting_field(entry, parameter)
            try:
                yield parameter.name, parameter.parse(self.cleaned_data.get(name))
            except AuditError as error:
                self.add_error(name, str(error))


def column_roles() -> list[Input]:
    """The roles that a column can play."""
    return [role for role in INPUTS.values() if role.kind in (Kind.COLUMN, Kind.COLUMNS, Kind.ARRAY)]


def role_field(name: str) -> str:
    """The form's name for a role."""
    return f"{ROLE_PREFIX}{name}"


def setting_field(entry: Entry, parameter: Parameter) -> str:
    """The form's name for a method's setting."""
    return f"{SETTING_PREFIX}{entry.key}-{parameter.name}"


def how_to_add(lacked: Input) -> str:
    """What to do about a missing input, in words."""
    if lacked.kind is Kind.MODEL:
        return "choose a model above"
    if not lacked.derived_from:
        return "give a column this role"
    ways = [needs - {"model"} for needs in lacked.derived_from]
    others = sorted({" and ".join(f"“{INPUTS[name].title}”" for name in sorted(way)) for way in ways})
    return f"give a column this role, or choose a model and give columns the role {' or '.join(others)}"


def _column_label(column: Mapping[str, Any]) -> str:
    shape = " × ".join(str(side) for side in column.get("shape") or ())
    told = " ".join(part for part in (str(column.get("type") or ""), shape) if part)
    return f"{column['name']} ({told})" if told else str(column["name"])


def _suggests(column: Mapping[str, Any], role: Input) -> bool:
    return bool(column.get("suggested_role") == role.name)


def _setting(parameter: Parameter) -> forms.Field:
    """A field that shows a setting. It checks nothing: `Parameter.parse` does, in one place for pages and REST."""
    setting = parameter.setting
    attrs: dict[str, Any] = {}
    help_text = setting.help
    if parameter.type is bool:
        widget: forms.Widget = forms.CheckboxInput()
    elif setting.choices:
        widget = forms.Select(choices=[(choice, choice) for choice in setting.choices])
    elif setting.secret:
        widget = forms.PasswordInput(render_value=True, attrs={"autocomplete": "off"})
    elif parameter.type in (int, float):
        attrs = {"step": "1" if parameter.type is int else "any"}
        attrs |= {name: f"{edge:g}" for name, edge in (("min", setting.low), ("max", setting.high)) if edge is not None}
        widget = forms.NumberInput(attrs=attrs)
        if setting.low is not None and setting.high is not None:
            help_text = f"{help_text} ({setting.low:g} to {setting.high:g})"
    else:
        widget = forms.TextInput()
    label = parameter.name.replace("_", " ")
    label = label[:1].upper() + label[1:] + (f" ({setting.unit})" if setting.unit else "")
    return forms.Field(label=label, help_text=help_text, required=False, initial=parameter.default, widget=widget)


# --------------------------------------------------------------------------------------------------------------- reviews


class CommentForm(StyledForm):
    """A remark on a finding."""

    text = forms.CharField(
        label="Comment",
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="Markdown: **bold**, *italic*, `code`, lists, links.",
        error_messages={"required": "The comment is empty. Write something first."},
    )


class DecisionForm(StyledForm):
    """What the team makes of a finding."""

    state = forms.ChoiceField(label="Decision", choices=[(s.value, s.label.capitalize()) for s in Finding.State])
    reason = forms.CharField(
        label="Reason",
        required=False,
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Needed for an accepted risk and for a false positive.",
    )
    expires_on = forms.DateField(
        label="Look at it again on",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
        help_text="Needed for an accepted risk.",
    )


class FindingFilter(StyledForm):
    """The filter of the list of findings; what is empty or unknown filters nothing."""

    family = forms.ChoiceField(label="Family", required=False, choices=[("", "All families"), *FAMILIES.items()])
    verdict = forms.ChoiceField(
        label="Verdict",
        required=False,
        choices=[("", "All verdicts"), ("exceeds", "Exceeds"), ("cannot tell", "Cannot tell"), ("within", "Within")],
    )
    severity = forms.TypedChoiceField(
        label="Severity",
        required=False,
        coerce=int,
        empty_value=None,
        choices=[("", "All severities"), *((s.value, s.label) for s in sorted(Finding.Severity, reverse=True))],
    )
    state = forms.ChoiceField(
        label="State",
        required=False,
        choices=[("", "All states"), *((s.value, s.label.capitalize()) for s in Finding.State)],
    )
    audit = forms.ModelChoiceField(
        label="Audit", required=False, queryset=Audit.objects.none(), empty_label="All audits"
    )

    def __init__(self, *args: Any, audits: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["audit"].queryset = audits

    def narrow(self, findings: Any) -> Any:
        """The findings that the filter lets through."""
        self.is_valid()
        chosen = self.cleaned_data
        if chosen.get("family"):
            findings = findings.filter(method__startswith=f"{chosen['family']}.")
        for name in ("verdict", "severity", "state", "audit"):
            if chosen.get(name):
                findings = findings.filter(**{name: chosen[name]})
        return findings


# ---------------------------------------------------------------------------------------------------------------- tokens


class TokenForm(StyledForm):
    """A new token."""

    name = forms.CharField(label="Name", max_length=100, help_text="What will use it, e.g. “nightly pipeline”.")
    scopes = forms.MultipleChoiceField(
        label="It may",
        choices=[
            (ApiToken.Scope.READ.value, "read artifacts, audits and findings"),
            (ApiToken.Scope.SUBMIT.value, "upload artifacts and request audits"),
            (ApiToken.Scope.REVIEW.value, "comment on and decide findings"),
        ],
        initial=[ApiToken.Scope.READ.value],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one."},
    )
    days = forms.IntegerField(label="Valid for (days)", min_value=1, max_value=366, initial=TOKEN_DAYS)


def first_errors(form: forms.Form) -> str:
    """The form's errors in one line, for a message above a page that does not show the form's fields again."""
    return " ".join(_sentences(form.errors.values()))


def _sentences(errors: Iterable[Iterable[str]]) -> Iterator[str]:
    for field in errors:
        yield from (str(error) for error in field)
