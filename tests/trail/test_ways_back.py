"""However a value travels, by registers, lanes and memories, the way back finds the instruction that made it."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from mutant_pair import PAIR, case

from equiv.mutate.scene import record
from equiv.trail.between import departure, element
from equiv.trail.command import plays, programs
from equiv.trail.played import Played
from equiv.trail.slice import Slice
from equiv.trail.stage import Execution, located

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.trail.site import Site

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
    "a copy of some bytes": """st.global.b32 [%rd3], %r10; mov.b32 %r20, 2;
        cp.async.ca.shared.global [%r4], [%rd3], 4, %r20; cp.async.wait_all; ld.shared.b32 %r11, [%r4];""",
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


def launch(text: str, *tensors: Any, ctas: int = 1, threads: int = 64) -> None:
    """Runs a kernel called `way` on the active device."""
    from equiv.emulator.device import EmulatedDevice
    from equiv.emulator.launch import Launch
    from equiv.emulator.store import Image, shared_store

    image = shared_store().put(Image(b"way back" + text.encode(), text, "sm_100a", {}))
    params = struct.pack(f"<{len(tensors)}Q", *(tensor.data_ptr() for tensor in tensors))
    given = tuple((f"tensor{number}", tensor) for number, tensor in enumerate(tensors))
    shape = (ctas, 1, 1), (threads, 1, 1), (1, 1, 1)
    EmulatedDevice.current[-1].run(Launch(image, "way", *shape, 0, {}, params, given))


def host(t: Any) -> None:
    """What the candidate does with its tensor."""
    launch(TEXT, t)


def candidate(_: object, tensors: dict[str, Any]) -> None:
    host(tensors["t"])


def other(case: object, tensors: dict[str, Any]) -> None:
    """Another version: factors in another order, and something else added to their product."""
    text = TEXT.replace("%r10, %r1, %r2", "%r1, %r10, %r2").replace("shl.b32 %r2, %r1, 4", "shl.b32 %r2, %r1, 5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.TEXT", text)
        candidate(case, tensors)


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


def sliced(index: int) -> Slice:
    """What an element of the kernel as it is now was made of."""
    scene = record(WAY_PAIR, case(), "sm_100a")
    return Slice(Played(scene, programs(scene), "plain", {}), "t", (index,))


def sites(some: Slice) -> list[Site]:
    return [some.site(number) for number in range(len(some.nodes))]


@pytest.mark.parametrize("count", ["mov.b32 %r20, 0;", "mov.b32 %r20, 2;", "setp.ne.u32 %p1, %r2, 1;"])
def test_bytes_that_a_copy_fills_with_zeros_are_copied_from_nowhere(
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "%p1" if "%p1" in count else "%r20"
    body = f"""st.global.b32 [%rd3], %r10; {count} cp.async.ca.shared.global [%r4], [%rd3], 4, {last};
        cp.async.wait_all; ld.shared.u16 %r11, [%r4+2];"""
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(body))
    some = sliced(9)
    assert [site.text.split()[0] for site in sites(some)] == [
        "st.global.b32",
        "ld.shared.u16",
        "cp.async.ca.shared.global",
    ]
    assert not some.nodes[-1].made
    assert len(some.read()) == 0
    reads = some.nodes[-1].view.memory.read(0)
    assert sorted({int(size) for _, size in reads}) == ([2] if count == "mov.b32 %r20, 2;" else [])


@pytest.mark.parametrize(("old", "new"), [("%r20, 0;", "%r20, 4;"), ("%r20, 2;", "%r20, 3;"), ("%r20, 4;", "%r20, 0;")])
def test_a_copy_of_fewer_bytes_departs_where_their_number_does(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""shl.b32 %r10, %r10, 16; or.b32 %r10, %r10, 1; st.global.b32 [%rd3], %r10; mov.b32 {old}
        cp.async.ca.shared.global [%r4], [%rd3], 4, %r20; cp.async.wait_all; ld.shared.b32 %r11, [%r4];"""
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(body))
    path = tmp_path / "changed.ptx"
    path.write_text(kernel(body.replace(f"mov.b32 {old}", f"mov.b32 {new}")))
    found = departure(*plays(WAY_PAIR, case(), "candidate", "sm_100a", str(path)), "t", (9,))
    assert {site.text for end in found.ends for site in end.sites if site} == {f"mov.b32 {old}", f"mov.b32 {new}"}


def test_what_a_copy_fills_with_zeros_in_both_plays_does_not_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = WAYS["a copy of some bytes"]
    monkeypatch.setattr(f"{__name__}.TEXT", kernel(body))
    path = tmp_path / "changed.ptx"
    path.write_text(kernel(body).replace(MADE, MADE.replace("3, 5", "3, 97")))
    found = departure(*plays(WAY_PAIR, case(), "candidate", "sm_100a", str(path)), "t", (9,))
    assert [end.why for end in found.ends] == ["another instruction"]


FIRST = kernel("mov.b32 %r11, %r10;")
AGAIN = kernel("ld.global.b32 %r11, [%rd3];")


def test_what_the_host_wrote_between_launches_was_made_by_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(t: Any) -> None:
        launch(FIRST, t)
        t[9] = 5
        launch(AGAIN, t)

    monkeypatch.setattr(f"{__name__}.host", writing)
    some = sliced(9)
    assert int(some.played.outputs["t"][9]) == 5
    assert [site.text for site in sites(some)] == ["st.global.b32 [%rd3], %r11;", "ld.global.b32 %r11, [%rd3];"]
    assert [size for _, size in some.read().tolist()] == [4]  # the whole element, though three of its bytes stayed
    beside = sliced(10)
    assert MADE in {site.text for site in sites(beside)}
    assert len(beside.read()) == 0


def test_what_a_launch_stored_after_the_host_wrote_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(t: Any) -> None:
        launch(FIRST, t)
        t[9] = 5
        launch(FIRST, t)
        launch(AGAIN, t)

    monkeypatch.setattr(f"{__name__}.host", writing)
    assert [site.launch for site in sites(sliced(9)) if site.text == MADE] == [1]


@pytest.mark.parametrize(("added", "launches"), [(0, [0]), (1, [])])
def test_what_a_launch_left_in_memory_that_the_next_was_not_given_is_followed_if_the_host_left_it(
    added: int, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernel("ld.param.b64 %rd6, [w]; add.s64 %rd7, %rd6, %rd2; ld.global.b32 %r11, [%rd7];")
    text = text.replace("way(.param .u64 t)", "way(.param .u64 t, .param .u64 w)")

    def keeping(t: Any) -> None:
        own = torch.zeros(64, dtype=torch.int32)
        launch(FIRST, own)
        launch(FIRST, t)
        own[9] += added
        launch(text, t, own)

    monkeypatch.setattr(f"{__name__}.host", keeping)
    assert [site.launch for site in sites(sliced(9)) if site.text == MADE] == launches


def test_what_other_ctas_of_the_launch_store_is_said_to_be_of_unknown_order(monkeypatch: pytest.MonkeyPatch) -> None:
    text = kernel("""mov.u32 %r20, %ctaid.x; setp.eq.u32 %p1, %r20, 0; mov.b32 %r11, %r10;
        @!%p1 ld.global.b32 %r11, [%rd3]; @!%p1 add.s64 %rd3, %rd3, 128;""")
    text = text.replace(".reqntid 64", ".reqntid 32")
    monkeypatch.setattr(f"{__name__}.host", lambda t: launch(text, t, ctas=2, threads=32))
    ours, theirs = sliced(9), sliced(41)
    assert {node.unseen for node in ours.nodes} == {""}
    loads = {site.text: node.unseen for site, node in zip(sites(theirs), theirs.nodes, strict=True)}
    assert loads["@!%p1 ld.global.b32 %r11, [%rd3];"] == "when other CTAs of the launch store what is read"
    assert [site.cta for site in sites(theirs) if site.text == MADE] == [(0, 0, 0)]


def test_a_row_departs_only_where_its_value_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", kernel("add.u32 %r12, %r10, 3200000; add.u32 %r11, %r12, 7;"))
    some, ledger = sliced(9), {"r": SimpleNamespace(value="the sum")}

    def row(operand: int, result: int, name: str = "r", width: int = 32) -> Execution:
        return Execution(name, (np.array([operand], np.uint32),), np.array([result], np.uint32), width)

    held = 3200000 + 32
    assert located(some, [row(held, held + 7)], ledger, "r") is None  # type: ignore[arg-type]
    found = located(some, [row(held, held + 7), row(held, held + 8)], ledger, "r")  # type: ignore[arg-type]
    assert found is not None
    assert (found.expected, some.site(found.node).text) == (held + 8, "add.u32 %r11, %r12, 7;")
    number = located(some, [row(held, held + 7, width=0)], ledger, "r")  # type: ignore[arg-type]
    assert number is not None  # of a number no bits are known that could follow


def test_rows_that_a_kernel_computes_in_one_do_not_depart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", kernel("mad.lo.u32 %r12, %r10, 100000, %r1; add.u32 %r11, %r12, 7;"))
    some, ledger = sliced(9), {"r": SimpleNamespace(value="the product")}

    def fused(product: int, addend: int, total: int) -> bool:
        rows = [((32,), product, "r"), ((product, addend), total, "later")]
        kept = [Execution(name, tuple(np.array([one], np.uint32) for one in operands), np.array([made], np.uint32), 32)
                for operands, made, name in rows]  # fmt: skip
        return located(some, kept, ledger, "r") is None  # type: ignore[arg-type]

    assert fused(3200000, 9, 3200009)
    assert not fused(3200000, 10, 3200009)  # that value is there, but made of something else
    assert not fused(3200000, 9, 32)  # that one is made of the addend, but ahead of the product
    assert not fused(3200001, 9, 3200010)


def test_factors_in_another_order_are_no_departure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TEXT", kernel("mad.lo.u32 %r11, %r10, %r1, %r2;"))
    found = departure(*plays(WAY_PAIR, case(), "candidate", "sm_100a", f"{__name__}:other"), "t", (9,))
    assert {site.text for end in found.ends for site in end.sites if site} == {
        "shl.b32 %r2, %r1, 4;", "shl.b32 %r2, %r1, 5;",
    }  # fmt: skip
