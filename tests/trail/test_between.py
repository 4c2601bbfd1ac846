"""Two plays of one case: the instruction that was changed, or the race, is what the way back ends at."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from mutant_pair import PAIR, PTX, case

from equiv.errors import UsageError
from equiv.mutate.scene import record
from equiv.report.trail import between
from equiv.trail.between import departure, element
from equiv.trail.command import plays, programs
from equiv.trail.played import Played

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from equiv.mutate.scene import Scene
    from equiv.trail.between import Departure
    from equiv.trail.site import Site


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    found = record(PAIR, case(), "sm_100a")
    yield found
    found.close()


def compared(tmp_path: Path, old: str, new: str, output: str | None = None, **how: Any) -> tuple[Departure, str]:
    """What is found between the pair's PTX and the same with a change."""
    assert PTX.count(old) == 1
    path = tmp_path / "changed.ptx"
    path.write_text(PTX.replace(old, new))
    one, other = plays(PAIR, case(), "candidate", "sm_100a", str(path))
    chosen = element(one, other, output, None)
    assert chosen is not None
    found = departure(one, other, *chosen)
    return found, between(case(), "candidate", one, other, found)


def site_of(found: Departure) -> Site:
    """The instruction that departs."""
    site = found.ends[0].site
    assert site is not None
    return site


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mul.f32 %f2, %f1, 0f40400000;", "mul.f32 %f2, %f1, 0f40500000;"),
        ("cvt.rn.bf16.f32 %rs1, %f2;", "cvt.rz.bf16.f32 %rs1, %f2;"),
        ("add.f32 %f5, %f4, 0f3F800000;", "sub.f32 %f5, %f4, 0f3F800000;"),
        ("and.b32 %r4, %r3, -1;", "and.b32 %r4, %r1, -1;"),
        ("xor.b32 %r8, %r6, 252;", "xor.b32 %r8, %r6, 248;"),
        ("add.s32 %r12, %r11, %r10;", "sub.s32 %r12, %r11, %r10;"),
        ("st.shared.b32 [%r7], %r2;", "st.shared.b32 [%r7], %r3;"),
        ("setp.ge.u32 %p1, %r1, %r2;", "setp.ge.u32 %p1, %r1, 20;"),
    ],
)
def test_a_changed_instruction_is_where_the_plays_depart(tmp_path: Path, old: str, new: str) -> None:
    found, text = compared(tmp_path, old, new)
    end = found.ends[0]
    assert new.split(maxsplit=1)[0] in {site.text.split()[0] for site in end.sites if site}, text
    assert PTX.splitlines()[site_of(found).line - 1].find(old) >= 0, text


def test_a_departure_tells_the_thread_and_the_operands_of_both(tmp_path: Path) -> None:
    found, text = compared(tmp_path, "add.f32 %f5, %f4, 0f3F800000;", "add.f32 %f5, %f4, 0f3F800001;")
    first, site = found.ends[0], site_of(found)
    assert site.kernel == "scale"
    assert (site.cta, site.warp, site.lane, site.turn) == ((0, 0, 0), 0, found.index[0], 0)
    made = [next(value for value in site.values if value.result) for site in first.sites if site]
    assert [value.bits for value in made] == list(found.bits)
    assert f"0x{found.bits[0]:08x} ({struct.unpack('<f', struct.pack('<I', found.bits[0]))[0]:.9g})" in text


def test_the_way_back_leads_through_shared_memory_into_an_earlier_launch(tmp_path: Path) -> None:
    found, text = compared(tmp_path, "mul.f32 %f2, %f1, 0f40400000;", "mul.f32 %f2, %f1, 0f40800000;", "t")
    assert found.output == "t"
    assert [site and site.launch for site in found.stores] == [1, 1]
    assert site_of(found).launch == 0
    assert site_of(found).text == "mul.f32 %f2, %f1, 0f40400000;"
    assert "mul.f32 %f2, %f1, 0f40800000;" in text


def test_equal_plays_have_no_element_to_begin_with(scene: Scene) -> None:
    code = programs(scene)
    one, other = (Played(scene, code, words, how) for words, how in (("plain", {}), ("late", {"completion": "late"})))
    assert element(one, other, None, None) is None
    assert "the two leave the same bits in every output" in between(case(), "candidate", one, other, None)
    assert between(case(), "candidate", one, other, None, output="t").endswith("the two leave the same bits in t")


def test_an_output_or_an_element_that_is_not_there_is_said(scene: Scene) -> None:
    one = Played(scene, programs(scene), "plain", {})
    with pytest.raises(UsageError, match="no output 'z'; known: y, t"):
        element(one, one, "z", None)
    with pytest.raises(UsageError, match=r"output 'y' has shape \(40,\): no element \(40,\)"):
        element(one, one, "y", (40,))


def test_an_element_that_both_plays_leave_alike_is_no_departure(scene: Scene) -> None:
    one = Played(scene, programs(scene), "plain", {})
    with pytest.raises(UsageError, match=rf"y\[3\]: both plays leave 0x{int(one.outputs['y'][3]):x}$"):
        element(one, one, "y", (3,))


def test_what_the_contract_leaves_undefined_is_neither_begun_with_nor_counted(tmp_path: Path) -> None:
    path = tmp_path / "changed.ptx"
    path.write_text(PTX.replace("mul.f32 %f2, %f1, 0f40400000;", "mul.f32 %f2, %f1, 0f40800000;"))
    one, other = plays(PAIR, case("open"), "candidate", "sm_100a", str(path))
    assert one.outputs["y"][3] != other.outputs["y"][3]
    with pytest.raises(UsageError, match=r"y\[3\]: the contract leaves it undefined"):
        element(one, other, "y", (3,))
    differ = int((one.outputs["y"] != other.outputs["y"]).sum())
    assert departure(one, other, "y", (4,)).count == differ - 1


def test_a_way_back_that_ends_nowhere_says_so(tmp_path: Path, scene: Scene) -> None:
    found, text = compared(tmp_path, "cvt.rn.bf16.f32 %rs1, %f2;", "cvt.rz.bf16.f32 %rs1, %f2;")
    played = Played(scene, programs(scene), "plain", {})
    assert "found no instruction that departs" not in text
    lost = between(case(), "candidate", played, played, replace(found, ends=()))
    assert lost.endswith("the way back found no instruction that departs")
    cut = between(case(), "candidate", played, played, replace(found, ends=(), cut=True))
    assert cut.endswith("pairs of executions looked at; there are more")
    assert "found no instruction" not in cut


RACY = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry racy(.param .u64 y)
.reqntid 64, 1, 1
{
.reg .b32 %r<20>; .reg .b64 %rd<10>; .shared .align 16 .b8 part[256];
mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [y];
and.b32 %r2, %r1, 31; shl.b32 %r3, %r2, 2; mov.b32 %r4, part; add.s32 %r5, %r4, %r3;
st.shared.b32 [%r5], %r1;
bar.sync 0;
ld.shared.b32 %r6, [%r5];
mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r6;
ret;
}
"""


def racy(_: object, tensors: dict[str, Any]) -> None:
    from equiv.emulator.device import EmulatedDevice
    from equiv.emulator.launch import Launch
    from equiv.emulator.store import Image, shared_store

    image = shared_store().put(Image(b"racy", RACY, "sm_100a", {}))
    params = struct.pack("<Q", tensors["t"].data_ptr())
    EmulatedDevice.current[-1].run(Launch(image, "racy", (1, 1, 1), (64, 1, 1), (1, 1, 1), 0, {}, params))


def test_a_race_is_told_by_the_two_stores_whose_order_decides() -> None:
    pair = replace(PAIR, candidate=replace(PAIR.candidate, entry=f"{__name__}:racy"))
    for seed in range(1, 65):
        one, other = plays(pair, case(), "candidate", "sm_100a", f"shuffled:{seed}")
        chosen = element(one, other, "t", None)
        if chosen is not None:
            break
    else:
        pytest.fail("the race shows in none of 64 orders")
    end = departure(one, other, *chosen).ends[0]
    assert end.why == "the same bytes, last written by different stores"
    sites = [site for site in end.sites if site is not None]
    assert [site.text for site in sites] == ["st.shared.b32 [%r5], %r1;"] * 2
    assert {site.warp for site in sites} == {1, 0}
    assert len({site.lane for site in sites}) == 1


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("early", "--against 'early' is no way to play a case; known: late, shuffled"),
        ("shuffled:x", "--against 'shuffled:x' is no way to play a case; known: late, shuffled"),
        ("shuffled:\N{SUPERSCRIPT TWO}", "is no way to play a case; known: late, shuffled"),
        ("late:1", "--against 'late:1' is no way to play a case; known: late, shuffled"),
        (
            "no_module:run",
            "--against no_module:run: cannot be loaded: ModuleNotFoundError: No module named 'no_module'",
        ),
        ("equiv.pairs:nosuch", "--against equiv.pairs:nosuch: cannot be loaded: AttributeError: .*'nosuch'"),
        ("emulated:sm_80", "device 'emulated:sm_80' does not show its instructions; known: emulated:sm_90a"),
        ("nothing.ptx", "--against nothing.ptx: cannot be read: .*No such file"),
    ],
)
def test_a_way_that_is_none_is_said(way: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plays(PAIR, case(), "candidate", "sm_100a", way)


def test_a_ptx_file_without_the_launched_kernels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "racy.ptx"
    path.write_text(RACY)
    with pytest.raises(UsageError, match=r"has the kernels racy; launched are scale, total"):
        plays(PAIR, case(), "candidate", "sm_100a", str(path))
