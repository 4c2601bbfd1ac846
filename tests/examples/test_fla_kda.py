"""flash-linear-attention's fused KDA recurrence in the place of ours: which bits differ, and why."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from installed import equiv, install

PACKAGE = Path(__file__).parent / "fla_kda"
READ = {"triton": "3.8.0", "fla-core": "0.6.0"}
"""What the kernel's declaration was read from."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    try:
        version("fla-core")
    except PackageNotFoundError:
        pytest.skip("NOT RUN: fla-core is not installed (pip install 'equiv[fla]')")
    return install(PACKAGE, tmp_path_factory.mktemp("package"))


def verdicts(environment: dict[str, str], folder: Path, device: str, *cases: str) -> dict[str, dict[str, Any]]:
    command = ["--cases", str(PACKAGE / "cases"), "--device", device, "--json"]
    done = equiv(environment, folder, "run", *(f"kda+fla_recurrence::{case}" for case in cases), *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["case"].partition("::")[2]: entry for entry in json.loads(done.stdout)["verdicts"]}


def known(verdict: dict[str, Any]) -> bool:
    return {package: verdict["toolchain"][package] for package in READ} == READ


def test_on_hopper_it_equals_the_stock_kernel_but_for_the_order_of_one_sum(
    environment: dict[str, str], tmp_path: Path
) -> None:
    found = verdicts(environment, tmp_path, "emulated:sm_90a", "t2-absent", "t2-record")
    assert found["t2-record"]["summary"] == "needs axis:mode=record: candidate of kda+fla_recurrence"
    if not known(found["t2-absent"]):
        assert found["t2-absent"]["status"] == "WITHIN"
        return
    assert found["t2-absent"]["status"] == "REORDERED"
    (declared,) = found["t2-absent"]["declared"]
    assert declared.startswith("order q.squares: oracle fma(x0, x1), then 2, 64, ")
    assert "; fla fma(x0, x16), then 8, 4, 2, 1, 64, 32 apart" in declared


@pytest.mark.slow
def test_on_hopper_a_single_token_has_every_bit_of_the_stock_kernel(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (found,) = verdicts(environment, tmp_path, "emulated:sm_90a", "t1").values()
    assert found["status"] == ("IDENTICAL" if known(found) else "WITHIN")


@pytest.mark.slow
def test_on_blackwell_where_its_orders_were_not_read_it_is_within(environment: dict[str, str], tmp_path: Path) -> None:
    found = verdicts(environment, tmp_path, "emulated:sm_100a", "t1", "t2-absent")
    assert {name: entry["status"] for name, entry in found.items()} == {"t1": "WITHIN", "t2-absent": "WITHIN"}
