"""Embeddings of words with negative sampling, as in word2vec: words that occur in the same places get similar vectors.

A record is a word and another word: one that stood beside it in the text, or a random one. The random words are drawn
once, as records of their own, so each record touches one row of each table. Records with different words and different
other words can be learned at the same time: ranks keep words, and blocks of the other words go round.

    autosync loop analyse examples/loops/embeddings.py
    autosync loop run examples/loops/embeddings.py --workers 2 --epochs 5
"""

import math

import numpy as np

import autosync

NUM_WORDS = 1_000
NUM_SUBJECTS = 20
NUM_PAIRS = 20_000
NUM_RANDOM = 4
WIDTH = 16
RATE = 0.1


def pairs():
    """Return pairs of neighbours with the label 1, each followed by random pairs with the label 0.

    Neighbours are words of the same subject: word k belongs to subject k % NUM_SUBJECTS. Small numbers are frequent.
    """
    chance = np.random.default_rng(13)
    subject = chance.integers(0, NUM_SUBJECTS, size=(NUM_PAIRS, 1))
    inside = (chance.random((NUM_PAIRS, 2)) ** 2 * (NUM_WORDS // NUM_SUBJECTS)).astype(int)
    neighbours = inside * NUM_SUBJECTS + subject
    found = np.zeros((NUM_PAIRS, 1 + NUM_RANDOM), dtype=[("word", "i8"), ("other", "i8"), ("label", "f8")])
    found["word"] = neighbours[:, :1]
    found["other"][:, 0] = neighbours[:, 1]
    found["other"][:, 1:] = neighbours[chance.integers(0, NUM_PAIRS, size=(NUM_PAIRS, NUM_RANDOM)), 1]
    found["label"][:, 0] = 1
    return found.reshape(-1)


def small_numbers(generator):
    return (generator.random((NUM_WORDS, WIDTH)) - 0.5) / WIDTH


def loss(records, words, others):
    """Return the mean negative log-likelihood of the labels."""
    closeness = (words[records["word"]] * others[records["other"]]).sum(axis=1)
    return float(np.mean(np.logaddexp(0, np.where(records["label"] > 0, -closeness, closeness))))


@autosync.loop(
    records=pairs,
    tables={
        "words": autosync.Table(shape=(NUM_WORDS, WIDTH), initial=small_numbers),
        "others": autosync.Table(shape=(NUM_WORDS, WIDTH)),
    },
    loss=loss,
)
def learn(pair, words, others):
    word, other = words[pair.word], others[pair.other]
    closeness = 0.0
    for k in range(WIDTH):
        closeness += word[k] * other[k]
    off = RATE * (pair.label - 1 / (1 + math.exp(-closeness)))
    for k in range(WIDTH):
        before = word[k]
        word[k] += off * other[k]
        other[k] += off * before
