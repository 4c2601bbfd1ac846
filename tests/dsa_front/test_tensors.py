"""Where the tensors of `dsa_front` differ from those of `dsa_index`, against spec/dsa.md 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from equiv.dsa_front import PAIR
from equiv.dsa_index import PAIR as INDEX
from equiv.records import Case

if TYPE_CHECKING:
    from equiv.records import AxisValue


def case(**axes: AxisValue) -> Case:
    return Case("dsa_front", "x", "w", 3, ("pr",), axes, {})


def shapes(**axes: AxisValue) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {spec.name: (spec.shape, spec.strides) for spec in PAIR.layout(case(**axes))}


def test_a_dense_row_holds_latent_key_and_weights_and_nothing_else() -> None:
    found = shapes(batch=17)
    assert found["projected"] == ((17, 1696), (1696, 1))
    assert found["w_q"] == ((4096, 1536), (1536, 1))
    assert found["w_qa"] == ((1536,), (1,))
    assert found["q_out"] == ((17, 4096), (4096, 1))
    assert "q_c" not in found


def test_a_packed_row_has_the_pitch_of_the_merged_projection() -> None:
    assert shapes(batch=3, rows="packed")["projected"] == ((3, 2272), (2304, 1))


def test_a_normalised_latent_is_a_tensor_of_its_own() -> None:
    found = shapes(batch=3, normalized=True, format="fp4", scale="mx")
    assert found["q_c"] == ((3, 1536), (1536, 1))
    assert found["q_out"] == ((3, 2176), (2176, 1))
    assert [spec.role for spec in PAIR.layout(case(normalized=True)) if spec.name == "q_c"] == ["input"]


@pytest.mark.parametrize("axes", [{}, {"scale": "mx"}, {"format": "fp4", "scale": "mx"}])
def test_cache_slots_and_outputs_are_those_of_dsa_index(axes: dict[str, Any]) -> None:
    index = {spec.name: spec for spec in INDEX.layout(case(batch=9, **axes))}
    for spec in PAIR.layout(case(batch=9, **axes)):
        if spec.name in {"norm_w", "norm_b", "cache", "slots", "q_out", "w_out"}:
            assert spec == index[spec.name]
    mine, others = (pair.output_specs(case(batch=9, **axes)) for pair in (PAIR, INDEX))
    assert [(spec.name, spec.format, spec.dims) for spec in mine] == [(o.name, o.format, o.dims) for o in others]


def test_only_untouched_bytes_are_promised_to_the_bit() -> None:
    for axes in ({}, {"format": "fp4", "scale": "mx"}):
        specs = PAIR.output_specs(case(**axes))
        assert [spec.name for spec in specs if spec.contract == "bitwise"] == ["cache_rest"]
        assert {spec.name for spec in specs if "one allowed scale" in spec.promise} == (
            {"q_codes", "q_scale"} if axes else {"q_codes", "weights"}
        )


def test_the_two_epsilons_are_two_axes() -> None:
    names = [axis.name for axis in PAIR.axes]
    assert names.count("eps") == names.count("key_eps") == 1
    assert {axis.name: axis.default for axis in PAIR.axes}["key_eps"] == 1e-6


def test_problems_of_a_case_are_found_as_in_dsa_index() -> None:
    found = PAIR.check(case(format="fp4", pages=1, batch=64, page_stride=24))
    assert [path for path, _ in found] == ["axes.scale", "axes.pages", "axes.page_stride", "axes.page_stride"]
