"""Evidence survives the way through a rank's output, whatever else is in it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autosync import documents
from autosync.doctor.evidence import KIND, VERSION, RankEvidence
from autosync.doctor.post import Mailbox, in_lines

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
_documents = st.dictionaries(st.text(max_size=9), _values, max_size=5)


@settings(max_examples=40)
@given(sent=st.lists(_documents, min_size=1, max_size=4), seed=st.randoms())
def test_documents_arrive_among_other_lines(sent: list[dict[str, Any]], seed: Any) -> None:
    lines = [
        line
        for rank, document in enumerate(sent)
        for raw in in_lines(rank, document)
        for line in raw.decode().split("\n")
    ]
    lines += ["loss 0.5", "", "autosync-evidence of nothing"] * 3
    seed.shuffle(lines)
    mailbox = Mailbox()
    taken = [mailbox.take(f"n0 rank 0 | {line}") for line in lines]
    assert sum(taken) >= len(sent)
    assert mailbox.documents() == dict(enumerate(sent))


def test_long_documents_travel_in_pieces() -> None:
    document = {"text": "x" * 100_000}
    lines = [raw.decode().strip() for raw in in_lines(3, document)]
    assert len(lines) == 4
    mailbox = Mailbox()
    for line in lines[:-1]:
        assert mailbox.take(line)
    assert mailbox.documents() == {}
    mailbox.take(lines[-1])
    assert mailbox.documents() == {3: document}


def test_the_evidence_of_a_rank_is_read_as_it_was(work: Any, ranks: Any) -> None:
    for one in ranks(works=[work()] * 2).evidence().ranks:
        text = json.dumps(documents.dump(one, kind=KIND, version=VERSION))
        document = documents.without_file(json.loads(text))
        assert documents.parse(document, kind=KIND, version=VERSION, into=RankEvidence) == one
