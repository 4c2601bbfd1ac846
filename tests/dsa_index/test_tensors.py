"""Where the bytes of `dsa_index` are, checked against pages written byte by byte after spec/dsa.md 1.7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.dsa_index import PAIR
from equiv.dsa_index.tensors import rows, token_bytes
from equiv.records import Case

if TYPE_CHECKING:
    from equiv.records import Bits


def case(regimes: dict[str, str] | None = None, **axes: Any) -> Case:
    return Case("dsa_index", "x", "w", 3, ("pr",), axes, regimes or {})


def shapes(**axes: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]]:
    return {spec.name: (spec.shape, spec.strides, spec.sparse) for spec in PAIR.layout(case(**axes))}


def test_dense_fp8_tensors_have_the_shapes_of_the_spec() -> None:
    found = shapes(batch=17)
    assert found["q"] == ((17, 32, 128), (4096, 128, 1), False)
    assert found["projected"] == ((17, 160), (160, 1), False)
    assert found["cache"] == ((2, 8448), (8448, 1), False)
    assert found["q_out"] == ((17, 4096), (4096, 1), False)
    assert found["w_out"] == ((17, 32), (32, 1), False)
    assert found["slots"] == ((17,), (1,), False)


def test_packed_rows_have_gaps_behind_and_columns_around() -> None:
    found = shapes(batch=3, rows="packed")
    assert found["q"] == ((3, 32, 128), (4160, 128, 1), False)
    assert found["projected"] == ((3, 2272), (2304, 1), False)
    assert (rows(case(rows="packed"))["key_at"], rows(case(rows="packed"))["weight_at"]) == (2112, 2240)


def test_fp4_rows_and_pages_and_a_sparse_far_cache() -> None:
    found = shapes(batch=18, format="fp4", scale="mx", pages=10, page_stride=1 << 29)
    assert found["q_out"] == ((18, 2176), (2176, 1), False)
    assert found["cache"] == ((10, 4352), (1 << 29, 1), True)


@pytest.mark.parametrize(("batch", "pages"), [(1, 2), (63, 2), (64, 2), (65, 3), (128, 3), (129, 4)])
def test_pages_leave_room_for_more_than_the_batch(batch: int, pages: int) -> None:
    assert shapes(batch=batch)["cache"][0][0] == pages


def run_by_hand(wanted: Case) -> tuple[dict[str, Bits], dict[str, Bits], dict[int, list[int]]]:
    """Inputs, tensors with a recognisable byte at every place that a token owns, and slot -> its bytes in order."""
    inputs = PAIR.inputs(wanted)
    fp4 = wanted.axes["format"] == "fp4"
    width = 64 if fp4 else 128
    cache = inputs["cache"].copy()
    written: dict[int, list[int]] = {}
    for slot in inputs["slots"].view(np.int64).tolist():
        if slot >= 0:
            page, token = slot // 64, slot % 64
            written[slot] = [(7 * slot + channel) % 251 for channel in range(width + 4)]
            cache[page, token * width : token * width + width] = written[slot][:width]
            cache[page, 64 * width + 4 * token : 64 * width + 4 * token + 4] = written[slot][width:]
    specs = {spec.name: spec for spec in PAIR.layout(wanted)}
    q_out = (np.arange(np.prod(specs["q_out"].shape)) % 253).astype(np.uint8).reshape(specs["q_out"].shape)
    w_out = np.arange(np.prod(specs["w_out"].shape), dtype=np.uint16).reshape(specs["w_out"].shape)
    return inputs, {"cache": cache, "q_out": q_out, "w_out": w_out}, written


@pytest.mark.parametrize("slots", ["permuted", "skip_even", "page_edges", "skip_all"])
def test_fp8_outputs_are_cut_token_by_token(slots: str) -> None:
    wanted = case({"slots": slots}, batch=9, format="fp8", scale="f32")
    inputs, tensors, written = run_by_hand(wanted)
    found = PAIR.outputs(wanted, inputs, tensors)
    assert found["key_codes"].tolist() == [values[:128] for values in written.values()]
    assert found["key_scale"].dtype == np.uint32
    assert found["key_scale"].tolist() == [int.from_bytes(bytes(values[128:]), "little") for values in written.values()]
    assert found["cache_rest"].size == 2 * 8448 - 132 * len(written)
    np.testing.assert_array_equal(found["q_codes"][8, 31], tensors["q_out"][8, 31 * 128 :])
    np.testing.assert_array_equal(found["weights"], tensors["w_out"])


def test_fp8_exponent_bytes_stay_four_bytes() -> None:
    wanted = case(batch=3, format="fp8", scale="mx")
    inputs, tensors, written = run_by_hand(wanted)
    assert PAIR.outputs(wanted, inputs, tensors)["key_scale"].tolist() == [values[128:] for values in written.values()]


@pytest.mark.parametrize("slots", ["permuted", "skip_even", "skip_all"])
def test_fp4_outputs_take_the_low_nibble_first_and_scales_behind_the_values(slots: str) -> None:
    wanted = case({"slots": slots}, batch=3, format="fp4", scale="mx")
    inputs, tensors, written = run_by_hand(wanted)
    found = PAIR.outputs(wanted, inputs, tensors)
    nibbles = [[half for byte in values[:64] for half in (byte & 15, byte >> 4)] for values in written.values()]
    assert found["key_codes"].tolist() == nibbles
    assert found["key_scale"].tolist() == [values[64:] for values in written.values()]
    byte = int(tensors["q_out"][1, 5 * 64 + 20])
    assert found["q_codes"][1, 5, 40:42].tolist() == [byte & 15, byte >> 4]
    assert int(found["q_scale"][1, 5, 3]) == int(tensors["q_out"][1, 2048 + 5 * 4 + 3])


@pytest.mark.parametrize(
    "axes", [{"format": "fp8"}, {"format": "fp8", "scale": "mx"}, {"format": "fp4", "scale": "mx"}]
)
def test_specs_and_cut_outputs_agree(axes: dict[str, Any]) -> None:
    wanted = case(batch=5, **axes)
    inputs, tensors, _ = run_by_hand(wanted)
    found = PAIR.outputs(wanted, inputs, tensors)
    specs = {spec.name: spec for spec in PAIR.output_specs(wanted)}
    assert set(specs) == set(found)
    for name, spec in specs.items():
        assert found[name].ndim == len(spec.dims), name
    assert {name for name, spec in specs.items() if spec.contract == "envelope"} == {
        "weights",
        "key_codes",
        "key_scale",
    }


def test_a_byte_that_no_token_owns_is_placed_by_page_and_slot() -> None:
    wanted = case({"slots": "in_order"}, batch=2, format="fp8")
    inputs = PAIR.inputs(wanted)
    assert PAIR.place is not None
    first = PAIR.place(wanted, inputs, "cache_rest", (0,))
    assert first == "page 0, byte 256 (value byte 0 of position 2, slot 2, which nothing writes)"
    last = PAIR.place(wanted, inputs, "cache_rest", (2 * 8448 - 2 * 132 - 1,))
    assert last == "page 1, byte 8447 (scale byte 3 of position 63, slot 127, which nothing writes)"


def test_a_key_is_placed_by_request_and_slot() -> None:
    wanted = case({"slots": "skip_even"}, batch=4, format="fp8")
    inputs = PAIR.inputs(wanted)
    slot = int(inputs["slots"][3])
    assert PAIR.place is not None
    words = PAIR.place(wanted, inputs, "key_codes", (1, 9))
    assert words == f"request 3, slot {slot} (page {slot // 64}, position {slot % 64}), channel 9"
    assert PAIR.place(wanted, inputs, "q_codes", (3, 5, 17)) == "request 3, head 5, channel 17"


def bytes_of(wanted: Case, inputs: dict[str, Bits], chosen: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices into `cache_rest` of the free bytes among those chosen in `[pages, page bytes]`."""
    page, value_at, scale_at = token_bytes(wanted, inputs["slots"])
    free = np.ones(inputs["cache"].shape, dtype=np.bool_)
    free[page, value_at] = free[page, scale_at] = False
    mask = np.zeros(inputs["cache"].shape, dtype=np.bool_)
    mask[chosen] = True
    return np.flatnonzero(mask[free])[:, None]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ((1, np.r_[63 * 128 : 64 * 128, 8444:8448]), "slot 127 (page 1)"),
        ((1, np.r_[63 * 128 + 5, 63 * 128 + 9]), "value bytes of slot 127 (page 1)"),
        ((1, np.r_[8444:8448]), "scale bytes of slot 127 (page 1)"),
        ((0, np.r_[5 * 128 : 9 * 128, 8192 + 20 : 8192 + 36]), "slots 5..8 (page 0)"),
        (([0, 1], [128 * 3, 128 * 7]), "value bytes of slots 3, 71 (pages 0, 1)"),
        ((1, np.r_[5 * 128 : 19 * 128, 8192 + 20 : 8192 + 76]), "14 slots of page 1"),
        (([[0], [1]], np.r_[8192:8448]), "scale bytes of 126 slots of pages 0, 1"),
    ],
)
def test_bytes_of_no_token_are_told_by_the_slots_they_share(chosen: Any, words: str) -> None:
    wanted = case({"slots": "in_order"}, batch=2, format="fp8")
    inputs = PAIR.inputs(wanted)
    assert PAIR.shared is not None
    assert PAIR.shared(wanted, inputs, "cache_rest", bytes_of(wanted, inputs, chosen)) == (
        f"all in {words}, which nothing writes"
    )


def test_bytes_all_over_the_cache_share_nothing_and_other_outputs_are_left_to_their_dimensions() -> None:
    wanted = case({"slots": "in_order"}, batch=2, format="fp8")
    inputs = PAIR.inputs(wanted)
    assert PAIR.shared is not None
    assert PAIR.shared(wanted, inputs, "cache_rest", bytes_of(wanted, inputs, slice(None))) == ""
    assert PAIR.shared(wanted, inputs, "key_codes", np.array([[1, 5], [1, 6]])) == ""
