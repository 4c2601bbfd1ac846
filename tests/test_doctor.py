"""The look over the machine: what is found, and what it says of what is not."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import brought
import pytest

from equiv import cli, doctor, packages
from equiv.doctor import Finding
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.vouch import Vouch
from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    """Every finding but those of devices, which take seconds."""
    monkeypatch.setattr(doctor, "_device", lambda _name: iter(()))
    return {finding.subject: finding for finding in doctor.examine()}


def test_packages_tools_and_cache_are_named_with_their_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path))
    findings = found(monkeypatch)
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert findings["ptxas"].detail.startswith("12.9.")
    assert findings["triton"].detail == version("triton")
    assert findings["cache"].detail == f"{tmp_path} can be written"
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_broken_with_what_would_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(packages, "MODULES", {"no-such-package": "nowhere"})
    findings = found(monkeypatch)
    assert findings["no-such-package"] == Finding(
        "no-such-package", "broken", "not installed: pip install 'equiv[kernels]'"
    )
    assert findings["C compiler"].state == "broken"
    assert findings["C compiler"].detail == (
        "needs tool:gcc: $CC is 'no-such-compiler', which is not there; the emulator and the C twins are compiled "
        "with it; set CC to another"
    )
    assert findings["cache"].state == "broken"
    assert findings["cache"].detail.endswith("set EQUIV_CACHE_DIR to a folder that can be written")


def test_what_other_packages_bring_is_loaded_and_what_is_wrong_with_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = (
        "from equiv.kernels import Kernel\n"
        "def run(case, tensors): pass\n"
        "GOOD = Kernel(pair='dsa_index', summary='a kernel', entry='brought_parts:run', packages=('numpy',))\n"
        "LOST = Kernel(pair='dsa_index', summary='', entry='brought_parts:ran', packages=('numpy',))\n"
        "POOR = Kernel(pair='dsa_index', summary='', entry='brought_parts:run', packages=('moon-compiler',))\n"
    )
    points = {name: f"brought_parts:{name.upper()}" for name in ("good", "lost", "poor", "none")}
    brought.install(tmp_path, "brought_parts", source, {"equiv.kernels": points})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    findings = {name.removeprefix("kernel "): finding for name, finding in found(monkeypatch).items()}
    assert findings["good"].state == "ok"
    assert re.fullmatch(r"equiv run dsa_index\+good: \d+ cases; a kernel", findings["good"].detail)
    lost = "AttributeError: module 'brought_parts' has no attribute 'ran'"
    assert findings["lost"] == Finding("kernel lost", "broken", lost)
    assert findings["poor"].state == "absent"
    assert findings["poor"].detail.startswith("needs package:moon-compiler")
    assert findings["none"].detail.startswith("entry point equiv.kernels 'none' (brought_parts:NONE) cannot be loaded")
    assert findings["pair fake"].detail.startswith("equiv run fake needs --cases: no case file fake.toml in ")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "fake.toml").write_text("[[case]]\nid = 7\n")
    assert "$.case[0].id: expected a string" in found(monkeypatch)["pair fake"].detail


class Failing:
    """A device that cannot be made active."""

    kind = "host"
    torch_device = "cpu"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def active(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("name", "error", "state", "text"),
    [
        ("cuda:0", UnsupportedError("gpu", "none"), "absent", "needs gpu: none"),
        ("emulated:sm_90a", UnsupportedError("package:triton"), "broken", "needs package:triton"),
        ("emulated:sm_90a", DeviceError("lost"), "broken", "DeviceError: lost"),
        ("emulated:sm_90a", ImportError("no torch"), "broken", "ImportError: no torch"),
        ("emulated:sm_90a", AttributeError("no attribute\n'jit'"), "broken", "AttributeError: no attribute 'jit'"),
    ],
)
def test_a_device_that_does_not_work_says_why_and_only_a_gpu_may_be_absent(
    monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, state: str, text: str
) -> None:
    monkeypatch.setattr(doctor, "device", lambda _name: Failing(error))
    findings = list(doctor._device(name))
    assert findings == [Finding(f"{name} {compiler}", state, text) for compiler in ("Triton", "CuTe DSL")]


def test_wrong_bits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor,
        "device",
        lambda _name: SimpleNamespace(
            kind="host", torch_device="cpu", active=contextlib.nullcontext, synchronize=lambda: None
        ),
    )
    monkeypatch.setitem(sys.modules, "tripling", SimpleNamespace(run_probe=lambda x, y: y.copy_(x * 3)))
    assert doctor._probe("emulated:sm_90a", "tripling") == ("broken", "128 of 128 elements of fma(x, 3, 1) are wrong")


def test_the_exit_code_is_1_if_something_needed_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, code in (("ok", 0), ("absent", 0), ("broken", 1)):
        monkeypatch.setattr(doctor, "examine", lambda state=state: iter([Finding("a thing", state, "details")]))
        assert cli.main(["doctor"]) == code
        assert capsys.readouterr().out == f"{state:7} a thing  details\n"


@pytest.mark.parametrize(
    ("module", "how", "package", "reason"),
    [
        ("triton", "found", "triton", "ImportError: triton must not be looked for"),
        ("triton", "loaded", "triton", "OSError: libmissing.so: cannot open shared object file"),
        ("torch", "loaded", "torch", "OSError: libmissing.so: cannot open shared object file"),
        ("cutlass", "loaded", "nvidia-cutlass-dsl", "OSError: libmissing.so: cannot open shared object file"),
    ],
)
def test_a_package_that_is_installed_and_cannot_be_imported_is_broken_and_the_other_lines_are_there(
    module: str, how: str, package: str, reason: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broken_import", module, how, "doctor"], capture_output=True, text=True, check=False
    )
    lines = {tuple(line[8:34].split()): line for line in done.stdout.splitlines()}
    said = f"{version(package)}: cannot be imported: {reason}"
    assert (done.returncode, done.stderr) == (1, "")
    assert len(lines) == len(done.stdout.splitlines())
    assert len([line for line in lines if line[0] not in ("pair", "kernel")]) == 16
    assert {"kda", "dsa_index", "fake"} <= {line[1] for line in lines if line[0] == "pair"}
    assert lines[package,] == f"broken  {package:25}  {said}"
    assert lines["emulated:sm_90a", "Triton"] == f"broken  {'emulated:sm_90a Triton':25}  {package} {said}"
    assert lines["cache",].startswith("ok ")


@pytest.mark.parametrize("name", ["emulated:sm_90a", "emulated:sm_100a"])
def test_probes_have_the_right_bits_on_each_emulated_device(name: str) -> None:
    for finding in doctor._device(name):
        assert finding.state == "ok", finding
        assert finding.detail.startswith("fma(x, 3, 1) has the right bits")


def test_a_pager_that_stops_reading_is_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m equiv.cli rounding dsa_index | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("dsa.R10a")


@pytest.mark.parametrize(("ok", "state"), [(True, "ok"), (False, "broken")])
def test_a_device_whose_code_is_not_vouched_for_is_broken_and_the_evidence_is_in_words(
    monkeypatch: pytest.MonkeyPatch, *, ok: bool, state: str
) -> None:
    vouch = Vouch(ok=ok, detail="contracted PTX compared with the cubin", ptxas="ptxas 1.0")
    monkeypatch.setattr(EmulatedDevice, "vouches", lambda _self: {"image": vouch})
    monkeypatch.setitem(sys.modules, "fused", SimpleNamespace(run_probe=lambda x, y: y.copy_(x.double() * 3 + 1)))
    found = doctor._probe("emulated:sm_90a", "fused")
    assert found == (state, "fma(x, 3, 1) has the right bits; contracted PTX compared with the cubin")
