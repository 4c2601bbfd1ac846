"""Registers read and written, basic blocks, liveness and dead code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from probes import header, probe

from equiv.emulator.dataflow import blocks, read, written
from equiv.emulator.ptx_parser import parse

if TYPE_CHECKING:
    from equiv.emulator.ptx import Kernel


def kernel(body: str) -> Kernel:
    return parse(header("sm_90a") + probe("k", body)).kernels["k"]


@pytest.mark.parametrize(
    ("body", "writes", "reads"),
    [
        ("add.f32 %f9, %f0, %f1;", ("%f9",), ("%f0", "%f1")),
        ("@%q1 add.f32 %f9, %f0, %f1;", ("%f9",), ("%q1", "%f0", "%f1")),
        ("ld.global.v2.f32 {%f8, %f9}, [%p+4];", ("%f8", "%f9"), ("%p",)),
        ("st.global.v2.f32 [%p], {%f8, %f9};", (), ("%p", "%f8", "%f9")),
        ("shfl.sync.bfly.b32 %r1|%q1, %r2, 1, 31, -1;", ("%r1", "%q1"), ("%r2",)),
        ("setp.lt.and.f32 %q1, %f0, %f1, !%q2;", ("%q1",), ("%f0", "%f1", "%q2")),
        ("bar.sync %r1, %r2;", (), ("%r1", "%r2")),
        ("nanosleep.u32 %r1;", (), ("%r1",)),
        ("mbarrier.arrive.shared.b64 _, [%r1];", (), ("%r1",)),
        ("wgmma.mma_async.sync.x {%f8, %f9}, %d1, %d2;", ("%f8", "%f9"), ("%f8", "%f9", "%d1", "%d2")),
        ("cp.async.bulk.tensor.2d.x [%r1], [%d1, {%r2, %r3}], [%r4];", (), ("%r1", "%d1", "%r2", "%r3", "%r4")),
    ],
)
def test_what_an_instruction_writes_and_reads(body: str, writes: tuple[str, ...], reads: tuple[str, ...]) -> None:
    one = kernel(body).instructions[8]
    assert written(one) == writes
    assert read(one) == reads


def test_blocks_end_at_branches_and_begin_at_their_labels() -> None:
    body = "unused: bar.sync 0; @%q1 bra there; bar.sync 1; there: bar.sync 2; @%q2 ret; bar.sync 3;"
    found = kernel(body)
    opcodes = [[found.instructions[index].opcode for index in block.indices][-2:] for block in blocks(found)]
    assert opcodes == [["bar.sync", "bra"], ["bar.sync"], ["bar.sync", "ret"], ["bar.sync", "ret"]]


def test_values_are_live_across_blocks_and_around_loops() -> None:
    body = (
        "mov.f32 %f9, %f0; again: add.f32 %f9, %f9, %f1; mov.f32 %f8, %f2; setp.gt.f32 %q1, %f9, %f8; @%q1 bra again;"
    )
    entry, loop, _ = blocks(kernel(body + " st.global.f32 [%p], %f9;"))
    assert entry.live_out >= {"%f9", "%f1", "%f2", "%p"}
    assert "%f8" not in entry.live_out
    assert loop.live_out >= {"%f9", "%f1", "%f2", "%p"}
    assert "%q1" not in loop.live_out


def test_a_guarded_write_does_not_end_the_old_value() -> None:
    first, _ = blocks(kernel("mov.f32 %f9, %f0; @%q1 bra L; L: @%q2 mov.f32 %f9, %f1; st.global.f32 [%p], %f9;"))
    assert "%f9" in first.live_out


def test_a_branch_table_leads_to_all_its_labels() -> None:
    body = "list: .branchtargets one, two; mov.f32 %f9, %f0; brx.idx %r1, list; one: ret; two: st.global.f32 [%p], %f9;"
    first, one, two = blocks(kernel(body))
    assert "%f9" in first.live_out
    assert (len(one.indices), len(two.indices)) == (1, 2)


def test_arithmetic_that_only_dead_arithmetic_uses_is_dead() -> None:
    body = "mul.f32 %f9, %f0, %f1; add.f32 %f10, %f9, %f2; add.f32 %f10, %f0, %f1; st.global.f32 [%p], %f10;"
    found = kernel(body)
    (block,) = blocks(found)
    dead = [found.instructions[index].opcode for index in sorted(block.dead)]
    assert dead == ["mul.f32", "add.f32"]
