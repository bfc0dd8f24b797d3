"""Plants for the controls of the backdoor methods: a trigger, a copy of a network that obeys it, and a clean twin."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audits.methods.contract import Array

PLANT_SHARE = 0.3  # of the pictures at hand, stamped: a plant must take hold within a few epochs
BATCH = 32
MAX_EPOCHS = 40
ENOUGH = 0.95  # success of the plant, or accuracy of the twin, at which training stops
LEARNING_RATE = 2e-3


class Trigger(NamedTuple):
    """Stamp: pixels (channels, height, width) take `pattern` where `mask` (height, width) is 1."""

    mask: Array
    pattern: Array

    @property
    def pixels(self) -> int:
        """How many pixels it covers."""
        return int(self.mask.sum())

    def stamp(self, images: Array) -> Array:
        """Copies of the images (n, channels, height, width) with the trigger on them."""
        return np.where(self.mask[None, None] > 0, self.pattern[None], images).astype(np.float32)


def corner_trigger(images: Array, avoid: Array) -> Trigger:
    """A square in the corner where `avoid` (height, width) is least, in the colour farthest from what is usually there.

    It is a ninth of the picture wide; `avoid` is a mask that another trigger may live in.
    """
    _, channels, height, width = images.shape
    side = max(2, round(min(height, width) / 9))
    corners = [
        (slice(top, top + side), slice(left, left + side))
        for top in (1, height - side - 1)
        for left in (1, width - side - 1)
    ]
    corner = min(corners, key=lambda place: float(avoid[place].sum()))
    mask = np.zeros((height, width), np.float32)
    mask[corner] = 1
    usual = np.median(images[:, :, *corner], axis=(0, 2, 3))
    colour = np.where(usual < 0.5, 1, 0).astype(np.float32)
    return Trigger(mask, np.broadcast_to(colour[:, None, None], (channels, height, width)))


def planted_copy(module: Any, images: Array, y_true: Array, trigger: Trigger, target: int, seed: int) -> Any:
    """A copy of the network, trained on until the trigger leads to `target` (dirty-label BadNets, Gu et al. 2017)."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(y_true != target))
    chosen = order[: max(1, round(PLANT_SHARE * len(y_true)))]
    stamped = trigger.stamp(images[chosen])
    x = np.concatenate([images, stamped])
    y = np.concatenate([y_true, np.full(len(chosen), target)])
    network = copy.deepcopy(module)

    def done() -> bool:
        return bool(np.mean(classify(network, stamped) == target) >= ENOUGH)

    _fit(network, x, y, seed, done)
    return network


def clean_twin(module: Any, images: Array, y_true: Array, seed: int) -> Any:
    """A network of the same shape, trained from fresh weights on the pictures at hand: nothing can be planted in it."""
    import torch

    network = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in network.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()

    def done() -> bool:
        return bool(np.mean(classify(network, images) == y_true) >= ENOUGH)

    _fit(network, images, y_true, seed, done)
    return network


def classify(module: Any, images: Array, batch: int = 512) -> Array:
    """Class indices (n,) of images (n, channels, height, width)."""
    import torch

    with torch.no_grad():
        parts = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)).split(batch)
        return torch.cat([module(part).argmax(dim=1) for part in parts]).numpy()


def _fit(network: Any, images: Array, y_true: Array, seed: int, done: Callable[[], bool]) -> None:
    """Adam on the cross-entropy until `done()`. Normalisation layers keep their statistics: a few pictures would spoil them."""
    import torch
    from torch.nn.functional import cross_entropy

    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    x = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
    y = torch.from_numpy(y_true.astype(np.int64))
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(MAX_EPOCHS):
        for rows in torch.randperm(len(y), generator=generator).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
        if done():
            return
