"""How batches are cut for the Hopper form: both sides of each boundary, what fits, and what must not overlap."""

from __future__ import annotations

import re

import pytest

from equiv.cute.dsa.hopper_plan import SHARED_BYTES, HopperPlan, hopper_tiling
from equiv.errors import UsageError

# last batch: n, split, owned, blocks, stages, mailbox, last block under it, late
TABLE: dict[int, tuple[int, int, int, int, int, int, int, bool]] = {
    16: (16, 4, 4, 6, 6, 8192, 0, False),
    32: (32, 4, 8, 6, 5, 16384, 1, True),
    48: (24, 2, 12, 12, 4, 12288, 8, True),
    1024: (32, 2, 16, 12, 4, 16384, 8, True),
}
FIRST = dict(zip(TABLE, [1, *(last + 1 for last in TABLE)], strict=False))
PLANS = [HopperPlan(16, 4), HopperPlan(32, 4), HopperPlan(24, 2), HopperPlan(32, 2)]


@pytest.mark.parametrize("last", TABLE)
def test_the_first_and_last_batch_of_every_tiling_have_its_plan(last: int) -> None:
    for batch in (FIRST[last], last):
        n, _, split, group = hopper_tiling(batch)
        plan = HopperPlan(n, split)
        assert group == 1
        found = (n, split, plan.owned, plan.blocks, plan.stages, plan.mailbox_bytes, plan.last_boxed, plan.late)
        assert found == TABLE[last], batch


def test_every_tile_has_a_row_of_the_batch_and_only_one_tile_has_four_slices() -> None:
    for batch in range(1, 1025):
        n, tiles, split, _ = hopper_tiling(batch)
        assert (tiles - 1) * n < batch <= tiles * n, batch
        assert split == (4 if tiles == 1 else 2), batch


def test_a_launch_of_up_to_64_rows_has_a_cta_for_each_of_128_multiprocessors() -> None:
    for batch in range(1, 65):
        _, tiles, split, _ = hopper_tiling(batch)
        assert tiles * split * 32 == 128, batch


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_two_ctas_fit_into_a_multiprocessor_and_no_stage_more_would(plan: HopperPlan) -> None:
    assert 2 * (SHARED_BYTES + 1024) <= 228 * 1024
    assert plan.shared_bytes <= SHARED_BYTES
    assert plan.stages == plan.blocks or plan.shared_bytes + plan.weight_bytes + 16 > SHARED_BYTES


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_mailbox_lies_in_stages_that_are_multiplied_for_the_last_time_before_it_is_free(plan: HopperPlan) -> None:
    stages = -(-plan.mailbox_bytes // plan.weight_bytes)
    assert plan.mailbox_stage + stages <= plan.stages
    for stage in range(plan.mailbox_stage, plan.mailbox_stage + stages):
        assert max(block for block in range(plan.blocks) if block % plan.stages == stage) <= plan.last_boxed
    assert plan.last_boxed + 1 < plan.blocks, "a later block's products tell that these are done"


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_magnitudes_fit_where_sums_of_squares_were_and_rows_are_stored_in_whole_pieces(plan: HopperPlan) -> None:
    assert plan.squares_bytes >= max(4 * (plan.split - 1) * plan.n, 16 * plan.owned)
    assert plan.blocks % plan.together == plan.together % 2 == 0


@pytest.mark.parametrize("batch", [0, -1, 1025])
def test_a_batch_without_a_tiling_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match=re.escape(f"batch must be 1 to 1024; got batch={batch}")):
        hopper_tiling(batch)
