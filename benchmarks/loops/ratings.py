"""One function of a rating under two declarations: tables that rotate, and tables that ranks have copies of."""

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


def tables(**options):
    """Users and items with small random numbers."""
    return {
        name: autosync.Table(
            shape=(num_rows, WIDTH),
            initial=lambda generator, num_rows=num_rows: 0.3 * generator.normal(size=(num_rows, WIDTH)),
            **options,
        )
        for name, num_rows in (("users", NUM_USERS), ("items", NUM_ITEMS))
    }


rotated = autosync.loop(records=ratings, tables=tables(), loss=error)(step)
merged_5000 = autosync.loop(records=ratings, tables=tables(updates="buffered", merge_every=5_000), loss=error)(step)
merged_20000 = autosync.loop(records=ratings, tables=tables(updates="buffered", merge_every=20_000), loss=error)(step)
merged_100000 = autosync.loop(records=ratings, tables=tables(updates="buffered", merge_every=100_000), loss=error)(step)
