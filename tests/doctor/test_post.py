"""Evidence arrives through a rank's output, whatever else the output contains."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync import documents
from autosync.doctor.evidence import KIND, VERSION, RankEvidence
from autosync.doctor.post import Mailbox, in_lines
from autosync.errors import OperationError

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
    mailbox = Mailbox(len(sent))
    taken = [mailbox.take(f"n0 rank 0 | {line}") for line in lines]
    assert sum(taken) >= len(sent)
    assert mailbox.documents() == dict(enumerate(sent))


def test_long_documents_travel_in_pieces() -> None:
    document = {"text": "x" * 100_000}
    lines = [raw.decode().strip() for raw in in_lines(3, document)]
    assert len(lines) == 4
    mailbox = Mailbox(4)
    for line in lines[:-1]:
        assert mailbox.take(line)
    assert mailbox.documents() == {}
    mailbox.take(lines[-1])
    assert mailbox.documents() == {3: document}


@pytest.mark.parametrize(
    "line",
    [
        "autosync-evidence 2 1/1 {}",
        "autosync-evidence 0 2/1 {}",
        "autosync-evidence 0 0/1 {}",
        "autosync-evidence 0 1/999999 {}",
        f"autosync-evidence {'9' * 5000} 1/1 {{}}",
        f"autosync-evidence 0 1/1 {'x' * 40_000}",
    ],
    ids=["another rank", "beyond the last", "before the first", "too many", "a long number", "too long"],
)
def test_lines_that_no_rank_sends_are_ignored(line: str) -> None:
    mailbox = Mailbox(2)
    assert not mailbox.take(line)
    assert mailbox.documents() == {}


@pytest.mark.parametrize("text", ["", "{", "[" * 20_000, "1" * 20_000, '{"a": NaN}', "[" + "0," * 14_000 + "0"])
def test_evidence_that_is_no_json_is_refused_by_rank(text: str) -> None:
    mailbox = Mailbox(2)
    mailbox.take(f"autosync-evidence 1 1/1 {text}")
    with pytest.raises(OperationError, match="the evidence of rank 1 cannot be read"):
        mailbox.documents()


def test_the_evidence_of_a_rank_is_read_as_it_was(work: Any, ranks: Any) -> None:
    for one in ranks(works=[work()] * 2).evidence().ranks:
        text = json.dumps(documents.dump(one, kind=KIND, version=VERSION))
        document = documents.without_file(json.loads(text))
        assert documents.parse(document, kind=KIND, version=VERSION, into=RankEvidence) == one
