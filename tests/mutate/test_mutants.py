"""Which mutants are known not to matter, and that a mutant differs from the kernel in one place."""

from __future__ import annotations

import mutant_pair
import pytest
from ptx_run import module_text

from equiv.emulator.ptx_emitter import spelt
from equiv.emulator.store import Image
from equiv.mutate import OPERATORS
from equiv.mutate.mutants import Target

ALL = tuple(OPERATORS)


def target_of(body: str, arch: str = "sm_100a") -> Target:
    return Target(Image(f"{arch} {body}".encode(), module_text(body, ("p",)), arch, {}), "k")


def reasons(body: str, opcode: str, arch: str = "sm_100a") -> dict[str, str]:
    """Mutant -> why it is equivalent, of the instructions with that opcode."""
    return {
        spelt(one.after): one.equivalent for one in target_of(body, arch).mutants(ALL) if one.before.opcode == opcode
    }  # fmt: skip


def test_a_result_that_nothing_needs_cannot_matter() -> None:
    found = reasons("add.f32 %f1, %f2, %f3; st.global.b32 [%rd1], %r1; ret;", "add.f32")
    assert set(found.values()) == {"its result is not needed"}
    found = reasons("ld.global.f32 %f2, [%rd1]; add.f32 %f1, %f2, %f3; st.global.f32 [%rd1], %f1; ret;", "add.f32")
    assert set(found.values()) == {""}


def test_a_cache_policy_cannot_matter() -> None:
    hinted = "ld.global.L2::cache_hint.b32 %r1, [%rd1], %rd2; st.global.b32 [%rd1+8], %r1;"
    assert set(reasons(f"mov.b64 %rd2, 0; {hinted} ret;", "mov.b64").values()) == {"only a cache policy depends on it"}
    found = reasons(f"mov.b64 %rd2, 0; {hinted} st.global.b64 [%rd1], %rd2; ret;", "mov.b64")
    assert set(found.values()) == {""}
    found = reasons(f"mov.b64 %rd2, 0; mov.b64 %rd2, %rd1; {hinted} ret;", "mov.b64")
    assert "only a cache policy depends on it" not in found.values()


def test_bytes_of_registers_that_nothing_writes_cannot_matter() -> None:
    ends = "prmt.b32 %r4, %r3, %r1, 0x5410; st.global.b32 [%rd1], %r4; ret;"
    found = reasons(f"prmt.b32 %r1, %r2, %r5, 0x3340; {ends}", "prmt.b32")
    assert found["pmevent 0;"] == ""  # the second prmt has a register that is written
    both = [
        one.equivalent for one in target_of(f"prmt.b32 %r1, %r2, %r5, 0x3340; {ends}").mutants(ALL) if not one.index
    ]
    assert set(both) == {"it packs registers that nothing writes"}
    written = target_of(f"mov.b32 %r5, 1; prmt.b32 %r1, %r2, %r5, 0x3340; {ends}").mutants(ALL)
    assert {one.equivalent for one in written if one.index == 1} == {""}


def test_a_jump_to_the_next_instruction_cannot_matter() -> None:
    assert reasons("bra.uni L; L: ret;", "bra.uni") == {"pmevent 0;": "a jump to the next instruction"}
    assert reasons("bra.uni L; mov.b32 %r1, %r2; L: ret;", "bra.uni") == {"pmevent 0;": ""}


def test_another_rounding_of_an_exact_conversion_cannot_matter() -> None:
    store = "st.global.f32 [%rd1], %f1; ret;"
    short = reasons(f"ld.global.b16 %rs1, [%rd1]; cvt.rn.f32.s16 %f1, %rs1; {store}", "cvt.rn.f32.s16")
    assert short["cvt.rz.f32.s16 %f1, %rs1;"] == "the conversion is exact"
    assert short["pmevent 0;"] == ""
    long = reasons(f"ld.global.b32 %r1, [%rd1]; cvt.rn.f32.s32 %f1, %r1; {store}", "cvt.rn.f32.s32")
    assert long["cvt.rz.f32.s32 %f1, %r1;"] == ""


@pytest.mark.parametrize(
    "opcode", ["cp.async.wait_group", "cp.async.bulk.wait_group.read", "wgmma.wait_group.sync.aligned"]
)
def test_waiting_for_more_cannot_matter(opcode: str) -> None:
    found = reasons(f"{opcode} 1; ret;", opcode, "sm_90a")
    assert found[f"{opcode} 0;"] == "it waits for more groups, which need nothing from who waits"
    assert found[f"{opcode} 2;"] == found["pmevent 0;"] == ""


def test_what_the_emulator_does_not_execute_is_invisible() -> None:
    found = {spelt(one.before): one.invisible for one in target_of("griddepcontrol.wait; bar.sync 0; ret;").mutants(ALL)
             if one.operator == "ordering"}  # fmt: skip
    assert found == {"griddepcontrol.wait;": True, "bar.sync 0;": False}


def test_a_mutant_executes_the_contracted_kernel_but_for_one_instruction() -> None:
    body = "mul.f32 %f1, %f2, %f3; add.f32 %f4, %f1, %f5; st.global.f32 [%rd1], %f4; ret;"
    target = target_of(body)
    assert [one.opcode for one in target.kernel.instructions] == ["fma.rn.f32", "st.global.f32", "ret"]
    for mutant in target.mutants(ALL):
        code = target.build(mutant).kernel.instructions
        changed = [
            at for at, (one, other) in enumerate(zip(code, target.kernel.instructions, strict=True)) if one != other
        ]
        assert changed == [mutant.index]


def test_a_branch_is_told_by_the_line_of_its_condition() -> None:
    body = (
        '.file 1 "kernel.py"\n.loc 1 7 0\nsetp.eq.s32 %p1, %r1, 0;\n.loc 1 3 0\n@%p1 bra L;\nmov.b32 %r1, %r2;\nL: ret;'
    )
    text = module_text(body, ("p",)).replace('.file 1 "kernel.py"\n', "") + '.file 1 "kernel.py"\n'
    target = Target(Image(b"lines", text, "sm_100a", {}), "k")
    sources = {one.before.opcode: one.source for one in target.mutants(("predicate", "deletion"))}
    assert sources["bra"] == ("kernel.py", 7)
    assert sources["mov.b32"] == ("kernel.py", 3)


def test_a_branch_whose_condition_is_of_no_line_is_told_by_its_own() -> None:
    lines = [
        ".loc 1 0 5",
        "setp.eq.s32 %p1, %r1, 0;",
        ".loc 1 9 4",
        "add.s32 %r2, %r2, 1;",
        ".loc 1 3 0",
        "@%p1 bra L;",
    ]
    text = module_text("\n".join([*lines, "mov.b32 %r1, %r2;", "L: ret;"]), ("p",)) + '.file 1 "kernel.py"\n'
    target = Target(Image(b"nowhere", text, "sm_100a", {}), "k")
    found = {one.before.opcode: (one.source, one.near) for one in target.mutants(("deletion",))}
    assert found["bra"] == (("kernel.py", 3), ("kernel.py", 9))


def test_what_a_compiler_makes_itself_is_near_the_line_before() -> None:
    lines = [
        ".loc 1 7 3",
        "add.s32 %r1, %r2, 1;",
        ".loc 1 3 0",
        "sub.s32 %r3, %r1, 1;",
        ".loc 1 0 5",
        "or.b32 %r4, %r3, 1;",
    ]
    text = module_text("\n".join(lines) + "\nret;", ("p",)) + '.file 1 "kernel.py"\n'
    target = Target(Image(b"near", text, "sm_100a", {}), "k")
    found = {one.before.opcode: (one.source, one.near) for one in target.mutants(("deletion",))}
    assert found["add.s32"] == (("kernel.py", 7), ("kernel.py", 7))
    assert found["sub.s32"] == (("kernel.py", 3), ("kernel.py", 7))
    assert found["or.b32"] == (("kernel.py", 0), ("kernel.py", 7))


@pytest.mark.parametrize("kernel", ["scale", "total"])
def test_no_two_mutants_of_an_instruction_are_alike(kernel: str) -> None:
    target = Target(Image(b"twice", mutant_pair.PTX, "sm_100a", {}), kernel)
    seen = [(one.index, one.after) for one in target.mutants(ALL)]
    assert len(seen) == len(set(seen)) >= 40


def test_a_branch_round_an_arrival_belongs_to_what_orders_and_what_decides_it() -> None:
    arrive = "mbarrier.arrive.shared.b64 %rd9, [%r1];"
    body = "setp.ne.s32 %p1, %r2, 0; @%p1 bra L; {0} L: setp.ne.s32 %p2, %r2, 1; @%p2 bra M; {1} M: ret;"
    target = target_of(body.format(arrive, "st.global.b32 [%rd1], %r2;"))
    found = [index for index in range(len(target.kernel.instructions)) if target.orders(index)]
    assert found == [0, 1, 2]
    target = target_of(body.format(arrive, arrive + 9 * "st.global.b32 [%rd1], %r2;"))
    assert [index for index in range(len(target.kernel.instructions)) if target.orders(index)] == [0, 1, 2, 5]


def test_what_is_made_for_an_mbarrier_alone_belongs_to_what_orders() -> None:
    body = (
        ".shared .align 8 .b64 bar; mov.u32 %r1, bar; mov.b32 %r2, 32; mov.b32 %r3, 1;"
        "mbarrier.init.shared.b64 [%r1], %r2; st.global.b32 [%rd1], %r3; bar.sync 0; fence.acq_rel.gpu;"
    )
    target = target_of(body)
    opcodes = [one.opcode for index, one in enumerate(target.kernel.instructions) if target.orders(index)]
    assert opcodes == ["mov.u32", "mov.b32", "mbarrier.init.shared.b64", "bar.sync", "fence.acq_rel.gpu"]


def test_a_jump_back_to_a_wait_that_was_in_vain_is_invisible() -> None:
    body = (
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2; @%p1 bra.uni DONE; bra.uni WAIT; DONE: "
        "st.global.b32 [%rd1], %r1; ret;"
    )
    target = Target(Image(body.encode(), module_text(body, ("p",)), "sm_100a", {}), "k")
    found = {one.index: one.invisible for one in target.mutants(("deletion",))}
    assert found == {1: False, 2: True, 3: False}


@pytest.mark.parametrize("middle", ["MID: @%p1 bra.uni DONE; bra.uni WAIT;", "@%p1 bra.uni DONE; MID: bra.uni WAIT;"])
def test_a_jump_back_to_a_wait_that_another_branch_leads_to_is_executed(middle: str) -> None:
    body = (
        f"@%p2 bra MID; WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2; {middle} DONE: "
        "st.global.b32 [%rd1], %r1; ret;"
    )
    found = {one.index: one.invisible for one in target_of(body).mutants(("deletion",))}
    assert found == {0: False, 2: False, 3: False, 4: False}
