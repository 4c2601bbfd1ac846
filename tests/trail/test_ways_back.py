"""However a value travels, by registers, lanes and memories, the way back finds the instruction that made it."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from mutant_pair import PAIR, case

from equiv.mutate.scene import record
from equiv.trail.between import departure, element
from equiv.trail.command import plays, programs
from equiv.trail.played import Played
from equiv.trail.slice import Slice

if TYPE_CHECKING:
    from pathlib import Path

MADE = "mad.lo.u32 %r10, %r1, 3, 5;"
KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry way(.param .u64 t)
.reqntid 64, 1, 1
{
.reg .pred %p<4>; .reg .b16 %rs<8>; .reg .b32 %r<60>; .reg .f32 %f<20>; .reg .b64 %rd<20>;
.shared .align 16 .b8 part[4096]; .local .align 16 .b8 mine[16];
mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [t];
mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
shl.b32 %r2, %r1, 4; mov.b32 %r3, part; add.s32 %r4, %r3, %r2;
MADE
BODY
st.global.b32 [%rd3], %r11;
ret;
}
"""
WAYS = {
    "halves of a word": """mov.b32 {%rs1, %rs2}, %r10; st.shared.b16 [%r4], %rs1; st.shared.b16 [%r4+2], %rs2;
        ld.shared.b32 %r11, [%r4];""",
    "part of a vector": """st.shared.v4.b32 [%r4], {%r1, %r2, %r10, %r3}; ld.shared.v2.b32 {%r12, %r13}, [%r4];
        ld.shared.b32 %r11, [%r4+8];""",
    "a later store beside it": "st.shared.b32 [%r4], %r10; st.shared.b32 [%r4+4], %r1; ld.shared.b32 %r11, [%r4];",
    "one address for all lanes": "st.shared.b32 [%r3], %r10; ld.shared.b32 %r11, [%r3];",
    "another lane": "shfl.sync.bfly.b32 %r11, %r10, 5, 31, -1;",
    "all lanes": "redux.sync.max.u32 %r11, %r10, -1;",
    "local memory": "st.local.b32 [mine+4], %r10; ld.local.b32 %r11, [mine+4];",
    "a generic address": """cvt.u64.u32 %rd4, %r4; cvta.shared.u64 %rd5, %rd4; st.b32 [%rd5], %r10;
        ld.shared.b32 %r11, [%r4];""",
    "tiles": """stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {%r10}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r11}, [%r4];""",
    "turned tiles": """stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r4], {%r10}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r11}, [%r4];""",
    "global memory and a copy": """st.global.b32 [%rd3], %r10;
        cp.async.ca.shared.global [%r4], [%rd3], 4; cp.async.wait_all; ld.shared.b32 %r11, [%r4];""",
    "a loop": """mov.b32 %r20, 0; mov.b32 %r11, 0;
        AGAIN: add.s32 %r11, %r11, %r10; add.s32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, 3; @%p1 bra AGAIN;""",
    "a predicate": "setp.gt.u32 %p1, %r10, 40; selp.b32 %r11, 7, 9, %p1;",
    "a matrix": """cvt.rn.f32.u32 %f1, %r10; cvt.rn.bf16.f32 %rs1, %f1; mov.b32 %r21, {%rs1, %rs1};
        mov.f32 %f2, 0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f3, %f4, %f5, %f6},
        {%r21, %r21, %r21, %r21}, {%r21, %r21}, {%f2, %f2, %f2, %f2}; mov.b32 %r11, %f5;""",
}
FROM = {
    "one address for all lanes": {0},
    "another lane": {12},
    "all lanes": set(range(32)),
    "turned tiles": {9, 13},
    "a matrix": set(range(8, 16)),
}
"""Lanes whose values element 9 was made of, where it was not lane 9 alone."""
TEXT = ""


def candidate(_: object, tensors: dict[str, Any]) -> None:
    from equiv.emulator.device import EmulatedDevice
    from equiv.emulator.launch import Launch
    from equiv.emulator.store import Image, shared_store

    image = shared_store().put(Image(b"way back" + TEXT.encode(), TEXT, "sm_100a", {}))
    params = struct.pack("<Q", tensors["t"].data_ptr())
    EmulatedDevice.current[-1].run(Launch(image, "way", (1, 1, 1), (64, 1, 1), (1, 1, 1), 0, {}, params))


WAY_PAIR = replace(PAIR, candidate=replace(PAIR.candidate, entry=f"{__name__}:candidate"))


def kernel(body: str) -> str:
    return KERNEL.replace("MADE", MADE).replace("BODY", body)


@pytest.mark.parametrize("way", WAYS)
def test_the_instruction_that_made_a_value_is_found(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(WAYS[way]))
    path = tmp_path / "changed.ptx"
    path.write_text(kernel(WAYS[way]).replace(MADE, MADE.replace("3, 5", "3, 97")))
    one, other = plays(WAY_PAIR, case(), "candidate", "sm_100a", str(path))
    chosen = element(one, other, "t", None)
    assert chosen is not None
    found = departure(one, other, *chosen)
    assert {end.why for end in found.ends} == {"another instruction"}
    assert {site.text for end in found.ends for site in end.sites if site} == {MADE, MADE.replace("3, 5", "3, 97")}


def test_a_departure_within_a_loop_says_in_which_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = WAYS["a loop"]
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(body))
    path = tmp_path / "changed.ptx"
    path.write_text(kernel(body.replace("add.s32 %r11, %r11", "or.b32 %r11, %r11")))
    found = departure(*plays(WAY_PAIR, case(), "candidate", "sm_100a", str(path)), "t", (9,))
    first = [site for site in found.ends[0].sites if site is not None]
    assert [site.turn for site in first] == [1, 1]  # 0 + x is 0 | x
    assert [next(one.bits for one in site.values if one.result) for site in first] == [64, 32]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "a predicate"])
def test_a_slice_holds_it_and_ends_at_what_no_instruction_made(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(WAYS[way]))
    scene = record(WAY_PAIR, case(), "sm_100a")
    some = Slice(Played(scene, programs(scene), way, {}), "t", (9,))
    made = [number for number in range(len(some.nodes)) if some.site(number).text == MADE]
    assert {some.nodes[number].lane for number in made} == FROM.get(way, {9})
    assert not some.cut
    assert some.site(0).text == "st.global.b32 [%rd3], %r11;"
    assert some.path(made[0])[0] == 0
    assert some.path(made[0])[-1] == made[0]
    assert all(node.bits == 3 * (32 * node.view.log.thread(node.event)[1] + node.lane) + 5
               for node in (some.nodes[number] for number in made))  # fmt: skip
