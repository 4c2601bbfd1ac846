"""A kernel in a package of its own: installed by pip, found by entry point, verified by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installed import equiv, install

PACKAGE = Path(__file__).parent / "vllm_style"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees the installed package."""
    return install(PACKAGE, tmp_path_factory.mktemp("package"))


def test_the_installed_kernel_is_listed_with_what_it_can_and_cannot_do(
    environment: dict[str, str], tmp_path: Path
) -> None:
    listed = equiv(environment, tmp_path, "list", "dsa_index").stdout
    assert "\n  dsa_index+indexer_query: the indexer's query to FP8, " in listed
    assert "\n    only format = fp8\n    key_codes is not compared: the kernel quantises the query; " in listed


@pytest.mark.parametrize("device", ["emulated:sm_90a", "emulated:sm_100a"])
def test_it_stands_in_for_the_candidate_and_is_within_bit_for_bit(
    environment: dict[str, str], tmp_path: Path, device: str
) -> None:
    cases = [f"dsa_index+indexer_query::{name}" for name in ("fp8-b17-ties", "fp8-mx-b16-packed", "fp4-b16-ties")]
    done = equiv(environment, tmp_path, "run", *cases, "--device", device, "--json", "-j1")
    assert (done.returncode, done.stderr) == (0, "")
    found = {entry["case"].partition("::")[2]: entry for entry in json.loads(done.stdout)["verdicts"]}
    assert {name: entry["status"] for name, entry in found.items()} == {
        "fp8-b17-ties": "WITHIN",
        "fp8-mx-b16-packed": "WITHIN",
        "fp4-b16-ties": "UNSUPPORTED",
    }
    for output in found["fp8-b17-ties"]["outputs"]:
        assert output["summary"] == "declaration of candidate unknown; oracle and candidate agree bit for bit"
    assert [output["output"] for output in found["fp8-b17-ties"]["outputs"]] == ["q_codes", "weights", "cache_rest"]
    assert found["fp4-b16-ties"]["summary"].startswith("needs axis:format=fp4")
