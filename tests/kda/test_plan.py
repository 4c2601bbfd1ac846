"""Slots, absent requests, accepted counts and destinations of `kda` are what their names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kda_cases import case

from equiv.kda import PAIR, plan

FAR: dict[str, Any] = {"slots": 10, "slot_stride": 1 << 29}


def ints(name: str, regimes: dict[str, str] | None = None, seed: int = 3, **axes: Any) -> npt.NDArray[np.int32]:
    wanted = case(regimes, seed, **axes)
    return plan.decide(wanted, {piece: wanted.regimes.get(piece, known[0]) for piece, known in plan.REGIMES.items()})[
        name
    ].view(np.int32)


@pytest.mark.parametrize("name", plan.SLOTS)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (4, 2), (8, 1)])
def test_no_slot_is_used_twice_none_is_the_null_block_and_all_lie_in_the_pool(
    name: str, batch: int, tokens: int
) -> None:
    axes: dict[str, Any] = {"batch": batch, "tokens": tokens, **(FAR if name == "far" else {})}
    found = ints("slots", {"slots": name}, **axes).ravel().tolist()
    assert len(set(found)) == len(found) == batch * tokens
    assert 1 <= min(found) <= max(found) < {spec.name: spec for spec in PAIR.layout(case(**axes))}["state"].shape[0]


def test_slots_are_permuted_reversed_in_order_or_at_the_ends() -> None:
    assert ints("slots", {"slots": "in_order"}, batch=3)[:, 0].tolist() == [1, 2, 3]
    assert ints("slots", {"slots": "reversed"}, batch=3)[:, 0].tolist() == [5, 4, 3]
    assert ints("slots", {"slots": "edges"}, batch=4)[:, 0].tolist() == [6, 1, 5, 2]
    found = ints("slots", batch=16)[:, 0].tolist()
    assert sorted(found) != found
    assert 18 not in found


def test_far_slots_are_images_of_each_other_in_32_bits() -> None:
    found = ints("slots", {"slots": "far"}, batch=4, **FAR)[:, 0].astype(np.int64)
    assert len({int(slot << 29 & 0xFFFFFFFF) for slot in found}) < 4
    assert len({int(slot << 31 & 0xFFFFFFFF) for slot in found}) < 4
    assert max(found) << 29 >= 1 << 32


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("none", []),
        ("first", [0]),
        ("last", [4]),
        ("middle", [2]),
        ("even", [0, 2, 4]),
        ("odd", [1, 3]),
        ("tail", [3, 4]),
        ("all_but_one", [0, 1, 3, 4]),
        ("all", [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("null", plan.NULL)
def test_absent_requests_are_where_the_name_says_with_all_their_slots(name: str, absent: list[int], null: str) -> None:
    found = ints("slots", {"absent": name, "null": null}, batch=5, tokens=3)
    assert np.flatnonzero((found <= 0).all(axis=1)).tolist() == absent
    assert np.flatnonzero((found <= 0).any(axis=1)).tolist() == absent


def test_null_ids_are_zero_negative_or_both() -> None:
    everyone = {"absent": "all"}
    assert not ints("slots", everyone | {"null": "zero"}, batch=6).any()
    assert set(ints("slots", everyone | {"null": "negative"}, batch=6).ravel().tolist()) == set(plan.NEGATIVE)
    both = ints("slots", everyone | {"null": "both"}, batch=12).ravel().tolist()
    assert {0, *plan.NEGATIVE} == set(both)


def test_accepted_counts_are_in_range_and_change_from_step_to_step() -> None:
    assert set(ints("accepted", batch=64, tokens=4, slots=300).ravel().tolist()) == {1, 2, 3, 4}
    assert ints("accepted", {"accepted": "changing"}, batch=3, tokens=3, steps=3).tolist() == [
        [1, 2, 3],
        [3, 1, 2],
        [2, 3, 1],
    ]
    assert ints("accepted", {"accepted": "all"}, tokens=5).tolist() == [[5, 5]]
    assert ints("accepted", {"accepted": "one"}, tokens=5).tolist() == [[1, 1]]


@pytest.mark.parametrize("name", plan.ACCEPTED)
def test_a_record_starts_from_its_only_slot_whatever_is_named(name: str) -> None:
    assert ints("accepted", {"accepted": name}, tokens=4, mode="record").tolist() == [[1, 1]]


def commit(tokens: int = 3, batch: int = 32, **regimes: str) -> dict[str, npt.NDArray[np.int32]]:
    names = ("slots", "counts", "final", "boundary", "boundary_counts")
    return {name: ints(name, regimes, batch=batch, tokens=tokens, mode="commit") for name in names}


def test_commits_go_where_they_are_sent() -> None:
    found = commit(final="source", boundary="other", counts="all")
    assert found["final"].tolist() == found["slots"][:, 0].tolist()
    assert (found["boundary"] > 0).all()
    found = commit(final="other", boundary="source", counts="all")
    assert found["boundary"].tolist() == found["slots"][:, 0].tolist()
    assert not commit(final="none", boundary="other")["boundary"].any()
    assert not commit(final="none")["final"].any()


@pytest.mark.parametrize("final", plan.FINAL)
@pytest.mark.parametrize("boundary", plan.BOUNDARY)
@pytest.mark.parametrize("counts", plan.COUNTS)
def test_no_two_writes_of_a_commit_meet_and_none_meets_a_foreign_source(final: str, boundary: str, counts: str) -> None:
    found = commit(final=final, boundary=boundary, counts=counts, absent="odd")
    source = found["slots"][:, 0]
    written = [slot for name in ("final", "boundary") for slot in found[name].tolist() if slot > 0]
    assert len(set(written)) == len(written)
    for at, slot in enumerate(source.tolist()):
        others = {*source[:at].tolist(), *source[at + 1 :].tolist()}
        assert not {found["final"][at], found["boundary"][at]} - {0} & others
        if slot <= 0:
            assert not any(found[name][at] for name in ("counts", "final", "boundary", "boundary_counts"))
    assert ((found["boundary"] > 0) == (found["boundary_counts"] > 0)).all()
    assert (found["boundary_counts"] <= found["counts"]).all()
    assert 0 <= found["counts"].min() <= found["counts"].max() <= 3


def test_mixed_commits_mix_and_counts_cover_all_values() -> None:
    found = commit(final="mixed", boundary="mixed", counts="each")
    source = found["slots"][:, 0]
    assert {"source": (found["final"] == source).any(), "none": (found["final"] == 0).any()} == {
        "source": True, "none": True,
    }  # fmt: skip
    assert ((found["final"] != source) & (found["final"] > 0)).any()
    assert ((found["boundary"] == source) & (found["final"] != source)).any()
    assert set(found["counts"].tolist()) == {0, 1, 2, 3}
    assert set(commit(counts="random")["counts"].tolist()) == {0, 1, 2, 3}
