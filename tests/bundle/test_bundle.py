"""`equiv repro`: a bundle runs again from its file alone, and a damaged or hostile one is refused by name."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsa_faults
import numpy as np
import pytest

from equiv.bundle import archive, contents, make, rerun
from equiv.casefile import load
from equiv.cli import main
from equiv.device import device
from equiv.dsa_index import PAIR
from equiv.emulator.record import RecordFolder
from equiv.errors import EquivError, RecordError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from equiv.records import Case

DEVICE = "emulated:sm_90a"
CASES = {case.id: case for case in load(Path(__file__).parents[2] / "cases" / "dsa_index.toml", PAIR)}


def small(name: str) -> Case:
    return replace(CASES[name], axes={**CASES[name].axes, "batch": 1})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a candidate that doubles exact powers of two."""
    path = tmp_path_factory.mktemp("bundle") / "fault.zip"
    make.make(dsa_faults.faulty("doubled_exact_powers"), small("fp8-b16-amax-edges"), device(DEVICE), path)
    return path


@pytest.fixture(scope="module")
def unpacked(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    archive.unpack(made, folder)
    return folder


def test_a_bundle_holds_the_verdict_the_inputs_and_both_parties_launches(unpacked: Path) -> None:
    bundle = contents.read(unpacked)
    case = small("fp8-b16-amax-edges")
    assert (bundle.status, bundle.runs, bundle.equal) == ("MISMATCH", make.RUNS, make.RUNS)
    assert "q_codes: MISMATCH (candidate)" in bundle.said
    assert (bundle.case.name, bundle.case.axes, bundle.case.regimes) == (case.name, case.axes, case.regimes)
    for name, bits in PAIR.inputs(case).items():
        (tensor,) = [one for one in bundle.tensors if one.spec.name == name]
        assert tensor.spec in PAIR.layout(case)
        assert tensor.bits is not None
        assert np.array_equal(tensor.bits, bits)
    folder = RecordFolder(unpacked)
    assert {party: len(folder.load(name).launches) > 0 for party, name in bundle.captures.items()} == {
        "oracle": True,
        "candidate": True,
    }
    assert all("quantize" not in name for name in bundle.environment)
    assert "triton" in bundle.environment


def test_it_runs_in_a_process_that_has_no_torch_no_compiler_and_no_pair(made: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'triton', 'cutlass', 'equiv.dsa_index', 'equiv.triton_ref', 'equiv.cute'):\n"
        "    sys.modules[name] = None\n"
        "from equiv.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    shutil.copy(made, tmp_path / "elsewhere.zip")
    done = subprocess.run(
        [sys.executable, "-c", program, "repro", "--run", "elsewhere.zip"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert "MISMATCH dsa_index::fp8-b16-amax-edges  emulated:sm_90a" in done.stdout
    assert "reproduced 2/2 in fresh processes" in done.stdout
    assert ", 0 launches skipped" in done.stdout


def test_other_bits_than_recorded_fail(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The PTX rounds a division otherwise; its hash is made to fit."""
    root = tmp_path / "b"
    archive.unpack(made, root)
    folder = RecordFolder(root)
    for path in root.glob("images/*/*.ptx"):
        text = path.read_text()
        image = folder.images.get(path.stem)
        assert image.ptx == text
        changed = text.replace("div.rn.f32", "div.rz.f32").replace(
            "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.relu.e4m3x2.f32"
        )
        for suffix in ("json", "ptx", "cubin"):
            path.with_suffix(f".{suffix}").unlink()
        RecordFolder(root).images.put(replace(image, ptx=changed))
    archive.pack(root, tmp_path / "other.zip")
    assert main(["repro", "--run", str(tmp_path / "other.zip")]) == 1
    assert "byte(s) differ: +" in capsys.readouterr().out


def test_no_image_of_a_bundle_stays_behind_for_later_runs(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIV_CACHE_DIR", str(tmp_path / "cache"))
    _, report = rerun.rerun(made)
    assert report.equal
    assert list((tmp_path / "cache").glob("images/*/*")) == []


def test_another_architecture_runs_nothing_and_says_so(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "--run", str(made), "--device", "emulated:sm_100a"]) == 1
    assert "compiled for sm_90a, emulated:sm_100a is sm_100a" in capsys.readouterr().out


def test_changed_inputs_are_the_ones_that_are_kept(tmp_path: Path) -> None:
    case = small("fp8-b17-random")
    inputs = PAIR.inputs(case)
    inputs["q"][0, 1:] = 0
    path = tmp_path / "x.zip"
    found = make.make(PAIR, case, device(DEVICE), path, inputs=inputs, changed="31 heads are 0")
    archive.unpack(path, tmp_path / "x")
    bundle = contents.read(tmp_path / "x")
    assert (bundle.changed, bundle.status, found.status) == ("31 heads are 0", "IDENTICAL", "IDENTICAL")
    (q,) = [one.bits for one in bundle.tensors if one.spec.name == "q"]
    assert np.array_equal(q, inputs["q"])  # type: ignore[arg-type]


def test_a_party_that_reads_outside_its_buffers_is_reproduced_as_that(tmp_path: Path) -> None:
    """Slots far behind the cache: the candidate's store has nowhere to go, there as here."""
    case = small("fp8-b17-random")
    inputs = PAIR.inputs(case)
    inputs["slots"][:] = 1 << 40
    path = tmp_path / "x.zip"
    made = make.make(PAIR, case, device(DEVICE), path, inputs=inputs)
    assert (made.status, made.runs, made.equal) == ("ERROR", 2, 2)
    assert "IllegalAccessError" in made.said
    root = tmp_path / "x"
    archive.unpack(path, root)
    for capture in root.glob("captures/*.json"):
        capture.write_text(capture.read_text().replace("write of 1 bytes", "write of 9 bytes"))
    archive.pack(root, tmp_path / "y.zip")
    with pytest.raises(RecordError, match=r"write of 9 bytes .* when it was recorded, now with .*write of 1 bytes"):
        rerun.rerun(tmp_path / "y.zip")


def test_it_is_not_offered_if_it_does_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "RUN", ("repro", "--device", "emulated:sm_100a", "--run"))
    with pytest.raises(RecordError, match=r"does not run again with the same bits, so there is none:\n(.|\n)*skipped"):
        make.make(PAIR, small("fp8-b17-random"), device(DEVICE), tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    class Gpu:
        kind, name, arch = "cuda", "cuda:0", "sm_90a"

    with pytest.raises(UnsupportedError, match="device:emulated: cuda:0 does not record"):
        make.make(PAIR, small("fp8-b17-random"), Gpu(), tmp_path / "x.zip")  # type: ignore[arg-type]
    (tmp_path / "y.zip").touch()
    with pytest.raises(RecordError, match=r"y.zip: is there already"):
        make.make(PAIR, small("fp8-b17-random"), device(DEVICE), tmp_path / "y.zip")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "repro takes a case, PAIR::CASE, or --run FILE"),
        (["dsa_index"], "cases; wanted one, PAIR::CASE"),
        (["--run", "x.zip", "--out", "y.zip"], "repro --run takes no --out and no --cases"),
        (["--run", "none.zip"], "none.zip: cannot be read: No such file"),
    ],
)
def test_a_line_that_means_nothing_is_a_usage_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repro", *arguments]) == 2
    assert said in capsys.readouterr().err


def members(path: Path, *entries: tuple[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in entries:
            file.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["../x.json", "/etc/x", "captures/../../x.json", "blobs/aa/x.z", "a\\b", "images/"])
def test_a_member_of_another_name_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    path = members(tmp_path / "x.zip", ("bundle.json", b"{}"), (name, b""))
    with pytest.raises(RecordError, match="no part of a bundle is called so"):
        archive.unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_compressed_a_doubled_and_a_missing_member_are_refused(tmp_path: Path) -> None:
    bomb = members(tmp_path / "a.zip", ("bundle.json", bytes(1 << 22)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(RecordError, match=r"'bundle.json' is compressed"):
        archive.unpack(bomb, tmp_path / "out")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = members(tmp_path / "b.zip", ("bundle.json", b"{}"), ("bundle.json", b"{}"))
    with pytest.raises(RecordError, match=r"'bundle.json' is there twice"):
        archive.unpack(twice, tmp_path / "out")
    with pytest.raises(RecordError, match=r"no bundle.json in it"):
        archive.unpack(members(tmp_path / "c.zip"), tmp_path / "out")
    big = members(tmp_path / "d.zip", ("bundle.json", b"{}"), (f"images/aa/{'a' * 64}.json", bytes(1 << 17)))
    with pytest.raises(RecordError, match="has 131072 bytes, 65536 at most"):
        archive.unpack(big, tmp_path / "out")
    (tmp_path / "e.zip").write_bytes(b"PK no zip")
    with pytest.raises(RecordError, match="not a bundle, or damaged: File is not a zip file"):
        archive.unpack(tmp_path / "e.zip", tmp_path / "out")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = members(tmp_path / "x.zip", ("bundle.json", b"{}"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"'bundle.json' is encrypted"):
        archive.unpack(path, tmp_path / "out")


def edited(unpacked: Path, tmp_path: Path, change: Callable[[Any], object]) -> Path:
    root = tmp_path / "edited"
    shutil.copytree(unpacked, root)
    data = json.loads((root / "bundle.json").read_text())
    change(data)
    (root / "bundle.json").write_text(json.dumps(data))
    return root


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(schema="pickle"), "schema 'pickle' version 1, this reads 'equiv.bundle' 1"),
        (lambda data: data["tensors"][0].update(role="code"), r"\$.tensors\[0\].role is 'code', wanted one of input"),
        (lambda data: data["tensors"][0].update(strides=[0, 0, 0]), r"\$.tensors\[0\]: tensor 'q': elements overlap"),
        (lambda data: data["tensors"][0].update(format="f99"), r"\$.tensors\[0\].format is 'f99', wanted one of"),
        (lambda data: data["tensors"][0].update(shape=[1, 32, 64]), r"\$.tensors\[0\].bits is .* wanted uint16 of"),
        (lambda data: data["captures"].update(oracle="../../x"), r"\$.captures.oracle is '../../x', wanted a text"),
        (lambda data: data["captures"].update(third="x"), r"\$.captures is .*, wanted captures of oracle"),
        (lambda data: data["captures"].update(oracle="x"), r"captures/x.json: No such file"),
        (lambda data: data["verdict"].update(status="FINE"), r"\$.verdict.status is 'FINE', wanted one of IDENTICAL"),
        (lambda data: data["reproduced"].update(equal=3), r"\$.reproduced.equal is 3, wanted an integer in 0..2"),
        (
            lambda data: data["tensors"][3].update(bits=data["tensors"][2]["bits"]),
            "starts with other bits of norm_b than",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(unpacked: Path, tmp_path: Path, change: Callable[[Any], object], said: str) -> None:
    with pytest.raises(RecordError, match=said):
        contents.read(edited(unpacked, tmp_path, change))


def flips(data: bytes, count: int) -> Iterator[bytes]:
    """Copies with one to three bits changed, half of them where a zip says what is in it."""
    draw = random.Random(11)
    directory = data.rindex(b"PK\x01\x02", 0, data.index(b"PK\x01\x02") + 4)
    for number in range(count):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(directory if number % 2 else 0, len(data))
            changed[at] ^= 1 << draw.randrange(8)
        yield bytes(changed)


def test_bits_flipped_anywhere_are_found_or_change_nothing_and_nothing_is_executed(
    made: Path, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equiv.emulator.engine.launch", lambda *_, **__: pytest.fail("something was executed"))
    whole = contents.read(unpacked)
    refused = 0
    for number, data in enumerate(flips(made.read_bytes(), 200)):
        path, root = tmp_path / "x.zip", tmp_path / str(number)
        path.write_bytes(data)
        try:
            archive.unpack(path, root)
            found = contents.read(root)
        except EquivError:
            refused += 1
            continue
        assert [one.spec for one in found.tensors] == [one.spec for one in whole.tensors]
    assert refused > 150


def test_a_folder_that_is_no_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        archive.unpack(tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="cannot be written"):
        archive.pack(tmp_path, tmp_path / "none" / "x.zip")
