"""The cut of a batch: every row of the specification's table, both sides of each boundary, and what fits."""

from __future__ import annotations

import re

import pytest

from equiv.cute.dsa.tiling import SHARED_BYTES, CtaPlan, FrontTiling, front_tiling
from equiv.errors import UsageError

# last batch: n, tiles, split, group, cluster, blocks, owned, CTAs, tensor columns, stage, mailbox, shares, stages
TABLE: dict[int, tuple[int, int, int, int, int, int, int, int, int, int, int, bool, int]] = {
    16: (16, 1, 4, 1, 4, 6, 4, 128, 32, 18432, 16384, False, 6),
    32: (32, 1, 4, 1, 4, 6, 8, 128, 32, 20480, 24576, False, 6),
    48: (48, 1, 4, 1, 4, 6, 12, 128, 64, 22528, 32768, True, 6),
    64: (32, 2, 2, 1, 2, 12, 16, 128, 32, 20480, 20480, False, 10),
    96: (48, 2, 2, 1, 2, 12, 24, 128, 64, 22528, 28672, True, 8),
    128: (64, 2, 2, 1, 2, 12, 32, 128, 64, 24576, 36864, True, 7),
    144: (48, 3, 1, 4, 4, 24, 48, 96, 64, 22528, 0, True, 10),
    192: (48, 4, 1, 4, 4, 24, 48, 128, 64, 22528, 0, True, 10),
    256: (64, 4, 1, 4, 4, 24, 64, 128, 64, 24576, 0, True, 9),
    320: (80, 4, 1, 4, 4, 24, 80, 128, 128, 26624, 0, True, 8),
    384: (96, 4, 1, 4, 4, 24, 96, 128, 128, 28672, 0, True, 7),
    448: (112, 4, 1, 4, 4, 24, 112, 128, 128, 30720, 0, True, 7),
    512: (128, 4, 1, 4, 4, 24, 128, 128, 128, 32768, 0, True, 6),
}
FIRST = dict(zip(TABLE, [1, *(last + 1 for last in TABLE)], strict=False))


def row(batch: int) -> tuple[int | bool, ...]:
    tiling = front_tiling(batch)
    plan = CtaPlan.of(tiling)
    return (
        *tiling, plan.cluster, plan.blocks, plan.owned, plan.split * 32 * tiling.tiles, plan.tensor_columns,
        plan.stage_bytes, plan.mailbox_bytes, plan.shares_factors, plan.stages,
    )  # fmt: skip


@pytest.mark.parametrize("last", TABLE)
def test_the_first_and_last_batch_of_every_row_of_the_table_have_its_tiling(last: int) -> None:
    assert row(FIRST[last]) == TABLE[last]
    assert row(last) == TABLE[last]


def test_neighbouring_rows_of_the_table_differ() -> None:
    for last in list(TABLE)[:-1]:
        assert front_tiling(last) != front_tiling(last + 1)


def test_every_tile_has_a_row_of_the_batch() -> None:
    for batch in range(1, 1025):
        n, tiles, _, _ = front_tiling(batch)
        assert (tiles - 1) * n < batch <= tiles * n, batch
        assert n % 16 == 0, batch
        assert n <= 256, batch


@pytest.mark.parametrize("tiling", sorted({front_tiling(batch) for batch in range(1, 1025)}), ids=str)
def test_as_many_stages_as_fit_are_planned_and_no_more(tiling: FrontTiling) -> None:
    plan = CtaPlan.of(tiling)
    assert 2 <= plan.stages <= plan.blocks
    assert plan.shared_bytes <= SHARED_BYTES
    more = plan.stage_bytes + 32
    assert plan.stages == plan.blocks or plan.shared_bytes + more > SHARED_BYTES
    assert plan.tensor_columns >= plan.n
    assert plan.tensor_columns & (plan.tensor_columns - 1) == 0


def test_the_largest_batch_needs_the_largest_tile() -> None:
    assert front_tiling(1024) == (256, 4, 1, 4)
    assert CtaPlan.of(front_tiling(1024)).stages == 4


@pytest.mark.parametrize("batch", [0, -1, 1025])
def test_a_batch_without_a_tiling_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match=re.escape(f"batch must be 1 to 1024; got batch={batch}")):
        front_tiling(batch)


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        (FrontTiling(16, 1, 5, 1), "n=16, split=5, group=1 do not divide the projection"),
        (FrontTiling(16, 1, 1, 3), "n=16, split=1, group=3 do not divide the projection"),
        (FrontTiling(24, 1, 4, 1), "n=24, split=4, group=1 do not divide the projection"),
        (FrontTiling(1024, 1, 1, 1), "n=1024, split=1: no two stages of 147456 bytes fit"),
    ],
)
def test_a_tiling_that_the_kernel_cannot_run_is_refused(tiling: FrontTiling, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        CtaPlan.of(tiling)
