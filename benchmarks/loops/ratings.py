"""Matrix factorisation of 400,000 ratings by stochastic gradient descent."""

import numpy as np

import autosync

NUM_USERS = 4_000
NUM_ITEMS = 2_000
NUM_RATINGS = 400_000
WIDTH = 16
RATE = 0.01
DECAY = 0.01


def ratings():
    """Ratings by hidden factors, with noise; few users and items have most of them."""
    chance = np.random.default_rng(7)
    found = np.zeros(NUM_RATINGS, dtype=[("user", "i8"), ("item", "i8"), ("stars", "f8")])
    found["user"] = (chance.random(NUM_RATINGS) ** 1.5 * NUM_USERS).astype(int)
    found["item"] = (chance.random(NUM_RATINGS) ** 1.5 * NUM_ITEMS).astype(int)
    users, items = chance.normal(size=(NUM_USERS, 8)), chance.normal(size=(NUM_ITEMS, 8))
    found["stars"] = (users[found["user"]] * items[found["item"]]).sum(axis=1) + 0.1 * chance.normal(size=NUM_RATINGS)
    return found


def error(records, users, items):
    """Return the root of the mean squared error."""
    guesses = (users[records["user"]] * items[records["item"]]).sum(axis=1)
    return float(np.sqrt(np.mean((records["stars"] - guesses) ** 2)))


def small_numbers(num_rows):
    """Return the initial numbers of a table: small and random."""
    return lambda generator: 0.3 * generator.normal(size=(num_rows, WIDTH))


@autosync.loop(
    records=ratings,
    tables={
        "users": autosync.Table(shape=(NUM_USERS, WIDTH), initial=small_numbers(NUM_USERS)),
        "items": autosync.Table(shape=(NUM_ITEMS, WIDTH), initial=small_numbers(NUM_ITEMS)),
    },
    loss=error,
)
def step(rating, users, items):
    user = users[rating.user]
    item = items[rating.item]
    guess = 0.0
    for k in range(WIDTH):
        guess += user[k] * item[k]
    off = rating.stars - guess
    for k in range(WIDTH):
        before = user[k]
        user[k] += RATE * (off * item[k] - DECAY * before)
        item[k] += RATE * (off * before - DECAY * item[k])
