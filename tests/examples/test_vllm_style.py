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


def test_it_stands_in_for_the_candidate_and_is_within_bit_for_bit(environment: dict[str, str], tmp_path: Path) -> None:
    cases = [f"dsa_index+indexer_query::{name}" for name in ("fp8-mx-b16-packed", "fp4-b16-ties")]
    devices = ["--device", "emulated:sm_90a", "--device", "emulated:sm_100a"]
    done = equiv(environment, tmp_path, "run", *cases, *devices, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        (entry["case"].partition("::")[2], entry["device"]): entry for entry in json.loads(done.stdout)["verdicts"]
    }
    for device in ("emulated:sm_90a", "emulated:sm_100a"):
        assert found["fp4-b16-ties", device]["status"] == "UNSUPPORTED"
        assert found["fp4-b16-ties", device]["summary"].startswith("needs axis:format=fp4")
        good = found["fp8-mx-b16-packed", device]
        assert good["status"] == "WITHIN"
        assert [output["output"] for output in good["outputs"]] == ["q_codes", "weights", "cache_rest"]
        for output in good["outputs"]:
            assert output["summary"] == "declaration of candidate unknown; oracle and candidate agree bit for bit"
