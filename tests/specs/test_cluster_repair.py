"""A mistake in the form of a cluster file hides no mistakes in its values, and makes none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import documents
from autosync.errors import DocumentError, InputError
from autosync.specs.cluster_file import build_cluster, parse_cluster

RATE_RULE = "write a rate such as '500 Mbit/s' or '25 GB/s'"


def _mistakes(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse_cluster(documents.parse_document(f"schema: autosync.cluster/1\n{text}", file="lab.yaml"))
    return str(caught.value).splitlines()


def test_values_beside_unknown_keys_and_wrong_types_are_checked_too() -> None:
    text = """launcher: slrum
speed: 3
racks:
- {name: east, uplinc: 5 GB/s}
nodes:
- name: a
  bandwith: 10 Gbit/s
  devices: two
- name: b
  bandwidth: 10 gbitt/s
  role: wurker
  devices: 0
- {bandwidth: 1 Gbit/s, memory: much, rack: est}
alike:
- [a, c]
"""
    found = [message.split(": ")[:3] for message in _mistakes(text)]
    assert found == [
        ["lab.yaml:2", "launcher", "unknown launcher 'slrum' (known"],
        ["lab.yaml:3", "speed", "unknown key (known"],
        ["lab.yaml:5", "racks[0].uplinc", "unknown key (known"],
        ["lab.yaml:8", "nodes[0].bandwith", "unknown key (known"],
        ["lab.yaml:9", "nodes[0].devices", "'two' is not allowed here (expected a whole number)"],
        ["lab.yaml:11", "nodes[1].bandwidth", f"'10 gbitt/s' is no rate ({RATE_RULE})"],
        ["lab.yaml:12", "nodes[1].role", "unknown value 'wurker' (known"],
        ["lab.yaml:14", "nodes[2].name", "is missing (name is required)"],
        ["lab.yaml:14", "nodes[2].memory", "'much' is no size (write a size such as '4 MB' or '256 KiB')"],
    ]


@given(st.data())
def test_a_mistake_of_form_hides_and_adds_no_mistakes_of_values(data: st.DataObject) -> None:
    entries: list[dict[str, object]] = [{"name": f"n{i}", "bandwidth": "1 Gbit/s"} for i in range(3)]
    values = data.draw(st.sets(st.sampled_from([0, 1, 2])))
    for position in values:
        entries[position]["memory"] = "much"
    forms = data.draw(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from(["memry", "xyz"])), min_size=1))
    for position, key in forms:
        entries[position][key] = 1
    with pytest.raises(InputError) as caught:
        build_cluster({"nodes": entries})
    expected = {("nodes", i, "memory") for i in values} | {("nodes", i, key) for i, key in forms}
    assert sorted(problem.path for problem in caught.value.problems) == sorted(expected)
