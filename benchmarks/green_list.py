"""Green-list detection against transformers.WatermarkDetector on the same tokens: CPU seconds, equal counts, and the ratio.

python -m benchmarks.green_list [--quick]. Tokens are Zipf-distributed over GPT-2's vocabulary, texts of 500 tokens. Both sides run
on one thread and alternate; each repeats on fresh objects, so that nothing is remembered.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from audits.methods.contract import Array
from audits.methods.watermark.green_list import PUBLIC_KEY, GreenLists, distinct_bigrams, green_bigrams

VOCABULARY = 50_257
GAMMA = 0.25
LENGTH = 500
GOAL_RATIO = 5.0


def tokens(n: int) -> Array:
    """Texts (n / LENGTH, LENGTH) of Zipf-Mandelbrot token ids. Id 0 is left out (what follows it says nothing about a key), and the start token."""
    frequency = 1 / (np.arange(1, VOCABULARY - 1) + 2.7) ** 1.05
    drawn = np.random.default_rng(1).choice(np.arange(1, VOCABULARY - 1), size=n, p=frequency / frequency.sum())
    return drawn.reshape(-1, LENGTH)


def ours(texts: Array) -> Array:
    """Green bigrams per text."""
    bigrams = distinct_bigrams(list(texts), VOCABULARY)
    return bigrams.per_text(green_bigrams(bigrams, GreenLists(PUBLIC_KEY, VOCABULARY, GAMMA)))


def theirs(texts: Array) -> Array:
    """The same by transformers."""
    import torch
    from transformers import GPT2Config, WatermarkDetector, WatermarkingConfig

    config = WatermarkingConfig(
        greenlist_ratio=GAMMA, hashing_key=PUBLIC_KEY, seeding_scheme="lefthash", context_width=1
    )
    model = GPT2Config(vocab_size=VOCABULARY, bos_token_id=VOCABULARY - 1)
    detector = WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
    return detector(torch.from_numpy(texts), return_dict=True).num_green_tokens.astype(int)


def timed(function: Callable[[Array], Array], texts: Array) -> tuple[float, Any]:
    start = time.process_time()
    out = function(texts)
    return time.process_time() - start, out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 000 tokens once instead of 30 000 three times")
    quick = parser.parse_args().quick
    import torch

    torch.set_num_threads(1)
    texts = tokens(2_000 if quick else 30_000)
    theirs(texts[:1, :10])  # imports
    ours(texts[:1, :10])
    pairs = [(timed(ours, texts), timed(theirs, texts)) for _ in range(1 if quick else 3)]
    equal = all(np.array_equal(a[1], b[1]) for a, b in pairs)
    mine, peer = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
    print(f"{texts.size} tokens in {len(texts)} texts, {np.unique(texts[:, :-1]).size} distinct previous tokens")
    print(f"Auditor {mine:.2f} CPU s, transformers {peer:.2f} CPU s, ratio {peer / mine:.1f} (goal {GOAL_RATIO:g})")
    print(f"green counts of every text equal: {'yes' if equal else 'NO'}")
    return 0 if equal and (quick or peer / mine >= GOAL_RATIO) else 1


if __name__ == "__main__":
    sys.exit(main())
