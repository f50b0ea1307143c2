"""The record of a commit's bits, and the comparison of two records."""

from __future__ import annotations

from typing import Any


def test_no_case_replaces_another_in_a_record(bench: Any) -> None:
    same_bits = bench("same_bits")
    for found in (same_bits.cases(True), same_bits.going_on(True)):
        names = [case.name() for case in found]
        assert len(names) == len(set(names)) > 0


def test_two_records_differ_in_missing_and_in_unequal_entries(bench: Any) -> None:
    old = {"a": {"bits": "1", "moved": [[1]]}, "b": {"bits": "2"}, "c": {"bits": "3"}}
    new = {"a": {"bits": "1", "moved": [[2]]}, "b": {"bits": "2"}, "d": {"bits": "3"}}
    assert list(bench("same_bits").differences(old, new)) == [
        "c: only in the old record",
        "d: only in the new record",
        "a: moved was [[1]], is [[2]]",
    ]
    assert not list(bench("same_bits").differences(old, old))
