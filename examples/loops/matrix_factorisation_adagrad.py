"""Matrix factorisation with AdaGrad: each factor has its own learning rate, from the squares of its past gradients.

The squares are rows of two more tables. They are chosen by the same fields as the factors, so blocks go round as in
matrix_factorisation.py, and the result is that of a serial run:

    autosync loop analyse examples/loops/matrix_factorisation_adagrad.py
    autosync loop run examples/loops/matrix_factorisation_adagrad.py --workers 2 --epochs 5
"""

import math

import numpy as np

import autosync

NUM_USERS = 2_000
NUM_ITEMS = 1_000
NUM_RATINGS = 100_000
WIDTH = 16
RATE = 0.2
DECAY = 0.01


def ratings():
    """Return ratings from hidden factors, with noise. A few users and items have most of the ratings."""
    chance = np.random.default_rng(7)
    found = np.zeros(NUM_RATINGS, dtype=[("user", "i8"), ("item", "i8"), ("stars", "f8")])
    found["user"] = (chance.random(NUM_RATINGS) ** 2 * NUM_USERS).astype(int)
    found["item"] = (chance.random(NUM_RATINGS) ** 2 * NUM_ITEMS).astype(int)
    users, items = chance.normal(size=(NUM_USERS, 4)), chance.normal(size=(NUM_ITEMS, 4))
    found["stars"] = (users[found["user"]] * items[found["item"]]).sum(axis=1) + 0.1 * chance.normal(size=NUM_RATINGS)
    return found


def factors(num_rows):
    """Return a table of factors that are small and random at first."""
    return autosync.Table(
        shape=(num_rows, WIDTH), initial=lambda generator: 0.3 * generator.normal(size=(num_rows, WIDTH))
    )


def squares(num_rows):
    """Return a table of sums of squares. They begin at 1, so that the first steps are not too long."""
    return autosync.Table(shape=(num_rows, WIDTH), initial=1.0)


def error(records, users, items, **_squares):
    """Return the root of the mean squared error of all ratings."""
    guesses = (users[records["user"]] * items[records["item"]]).sum(axis=1)
    return float(np.sqrt(np.mean((records["stars"] - guesses) ** 2)))


@autosync.loop(
    records=ratings,
    tables={
        "users": factors(NUM_USERS),
        "items": factors(NUM_ITEMS),
        "user_squares": squares(NUM_USERS),
        "item_squares": squares(NUM_ITEMS),
    },
    loss=error,
)
def step(rating, users, items, user_squares, item_squares):
    user, item = users[rating.user], items[rating.item]
    user_square, item_square = user_squares[rating.user], item_squares[rating.item]
    guess = 0.0
    for k in range(WIDTH):
        guess += user[k] * item[k]
    off = rating.stars - guess
    for k in range(WIDTH):
        user_slope = off * item[k] - DECAY * user[k]
        item_slope = off * user[k] - DECAY * item[k]
        user_square[k] += user_slope * user_slope
        item_square[k] += item_slope * item_slope
        user[k] += RATE * user_slope / math.sqrt(user_square[k])
        item[k] += RATE * item_slope / math.sqrt(item_square[k])
