"""The sample audits that a new installation runs: which files, which column plays which role, which methods."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "files"

ADULT_FEATURES = [
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "native_country",
    "age",
    "education_num",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
]


@dataclass(frozen=True)
class SampleAudit:
    """One audit of the demo team."""

    title: str
    dataset: str
    model: str = ""
    roles: dict[str, Any] = field(default_factory=dict)
    positive_label: str = ""
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)


NAMES = {
    "adult_test.parquet": "Adult income, held-out half",
    "adult_predictions.csv": "Adult income, predictions of the logistic regression",
    "adult_members.parquet": "Adult income, members and non-members",
    "canaries.csv": "Canaries of one private training run",
    "digits_sample.npz": "Digits, clean sample",
    "digits_suspect.npz": "Digits, suspect training set",
    "digits_trigger_set.npz": "Digits, trigger set of the owner",
    "watermarked_texts.parquet": "Texts as token ids",
    "adult_logistic.skops": "Adult logistic regression",
    "adult_boosted.onnx": "Adult boosted trees",
    "adult_overfit.onnx": "Adult over-fitted trees",
    "digits_clean.safetensors": "Digit network, clean",
    "digits_backdoored.safetensors": "Digit network, from an unknown source",
    "digits_watermarked.safetensors": "Digit network, watermarked",
}

_GROUPS = {"y_true": "income", "sensitive_features": ["sex", "race", "age_group"]}
_FAIRNESS: dict[str, dict[str, Any]] = {"fairness.group_metrics": {}, "fairness.calibration": {}}
_DIGITS = {"images": "images", "y_true": "labels"}

AUDITS = (
    SampleAudit(
        "Income model: who is selected?",
        "adult_test.parquet",
        "adult_logistic.skops",
        _GROUPS | {"features": ADULT_FEATURES},
        ">50K",
        _FAIRNESS,
    ),
    SampleAudit(
        "Income model, boosted: who is selected?",
        "adult_test.parquet",
        "adult_boosted.onnx",
        _GROUPS | {"features": ADULT_FEATURES},
        ">50K",
        _FAIRNESS,
    ),
    SampleAudit(
        "Income predictions, without the model",
        "adult_predictions.csv",
        roles={
            "y_true": "label",
            "y_pred": "prediction",
            "y_score": "score",
            "sensitive_features": ["sex", "race", "age_group"],
        },
        positive_label="1",
        methods=_FAIRNESS,
    ),
    SampleAudit(
        "Does the over-fitted model give its members away?",
        "adult_members.parquet",
        "adult_overfit.onnx",
        {"y_true": "income", "is_member": "is_member", "features": ADULT_FEATURES},
        ">50K",
        {"privacy.loss_membership": {}},
    ),
    SampleAudit(
        "Is the claimed epsilon of 1 believable?",
        "canaries.csv",
        roles={"canary_score": "canary_score", "is_member": "is_member"},
        methods={"privacy.one_run": {"claimed_epsilon": 1.0}},
    ),
    SampleAudit(
        "Digit network from an unknown source",
        "digits_sample.npz",
        "digits_backdoored.safetensors",
        _DIGITS,
        methods={"backdoor.trigger_inversion": {}},
    ),
    SampleAudit(
        "Digit network trained in house",
        "digits_sample.npz",
        "digits_clean.safetensors",
        _DIGITS,
        methods={"backdoor.trigger_inversion": {}},
    ),
    SampleAudit(
        "Suspect training set of the unknown network",
        "digits_suspect.npz",
        "digits_backdoored.safetensors",
        _DIGITS,
        methods={"backdoor.spectral_signatures": {}},
    ),
    SampleAudit(
        "Does this network carry our trigger set?",
        "digits_trigger_set.npz",
        "digits_watermarked.safetensors",
        {
            "images": "images",
            "trigger_label": "labels",
            "reference_predictions": ["reference_1", "reference_2", "reference_3"],
        },
        methods={"watermark.trigger_set": {}},
    ),
    SampleAudit(
        "Do these texts carry our key?",
        "watermarked_texts.parquet",
        roles={"token_ids": "token_ids"},
        methods={"watermark.green_list": {"vocabulary": 5000}},
    ),
)
