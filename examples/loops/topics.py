"""Topics of documents (latent Dirichlet allocation) by collapsed Gibbs sampling.

Each word of a document has a topic. In every epoch the topic is drawn again, from the counts of topics in the document
and of this word. Topics of different words in different documents can be drawn at the same time: ranks keep documents,
and blocks of words go round. Every draw uses the totals of the topics; they change slowly, so they are buffered.

A record has its own random numbers: `state` is a linear congruential generator.

    autosync loop analyse examples/loops/topics.py
    autosync loop run examples/loops/topics.py --workers 2 --epochs 10
"""

import numpy as np

import autosync

NUM_DOCUMENTS = 300
NUM_WORDS = 500
NUM_TOPICS = 8
LENGTH = 80
ALPHA = 0.1
BETA = 0.05
NUM_TOKENS = NUM_DOCUMENTS * LENGTH
MODULUS = 2**31


def tokens():
    """Return documents whose words come from a few hidden topics each. The initial topics are drawn evenly."""
    chance = np.random.default_rng(5)
    topics = chance.dirichlet(np.full(NUM_WORDS, 0.05), size=NUM_TOPICS)
    shares = chance.dirichlet(np.full(NUM_TOPICS, 0.2), size=NUM_DOCUMENTS)
    found = np.zeros(NUM_TOKENS, dtype=[("document", "i8"), ("word", "i8"), ("topic", "i8"), ("state", "i8")])
    found["document"] = np.repeat(np.arange(NUM_DOCUMENTS), LENGTH)
    for place, document in enumerate(found["document"]):
        found["word"][place] = chance.choice(NUM_WORDS, p=topics[chance.choice(NUM_TOPICS, p=shares[document])])
    found["topic"] = chance.integers(0, NUM_TOPICS, size=NUM_TOKENS)
    found["state"] = chance.integers(0, MODULUS, size=NUM_TOKENS)
    return found


def counts(field, num_rows):
    """Return the count of each topic for each row of a field, before the first epoch."""

    def count(_generator):
        found = np.zeros((num_rows, NUM_TOPICS), dtype=np.int64)
        records = tokens()
        np.add.at(found, (records[field] if field else 0, records["topic"]), 1)
        return found

    return count


def table(field, num_rows, **options):
    return autosync.Table(shape=(num_rows, NUM_TOPICS), dtype="int64", initial=counts(field, num_rows), **options)


def perplexity(records, documents, words, totals):
    """Return the perplexity: the number of words among which the model is unsure. Lower is better."""
    shares = (documents + ALPHA) / (documents + ALPHA).sum(axis=1, keepdims=True)
    chances = (words + BETA) / (totals + NUM_WORDS * BETA)
    return float(np.exp(-np.mean(np.log((shares[records["document"]] * chances[records["word"]]).sum(axis=1)))))


@autosync.loop(
    records=tokens,
    tables={
        "documents": table("document", NUM_DOCUMENTS),
        "words": table("word", NUM_WORDS),
        "totals": table("", 1, updates="buffered", merge_every=1000),
    },
    loss=perplexity,
)
def draw(token, documents, words, totals):
    document, word, total = documents[token.document], words[token.word], totals[0]
    document[token.topic] -= 1
    word[token.topic] -= 1
    total[token.topic] -= 1
    mass = 0.0
    for k in range(NUM_TOPICS):
        mass += (document[k] + ALPHA) * (word[k] + BETA) / (total[k] + NUM_WORDS * BETA)
    token.state = (token.state * 1103515245 + 12345) % MODULUS
    left = mass * token.state / MODULUS
    topic = 0
    for k in range(NUM_TOPICS):
        left -= (document[k] + ALPHA) * (word[k] + BETA) / (total[k] + NUM_WORDS * BETA)
        topic = k
        if left <= 0:
            break
    document[topic] += 1
    word[topic] += 1
    total[topic] += 1
    token.topic = topic
