"""The operator's cases on an emulated GPU, as `equiv run` judges them."""

import pytest

import equiv
from equiv.casefile import case_file

CASES = equiv.load_cases(case_file("skeleton_name"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_both_kernels_equal_their_models(case: equiv.Case) -> None:
    """Equal to the models, and to each other but for what they declare."""
    verdict = equiv.verify(equiv.pair("skeleton_name"), case, equiv.device("emulated:sm_90a"))
    assert verdict.status in {"IDENTICAL", "REORDERED"}, verdict.summary
