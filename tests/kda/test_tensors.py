"""Shapes, strides and the cutting of outputs of `kda`, against pools in which every slot holds its own number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kda_cases import case

from equiv.kda import PAIR, tensors

if TYPE_CHECKING:
    from equiv.records import Case

Bits = Any


def shapes(**axes: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]]:
    return {spec.name: (spec.shape, spec.strides, spec.sparse) for spec in PAIR.layout(case(**axes))}


@pytest.mark.parametrize(
    ("heads", "width", "pitch"),
    [(6, 3206, 3216), (12, 6284, 6288), (24, 12440, 12448), (48, 24752, 24752), (96, 49376, 49376)],
)
def test_a_row_has_the_width_and_pitch_of_the_spec(heads: int, width: int, pitch: int) -> None:
    assert shapes(batch=1, heads=heads)["rows"] == ((1, width), (pitch, 1), False)


def test_a_step_of_one_token_has_the_tensors_of_the_spec() -> None:
    assert shapes(batch=3) == {
        "rows": ((3, 3206), (3216, 1), False),
        "conv_w": ((2304, 4), (4, 1), False),
        "conv_state": ((6, 2304, 3), (6912, 1, 2304), False),
        "a_log": ((6,), (1,), False),
        "dt_bias": ((768,), (1,), False),
        "f_b": ((768, 128), (128, 1), False),
        "norm_w": ((128,), (1,), False),
        "slots": ((3, 1), (1, 1), False),
        "accepted": ((1, 3), (3, 1), False),
        "state": ((6, 6, 128, 128), (98304, 16384, 128, 1), False),
        "y": ((3, 768), (768, 1), False),
    }


def test_a_commit_has_records_a_plan_and_room_for_two_destinations_each() -> None:
    found = shapes(batch=3, tokens=4, mode="commit", window="dim_first", bias=True)
    assert found["conv_state"] == ((12, 2304, 6), (13824, 6, 1), False)
    assert found["slots"] == ((3, 1), (1, 1), False)
    assert found["corrections"] == ((3, 6, 4, 128), (3072, 512, 128, 1), False)
    assert found["key_gate"] == ((3, 6, 4, 256), (6144, 1024, 256, 1), False)
    assert {name: found[name][0] for name in ("counts", "final", "boundary", "boundary_counts", "conv_bias")} == {
        "counts": (3,), "final": (3,), "boundary": (3,), "boundary_counts": (3,), "conv_bias": (2304,),
    }  # fmt: skip


def test_several_steps_have_their_rows_outputs_and_accepted_counts_one_after_another() -> None:
    found = shapes(batch=3, tokens=2, steps=4)
    assert (found["rows"][0], found["y"][0], found["accepted"][0]) == ((24, 3206), (24, 768), (4, 3))
    assert found["slots"][0] == (3, 2)


def test_only_a_pool_with_large_gaps_is_sparse() -> None:
    assert shapes(slots=10, slot_stride=1 << 29)["state"] == ((10, 6, 128, 128), (1 << 29, 16384, 128, 1), True)
    assert not shapes(slot_stride=98304 + 64)["state"][2]
    assert not shapes(batch=512, heads=12)["state"][2]


def numbered(wanted: Case) -> tuple[dict[str, Bits], dict[str, Bits]]:
    """Inputs, and tensors after a run in which every element of slot n is n, every row and record its own number."""
    inputs = PAIR.inputs(wanted)
    after: dict[str, Bits] = dict(inputs)
    for name in ("conv_state", "state"):
        number = np.arange(len(inputs[name])).reshape(-1, *[1] * (inputs[name].ndim - 1))
        after[name] = np.broadcast_to(number, inputs[name].shape).astype(inputs[name].dtype)
    (rows,) = [spec.shape for spec in PAIR.layout(wanted) if spec.name == "y"]
    after["y"] = np.broadcast_to(np.arange(rows[0], dtype=np.uint16)[:, None], rows)
    for name in ("corrections", "key_gate"):
        if name in inputs:
            request = np.arange(len(inputs[name])).reshape(-1, 1, 1, 1)
            after[name] = np.broadcast_to(request, inputs[name].shape).astype(inputs[name].dtype)
    return inputs, after


def test_a_step_gives_states_in_request_and_token_order_and_all_other_slots_as_rest() -> None:
    wanted = case({"absent": "middle", "null": "negative"}, batch=3, tokens=2, steps=2)
    inputs, after = numbered(wanted)
    found = PAIR.outputs(wanted, inputs, after)
    table = inputs["slots"].view(np.int32)
    own = [*table[0], *table[2]]
    assert found["state"].shape == (4, 6, 128, 128)
    assert found["state"][:, 5, 127, 127].tolist() == own
    assert found["conv"].shape == (2, 2304, 4)
    assert found["conv"][:, 2303, 3].tolist() == [table[0, 0], table[2, 0]]
    assert sorted(set(found["state_rest"].tolist())) == sorted(set(range(9)) - set(own))
    assert len(found["state_rest"]) == 5 * 98304
    assert sorted(set(found["conv_rest"].tolist())) == sorted(set(range(9)) - {table[0, 0], table[2, 0]})
    assert found["y"][:, :, :, 5, 127].tolist() == [[[0, 1], [4, 5]], [[6, 7], [10, 11]]]
    assert found["y_absent"][:, :, :, 767].tolist() == [[[2, 3]], [[8, 9]]]


def test_a_record_writes_no_state_and_splits_key_and_gate() -> None:
    wanted = case({"absent": "first"}, batch=3, tokens=2, mode="record")
    inputs, after = numbered(wanted)
    after["key_gate"] = after["key_gate"].copy()
    after["key_gate"][..., 128:] += 100
    found = PAIR.outputs(wanted, inputs, after)
    assert found["state"].shape == (0, 6, 128, 128)
    assert len(found["state_rest"]) == inputs["state"].size
    assert found["corrections"][:, 0, 0, 0].tolist() == [1, 2]
    assert (found["key"][:, 5, 1, 127].tolist(), found["gate"][:, 5, 1, 127].tolist()) == ([1, 2], [101, 102])
    assert len(found["record_rest"]) == 6 * 2 * 512
    assert np.unique(found["record_rest"][6 * 2 * 256 :]).tolist() == [0, 100]


def test_a_commit_gives_the_final_slot_and_then_the_boundary_of_each_request() -> None:
    wanted = case({"counts": "each", "final": "other", "boundary": "source"}, batch=4, tokens=3, mode="commit")
    inputs, after = numbered(wanted)
    found = PAIR.outputs(wanted, inputs, after)
    source, final = inputs["slots"].view(np.int32)[:, 0], inputs["final"].view(np.int32)
    assert inputs["counts"].tolist() == [0, 1, 2, 3]
    wanted_slots = [slot for at in (1, 2, 3) for slot in (final[at], source[at])]
    assert found["state"][:, 0, 0, 0].tolist() == wanted_slots
    assert found["conv_final"][:, 0, 0].tolist() == wanted_slots
    assert found["conv"][:, 0, 0].tolist() == source.tolist()
    rest = set(range(15)) - set(wanted_slots)
    assert set(found["state_rest"].tolist()) == rest
    assert set(found["conv_rest"].tolist()) == rest - {source[0]}


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"tokens": 2, "steps": 2},
        {"tokens": 2, "mode": "record"},
        {"tokens": 2, "mode": "commit"},
        {"kernel": "wide", "state": "bf16"},
    ],
)
def test_specs_and_cut_outputs_agree(axes: dict[str, Any]) -> None:
    wanted = case(**axes)
    found = PAIR.outputs(wanted, *numbered(wanted))
    specs = {spec.name: spec for spec in PAIR.output_specs(wanted)}
    assert set(specs) == set(found)
    for name, spec in specs.items():
        assert found[name].ndim == len(spec.dims), name
    assert {name for name, spec in specs.items() if spec.contract == "envelope"} <= {"y", "state", "corrections"}
    assert [name for name, spec in specs.items() if spec.contract == "candidate"] == ["y_absent"]


@pytest.mark.parametrize(
    ("axes", "forms"),
    [
        ({}, ("packed", "ws")),
        ({"tokens": 2, "kernel": "wide"}, ("multi", "wide")),
        ({"tokens": 2, "mode": "record"}, ("verify", "ws")),
        ({"tokens": 2, "kernel": "wide", "state": "bf16"}, ("multi-bf16", "wide")),
        ({"kernel": "wide", "state": "bf16"}, ("packed-bf16", "wide")),
        ({"tokens": 2, "mode": "commit", "kernel": "wide", "state": "bf16"}, ("verify-bf16", "wide-commit")),
    ],
)
def test_a_case_is_served_by_a_declared_form_of_each_party(axes: dict[str, Any], forms: tuple[str, str]) -> None:
    found = tuple(tensors.form(party, case(**axes), "sm_90a") for party in ("oracle", "candidate"))
    assert found == forms
    assert all(one in PAIR.forms[party] for one, party in zip(found, ("oracle", "candidate"), strict=True))


@pytest.mark.parametrize(
    ("axes", "regimes", "path", "words"),
    [
        ({"mode": "record"}, {}, "axes.mode", '"record" needs more than one token a request, got tokens=1'),
        ({"mode": "record", "tokens": 2, "steps": 2}, {}, "axes.steps", 'got steps=2 with mode="record"'),
        ({"state": "bf16"}, {}, "axes.state", 'write kernel = "wide", got state="bf16"'),
        ({"kernel": "wide", "ctas": 3}, {}, "axes.ctas", "gives every item a CTA: write ctas = 0, got 3"),
        ({"batch": 4, "slots": 5}, {}, "axes.slots", "make 6, got slots=5"),
        ({"slot_stride": 98288}, {}, "axes.slot_stride", "a slot has 98304 elements, got slot_stride=98288"),
        ({"slot_stride": 98312}, {}, "axes.slot_stride", "must be a multiple of 16 elements, got 98312"),
        ({}, {"conv_bias": "zero"}, "regimes.conv_bias", "write bias = true"),
        ({}, {"final": "other"}, "regimes.final", '"other" is for mode "commit", got mode="step"'),
        ({}, {"null": "negative"}, "regimes.null", 'no request is absent, got "negative"'),
        ({"tokens": 2, "mode": "commit"}, {"boundary": "source"}, "regimes.boundary", "one slot cannot take both"),
        ({"slots": 9, "slot_stride": 1 << 29}, {"slots": "far"}, "axes.slots", "a pool of 10, got slots=9"),
        ({"slots": 10}, {"slots": "far"}, "axes.slot_stride", "need slot_stride >= 536870912, got 98304"),
        ({"kernel": "wide", "state": "bf16"}, {"state": "aimed_midpoints"}, "regimes.state", "needs the bits of FP32"),
        ({"batch": 17}, {"state": "aimed_out_zero"}, "axes.batch", "for 96 heads in all, got 17 x 6"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_field(
    axes: dict[str, Any], regimes: dict[str, str], path: str, words: str
) -> None:
    found = PAIR.check(case(regimes, **axes))
    assert [at for at, _ in found] == [path]
    assert words in found[0][1]
