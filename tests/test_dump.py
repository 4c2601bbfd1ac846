"""`equiv dump` and `equiv compare`: outputs of one machine judged on another, and what damaged dumps lead to."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equiv_fake
import numpy as np
import pytest

from equiv import dump, dump_compare, stored
from equiv.cli import main
from equiv.dump import Dumped, DumpFolder
from equiv.emulator.content import BlobStore
from equiv.errors import EquivError, RecordError, UsageError
from equiv.fields import Field
from equiv.records import Case
from equiv.report.dumped import render

if TYPE_CHECKING:
    from pathlib import Path

CASE = Case("fake", "one", "why", 3, ("pr",), {"n": 8, "behaviour": "good"}, {"x": "random"})


def dumped(behaviour: str = "good", seed: int = 3, device: str = "emulated:sm_100a", name: str = "one") -> Dumped:
    case = replace(CASE, id=name, seed=seed, axes={"n": 8, "behaviour": behaviour})
    found = dump.run(equiv_fake.PAIR, case, equiv_fake.inputs(case), equiv_fake.HostDevice(device))
    return replace(found, case=replace(found.case, axes=dict(CASE.axes)))  # so that both state the same case


def saved(root: Path, *found: Dumped) -> DumpFolder:
    folder = DumpFolder(root)
    for one in found:
        folder.save(one)
    return folder


def test_a_dump_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    folder = saved(tmp_path, dumped("wrong"))
    (path,) = folder.files().values()
    found, made = folder.load(path), dumped("wrong")
    assert (found.case, found.device, found.arch, found.inputs) == (made.case, made.device, made.arch, made.inputs)
    for name, left in made.parties.items():
        assert found.parties[name].toolchain == left.toolchain
        for output, bits in left.outputs.items():
            got = found.parties[name].outputs[output]
            assert got.dtype == bits.dtype
            assert np.array_equal(got, bits)


def test_equal_dumps_of_two_devices_are_equal_and_counted(tmp_path: Path) -> None:
    left, right = saved(tmp_path / "a", dumped()), saved(tmp_path / "b", dumped(device="emulated:sm_90a"))
    (one,) = dump_compare.compare(left, right)
    assert one.equal
    assert (one.outputs, one.elements) == (4, 2 * (8 + 15))
    assert (
        "1 case(s), 1 equal, 4 outputs with 46 elements compared, emulated:sm_100a against emulated:sm_90a"
        in render([one])
    )


def test_a_difference_names_party_place_bits_and_ulps(tmp_path: Path) -> None:
    left, right = saved(tmp_path / "a", dumped()), saved(tmp_path / "b", dumped("wrong"))
    (one,) = dump_compare.compare(left, right)
    ((party, difference),) = one.differences
    assert (party, difference.output, difference.count, difference.total) == ("candidate", "y", 1, 8)
    (element,) = difference.worst
    assert (element.index, element.ulps, element.got_bits - element.expected_bits) == ((3,), 1, 1)
    text = render([one])
    assert "DIFFERENT fake::one  seed 3" in text
    assert "  candidate: y\n    1 of 8 differ, A (expected) against B (got)" in text
    assert "[3] element 3  expected 0x" in text


def test_missing_cases_and_other_seeds_are_named(tmp_path: Path) -> None:
    left = saved(tmp_path / "a", dumped(), dumped(name="two"))
    right = saved(tmp_path / "b", dumped(seed=4))
    found = {(one.case, one.seed): one.problems for one in dump_compare.compare(left, right)}
    assert found == {
        ("fake::one", 3): ("only in A; B has it with seed 4",),
        ("fake::one", 4): ("only in B; A has it with seed 3",),
        ("fake::two", 3): ("only in A",),
    }


def test_other_axes_and_inputs_are_named_and_outputs_not_compared() -> None:
    ours = dumped()
    theirs = replace(ours, case=replace(ours.case, axes={"n": 9, "behaviour": "good"}), inputs=ours.inputs | {"x": "0"})  # type: ignore[operator]
    found = dump_compare.of(ours, theirs)
    assert found.problems == (
        "axes.n is 8 in A, 9 in B",
        "other inputs in A and B, so outputs are not compared: x",
    )
    assert (found.outputs, found.equal) == (0, False)


def test_a_party_that_was_stopped_and_one_that_wrote_outside_are_problems() -> None:
    found = dump_compare.of(dumped("raises"), dumped("overruns"))
    assert any("candidate: stopped in A: candidate: " in one and "seven is not a tile" in one for one in found.problems)
    assert any("candidate: other memory faults, A: none, B: `y` guard after must not" in one for one in found.problems)
    assert found.outputs == 2  # the oracle's


def test_undefined_elements_do_not_count() -> None:
    ours, theirs = dumped(), dumped("wrong")
    mask = {"y": (np.arange(8) == 3).astype(np.uint8)}
    found = dump_compare.of(replace(ours, undefined=mask), replace(theirs, undefined=mask))
    assert (found.equal, found.elements) == (True, 2 * (7 + 15))
    assert dump_compare.of(ours, replace(theirs, undefined=mask)).problems == (
        "output y: other elements are undefined in A and B",
    )


def test_places_are_the_pairs_own_and_declared_differences_are_said_where_the_pair_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declaration(party: str, versions: object, arch: str, form: str) -> Any:
        return equiv_fake.declares(party, carry=arch == "sm_90a")

    pair = equiv_fake.make(place=lambda *_: "under the sofa", declaration=declaration)
    monkeypatch.setattr("equiv.pairs.get", lambda _name: pair)
    found = dump_compare.of(dumped(), dumped("wrong", device="emulated:sm_90a"))
    assert found.declared == ("candidate: fake.1: A no carry, B carry",)
    assert "  declared  candidate: fake.1: A no carry, B carry" in render([found])
    ((_, difference),) = found.differences
    assert difference.worst[0].place == "under the sofa"


@pytest.mark.parametrize("axes", [{"n": 1 << 40, "behaviour": "good"}, {"n": 8}, {"n": 8, "behaviour": "odd"}])
def test_a_dump_that_states_what_no_case_file_could_reaches_no_pair(axes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equiv.pairs.get", lambda _name: equiv_fake.make(inputs=lambda _case: pytest.fail("reached")))
    ours, theirs = (replace(one, case=replace(one.case, axes=axes)) for one in (dumped(), dumped("wrong")))
    ((_, difference),) = dump_compare.of(ours, theirs).differences
    assert difference.worst[0].place == "element 3"


def test_what_only_the_candidate_promises_is_not_asked_of_the_oracle() -> None:
    ours = dumped()
    specs = {name: replace(spec, contract="candidate") for name, spec in ours.specs.items()}
    parties = {**ours.parties, "oracle": dumped(seed=4).parties["oracle"]}
    found = dump_compare.of(replace(ours, specs=specs), replace(ours, specs=specs, parties=parties))
    assert (found.equal, found.outputs) == (True, 2)


def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, *selectors: str) -> int:
    cases = tmp_path / "cases"
    cases.mkdir(exist_ok=True)
    text = 'pair = "fake"\n[defaults]\nsuites = ["pr"]\n'
    for name in ("good", "wrong", "raises", "needs_moon"):
        text += f'[[case]]\nid = "{name}"\nwhy = "w"\nseed = 1\naxes = {{ behaviour = "{name}" }}\n'
    (cases / "fake.toml").write_text(text)
    monkeypatch.setattr("equiv.debugging.device", equiv_fake.HostDevice)
    return main(["dump", *selectors, "--cases", str(cases), "--out", str(tmp_path / out)])


def test_the_commands_and_their_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert command_line(tmp_path, monkeypatch, "a", "fake::good", "fake::wrong") == 0
    assert command_line(tmp_path, monkeypatch, "b", "fake::good", "fake::wrong") == 0
    assert main(["compare", a, b]) == 0
    assert "2 case(s), 2 equal, 8 outputs" in capsys.readouterr().out
    assert command_line(tmp_path, monkeypatch, "b", "fake::good") == 2
    assert "is there already: name another folder" in capsys.readouterr().err
    assert command_line(tmp_path, monkeypatch, "c", "fake::good", "fake::raises") == 1
    assert "fake::raises: candidate: candidate: " in capsys.readouterr().err
    assert command_line(tmp_path, monkeypatch, "e", "fake::needs_moon") == 0  # the oracle's are kept
    assert main(["compare", a, str(tmp_path / "c")]) == 1
    assert main(["compare", a, str(tmp_path / "none")]) == 2
    assert "none: no dump: cases/*.json is missing" in capsys.readouterr().err


def edited(tmp_path: Path, change: Any) -> Path:
    """A dump whose JSON somebody changed."""
    folder = saved(tmp_path, dumped())
    (path,) = folder.files().values()
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def y(data: Any) -> Any:
    return data["parties"]["candidate"]["outputs"]["y"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=2), "schema 'equiv.dump' version 2, this reads 'equiv.dump' 1"),
        (lambda data: data.pop("arch"), r"\$ has missing or unknown fields: arch"),
        (lambda data: data["case"].update(seed=-1), r"\$.case.seed is -1, wanted an integer in 0.."),
        (lambda data: data["case"].update(pair="../../x"), r"\$.case.pair is '../../x', wanted a text like"),
        (lambda data: data["case"]["axes"].update(n=[1]), r"\$.case.axes.n is \[1\], wanted an integer, a finite"),
        (lambda data: data["outputs"][0].update(format="f31"), r"\$.outputs\[0\].format is 'f31', wanted one of"),
        (lambda data: y(data).update(dtype="object"), r"candidate.outputs.y.dtype is 'object', wanted one"),
        (lambda data: y(data).update(dtype="uint8"), r"outputs.y.extents\[0\]\[1\] is 32, wanted an integer in 1..8"),
        (lambda data: y(data).update(shape=[1 << 31, 1 << 31]), r"outputs.y.shape is .*, wanted at most 8 dimensions"),
        (lambda data: y(data).update(shape=[2, 4]), r"outputs.y.shape is \[2, 4\], wanted 1 dimensions: element"),
        (lambda data: y(data).update(shape=[0, 1 << 40]), r"outputs.y.shape\[1\] is 1099511627776, wanted an integer"),
        (lambda data: y(data)["extents"][0].__setitem__(2, "../" * 10), r"y.extents\[0\]\[2\] is .*, wanted a text"),
        (lambda data: y(data).update(sha256="0" * 64), r"outputs.y.sha256 is '0+', wanted [0-9a-f]{64}, the digest"),
        (lambda data: data["parties"]["oracle"]["outputs"].pop("y"), r"oracle.outputs has missing .* fields: y"),
        (lambda data: data["parties"].update(third={}), r"\$.parties has missing or unknown fields: third"),
        (
            lambda data: data.update(
                undefined={"pool": data["parties"]["oracle"]["outputs"]["pool"] | {"shape": [5, 3]}}
            ),
            r"\$.undefined.pool.shape is \[5, 3\], wanted \[3, 5\], as pool of the oracle",
        ),
        (lambda data: data.update(undefined={"z": y(data)}), r"\$.undefined.z is .*, wanted nothing: no output has"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, change: Any, said: str) -> None:
    path = edited(tmp_path, change)
    with pytest.raises(RecordError, match=said):
        DumpFolder(tmp_path).load(path)


def test_a_blob_that_expands_without_end_costs_no_more_than_the_array(tmp_path: Path) -> None:
    folder = saved(tmp_path, dumped())
    (path,) = folder.files().values()
    name = y(json.loads(path.read_text()))["extents"][0][2]
    (tmp_path / "blobs" / name[:2] / f"{name}.z").write_bytes(zlib.compress(bytes(1 << 24)))
    with pytest.raises(RecordError, match=r"more bytes in .*, the record says 32"):
        folder.load(path)


def test_no_byte_flipped_anywhere_gets_through_or_raises_anything_but_a_clear_error(tmp_path: Path) -> None:
    folder = saved(tmp_path, dumped())
    (path,) = folder.files().values()
    whole = folder.load(path)
    draw = random.Random(7)
    files = sorted(one for one in tmp_path.rglob("*") if one.is_file())
    refused = 0
    for _ in range(400):
        file = draw.choice(files)
        good = file.read_bytes()
        at = draw.randrange(len(good))
        file.write_bytes(good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :])
        try:
            found = folder.load(path)
        except EquivError as error:
            refused += str(tmp_path) in str(error)
        else:  # a letter of a text, or a bit of a blob that its inflated bytes do not depend on
            for name, left in whole.parties.items():
                assert all(np.array_equal(found.parties[name].outputs[one], bits) for one, bits in left.outputs.items())
        file.write_bytes(good)
    assert refused > 200


def test_two_files_that_state_one_case_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, dumped())
    (path,) = folder.files().values()
    (path.parent / "zz.json").write_bytes(path.read_bytes())
    with pytest.raises(RecordError, match=r"zz.json: \$.case is fake::one seed 3, as in"):
        folder.files()


def test_an_index_is_json_of_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, said in ((b"{", "no JSON"), (b"[" * 100000, "no JSON"), (b"\xff", "no JSON"), (b"9" * 5000, "no JSON")):
        path.write_bytes(text)
        with pytest.raises(RecordError, match=said):
            Field.read(path)
    path.write_bytes(b"[1, 2]")
    with pytest.raises(RecordError, match="6 bytes, an index has 5 at most"):
        Field.read(path, 5)
    with pytest.raises(RecordError, match="No such file"):
        Field.read(tmp_path / "none.json")


def test_empty_arrays_are_kept_and_none_larger_than_4_gib_is_read(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    kept = stored.keep(np.zeros((0, 3), dtype=np.uint16), blobs)
    assert stored.array(Field("f", "$", kept), blobs).shape == (0, 3)
    with pytest.raises(RecordError, match="wanted at most 8 dimensions and 4294967296 bytes"):
        stored.array(Field("f", "$", kept | {"shape": [1 << 16, 1 << 16]}), blobs)


def test_no_folder_that_cannot_be_written_is_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cases").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        DumpFolder(tmp_path).save(dumped())
