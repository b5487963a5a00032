"""Sparse logistic regression: a record is a short list of words and a label, and each word has one weight.

Any two records may share a word, so no schedule keeps the serial result. The weights are declared as buffered instead:
each rank learns on a copy, and copies are merged after 10 records of each rank. This is data-parallel training.

    autosync loop analyse examples/loops/logistic_regression.py
    autosync loop run examples/loops/logistic_regression.py --workers 2 --epochs 5
"""

import math

import numpy as np

import autosync

NUM_WORDS = 20_000
NUM_TEXTS = 40_000
LENGTH = 12
RATE = 0.1


def texts():
    """Return texts with labels. A few words are frequent, and hidden weights of the words decide the labels."""
    chance = np.random.default_rng(11)
    found = np.zeros(NUM_TEXTS, dtype=[("words", "i8", (LENGTH,)), ("label", "f8")])
    found["words"] = (chance.random((NUM_TEXTS, LENGTH)) ** 4 * NUM_WORDS).astype(int)
    hidden = chance.normal(size=NUM_WORDS)
    found["label"] = hidden[found["words"]].sum(axis=1) > 0
    return found


def loss(records, weights):
    """Return the mean negative log-likelihood of the labels."""
    total = weights[records["words"]].sum(axis=1)
    sign = 2 * records["label"] - 1
    return float(np.mean(np.logaddexp(0, -sign * total)))


@autosync.loop(
    records=texts,
    tables={"weights": autosync.Table(shape=(NUM_WORDS,), updates="buffered", merge_every=10)},
    loss=loss,
)
def step(text, weights):
    total = 0.0
    for word in text.words:
        total += weights[word]
    off = text.label - 1 / (1 + math.exp(-total))
    for word in text.words:
        weights[word] += RATE * off
