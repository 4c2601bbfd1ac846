"""One party in guarded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import equiv_fake
import numpy as np
import pytest

from equiv import packages
from equiv.errors import UnsupportedError
from equiv.records import Case, Side, TensorSpec
from equiv.runner import PartyError, run_party

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CASE = Case("fake", "a", "", 5, ("pr",), {"n": 8, "behaviour": "good"}, {})
SEEN: dict[str, Any] = {}


def look(case: Case, tensors: Mapping[str, Any]) -> None:
    """A party that remembers what it was given and doubles nothing."""
    SEEN.clear()
    SEEN.update({name: tensor.clone() for name, tensor in tensors.items()})
    SEEN["strides"] = {name: tensor.stride() for name, tensor in tensors.items()}
    SEEN["aligned"] = {name: tensor.data_ptr() % 256 for name, tensor in tensors.items()}


def run(layout: tuple[TensorSpec, ...], inputs: Mapping[str, Any], seed: int = 5) -> Side:
    from dataclasses import replace

    from equiv.pairs import Party

    pair = equiv_fake.make(
        layout=lambda _case: layout,
        oracle=Party(f"{__name__}:look", ("numpy",)),
        outputs=lambda _case, _given, after: {name: bits.copy() for name, bits in after.items()},
    )
    return run_party(pair, "oracle", replace(CASE, seed=seed), inputs, equiv_fake.HostDevice())


def test_a_party_gets_torch_tensors_of_the_layout_with_the_generated_bits() -> None:
    import torch

    layout = (
        TensorSpec("q", "input", "bf16", (2, 3), (5, 1)),
        TensorSpec("w", "input", "f32", (2,), (1,)),
        TensorSpec("slots", "input", "i64", (2,), (1,)),
        TensorSpec("cache", "inout", "u8", (2, 4), (6, 1)),
    )
    inputs = {
        "q": np.array([[0x3F80, 0xBF80, 0x7FC1], [0, 0x8000, 0x0001]], np.uint16),
        "w": np.array([0x3F800000, 0x80000000], np.uint32),
        "slots": np.array([-1, 63], np.int64).view(np.uint64),
        "cache": np.arange(8, dtype=np.uint8).reshape(2, 4),
    }
    side = run(layout, inputs)
    types = {name: SEEN[name].dtype for name in inputs}
    assert types == {"q": torch.bfloat16, "w": torch.float32, "slots": torch.int64, "cache": torch.uint8}
    assert SEEN["strides"] == {"q": (5, 1), "w": (1,), "slots": (1,), "cache": (6, 1)}
    assert set(SEEN["aligned"].values()) == {0}
    assert SEEN["slots"].tolist() == [-1, 63]
    assert (SEEN["q"].view(torch.int16).numpy().view(np.uint16) == inputs["q"]).all()
    assert all((side.outputs[name] == bits).all() for name, bits in inputs.items())
    assert (side.faults, side.launches, side.warp_instructions, side.seconds) == ((), 1, 5, 0.25)


def test_an_output_that_nobody_writes_stays_poison_that_changes_with_the_seed() -> None:
    layout = (TensorSpec("y", "output", "f32", (64,), (1,)),)
    first, again, other = (run(layout, {}, seed).outputs["y"] for seed in (5, 5, 6))
    assert np.isnan(first.view(np.float32)).all()
    assert (first == again).all()
    assert (first != other).any()


def test_a_tensor_spanning_gigabytes_is_handed_out_and_read_back() -> None:
    spec = TensorSpec("cache", "inout", "u8", (3, 4), ((1 << 30) + 64, 1), sparse=True)
    bits = np.arange(12, dtype=np.uint8).reshape(3, 4)
    side = run((spec,), {"cache": bits})
    assert SEEN["strides"]["cache"] == ((1 << 30) + 64, 1)
    assert (side.outputs["cache"] == bits).all()
    assert side.faults == ()


def test_an_empty_tensor_reaches_the_party() -> None:
    side = run((TensorSpec("q", "input", "bf16", (0, 4), (4, 1)),), {"q": np.zeros((0, 4), np.uint16)})
    assert tuple(SEEN["q"].shape) == (0, 4)
    assert side.faults == ()


def test_every_tensor_is_registered_while_the_party_runs_and_inputs_are_read_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = equiv_fake.HostDevice()
    seen: dict[str, bool] = {}
    monkeypatch.setattr(device, "synchronize", lambda: seen.update(device.registered))
    run_party(equiv_fake.PAIR, "oracle", CASE, equiv_fake.inputs(CASE), device)
    assert seen == {"x": False, "y": True, "pool": True}
    assert device.registered == {}


def test_registrations_are_taken_back_when_the_party_fails() -> None:
    from dataclasses import replace

    device = equiv_fake.HostDevice()
    case = replace(CASE, axes={"n": 8, "behaviour": "raises"})
    with pytest.raises(PartyError, match="seven is not a tile size") as caught:
        run_party(equiv_fake.PAIR, "candidate", case, equiv_fake.inputs(case), device)
    assert caught.value.party == "candidate"
    assert device.registered == {}


@pytest.mark.parametrize("behaviour", ["forks", "good"])
def test_what_a_party_forks_does_not_come_back_as_a_second_run(behaviour: str, tmp_path: Path) -> None:
    case = Case("fake", "a", "", 5, ("pr",), {"n": 8, "behaviour": behaviour}, {})
    run_party(equiv_fake.PAIR, "candidate", case, equiv_fake.inputs(case), equiv_fake.HostDevice())
    with (tmp_path / "came back").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.5 if behaviour == "forks" else 0)
    assert (tmp_path / "came back").read_text() == f"{os.getpid()}\n"


def test_a_package_that_cannot_be_imported_is_an_error_that_names_it_and_its_reason_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "broken_import", "triton", "loaded", "run", "dsa_index::fp8-b17-ties"]
    done = subprocess.run(
        [*command, "-j", "1", "--in-process"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = f"triton {version('triton')}: cannot be imported: OSError: libmissing.so: cannot open shared object file"
    assert done.returncode == 1
    assert f"  {said}\n  again " in done.stdout


def test_torch_that_is_not_installed_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(packages, "version", absent)
    case = Case("fake", "a", "", 1, ("pr",), {"n": 8, "behaviour": "good"}, {})
    with pytest.raises(UnsupportedError, match=r"needs package:torch: pip install 'equiv\[kernels\]'"):
        run_party(equiv_fake.PAIR, "oracle", case, equiv_fake.inputs(case), equiv_fake.HostDevice())


def test_a_party_that_exits_politely_is_an_error_of_the_party() -> None:
    case = Case("fake", "a", "", 5, ("pr",), {"n": 8, "behaviour": "quits"}, {})
    with pytest.raises(PartyError, match=r"candidate: Traceback(.|\n)*sys\.exit\(0\)\nSystemExit: 0"):
        run_party(equiv_fake.PAIR, "candidate", case, equiv_fake.inputs(case), equiv_fake.HostDevice())
