from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator import engine
from equiv.emulator.decode import decode
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.errors import DeadlockError, DeviceError, EmulatorError, UnknownInstructionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OUT = (
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [out]; mov.u32 %r30, %ctaid.x; mov.u32 %r31, %ntid.x; "
    "mad.lo.u32 %r32, %r30, %r31, %r1; mad.wide.u32 %rd2, %r32, 4, %rd1;"
)
STORE = "st.global.b32 [%rd2], %r9; ret;"
SHARED = ".shared .align 16 .b8 buffer[1024];"


def _run(
    body: str,
    threads: int = 32,
    grid: int = 1,
    *,
    cluster: int = 1,
    outside: str = "",
    budget: int | None = None,
    seed: int | None = None,
) -> Array:
    out = np.zeros(threads * grid, np.uint32)
    config = LaunchConfig((grid, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    run(module_text(OUT + "\n" + body, ("out",), outside=outside), [out], config, budget=budget, seed=seed)
    return out


COLLATZ = """
    mov.b32 %r9, 0; add.u32 %r2, %r32, 1;
LOOP: setp.eq.u32 %p1, %r2, 1;
    @%p1 bra DONE;
    and.b32 %r3, %r2, 1; setp.ne.b32 %p2, %r3, 0;
    @%p2 bra ODD;
    shr.u32 %r2, %r2, 1;
    bra NEXT;
ODD: mad.lo.u32 %r2, %r2, 3, 1;
NEXT: add.u32 %r9, %r9, 1;
    bra LOOP;
DONE:
"""


def _collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def test_lanes_that_part_in_loops_and_branches_keep_their_own_values() -> None:
    got = _run(COLLATZ + STORE, threads=96, grid=3)
    np.testing.assert_array_equal(got, [_collatz(n + 1) for n in range(288)])


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_another_warp_order_gives_the_same_values(seed: int) -> None:
    body = (
        "mov.u32 %r20, buffer; mad.lo.u32 %r21, %r1, 4, %r20; st.shared.b32 [%r21], %r1; bar.sync 0; "
        "xor.b32 %r22, %r1, 64;"
        "mad.lo.u32 %r21, %r22, 4, %r20; ld.shared.b32 %r9, [%r21];"
    )
    got = _run(body + COLLATZ.replace("mov.b32 %r9, 0;", "") + STORE, threads=128, outside=SHARED, seed=seed)
    np.testing.assert_array_equal(got, [(n ^ 64) + _collatz(n + 1) for n in range(128)])


def test_statistics_count_warp_and_lane_instructions() -> None:
    out = np.zeros(32, np.uint32)
    text = module_text("mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 8; @%p1 mov.u32 %r2, 1; ret;", ("out",))
    stats = run(text, [out], LaunchConfig((2, 1, 1), (64, 1, 1)))
    assert stats.warp_instructions == 2 * 2 * 4
    assert stats.lane_instructions == 2 * (2 * 3 * 32 + 8)
    assert stats.seconds > 0


def test_a_block_that_is_no_multiple_of_32_runs_its_threads_only() -> None:
    got = _run("bar.sync 0; mov.u32 %r9, %ntid.x;" + STORE, threads=45)
    np.testing.assert_array_equal(got, np.full(45, 45))


SPECIALS: dict[str, Callable[[int, int], int]] = {
    "%tid.x": lambda t, c: t % 6,
    "%tid.y": lambda t, c: t // 6 % 5,
    "%tid.z": lambda t, c: t // 30,
    "%ntid.y": lambda t, c: 5,
    "%ctaid.x": lambda t, c: c % 4,
    "%ctaid.y": lambda t, c: c // 4 % 3,
    "%ctaid.z": lambda t, c: c // 12,
    "%nctaid.z": lambda t, c: 2,
    "%laneid": lambda t, c: t % 32,
    "%warpid": lambda t, c: t // 32,
    "%lanemask_lt": lambda t, c: (1 << t % 32) - 1,
    "%lanemask_ge": lambda t, c: 0xFFFFFFFF & ~((1 << t % 32) - 1),
    "%cluster_ctarank": lambda t, c: c % 4 % 2 + 2 * (c // 4 % 3),
    "%cluster_nctarank": lambda t, c: 6,
    "%clusterid.x": lambda t, c: c % 4 // 2,
    "%nclusterid.x": lambda t, c: 2,
    "%cluster_ctaid.y": lambda t, c: c // 4 % 3,
    "%tid.w": lambda t, c: 0,
}


@pytest.mark.parametrize("name", SPECIALS)
def test_special_registers_say_where_a_thread_is(name: str) -> None:
    body = (
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r2, 6, %r1; "
        "mad.lo.u32 %r1, %r3, 30, %r1;"
        "mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z; "
        "mad.lo.u32 %r4, %r5, 4, %r4; mad.lo.u32 %r4, %r6, 12, %r4;"
        "mad.lo.u32 %r1, %r4, 60, %r1; ld.param.b64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 4, %rd1; "
        f"mov.u32 %r9, {name}; st.global.b32 [%rd1], %r9; ret;"
    )
    out = np.zeros(24 * 60, np.uint32)
    run(module_text(body, ("out",)), [out], LaunchConfig((4, 3, 2), (6, 5, 2), (2, 3, 1)))
    want = [SPECIALS[name](thread, cta) for cta in range(24) for thread in range(60)]
    np.testing.assert_array_equal(out, want)


def test_named_barriers_with_counts_pair_producers_and_consumers() -> None:
    body = """
        mov.u32 %r20, buffer; mad.lo.u32 %r21, %r1, 4, %r20; setp.ge.u32 %p1, %r1, 64;
        @%p1 bra PRODUCE;
        bar.sync 3, 128;
        ld.shared.b32 %r9, [%r21+256];
        bra END;
    PRODUCE: mul.lo.u32 %r9, %r1, 7; st.shared.b32 [%r21], %r9;
        bar.arrive 3, 128;
    END:
    """
    got = _run(body + STORE, threads=128, outside=SHARED)
    np.testing.assert_array_equal(got, np.tile(np.arange(64, 128) * 7, 2))


def test_exited_warps_are_not_waited_for() -> None:
    got = _run("mov.b32 %r9, 1; setp.ge.u32 %p1, %r1, 64; @%p1 exit; bar.sync 0; mov.b32 %r9, 2;" + STORE, threads=128)
    np.testing.assert_array_equal(got, [2] * 64 + [0] * 64)


def test_an_indexed_branch_sends_each_lane_to_its_label() -> None:
    body = """
        and.b32 %r2, %r1, 3;
    list: .branchtargets ZERO, ONE, TWO, THREE;
        brx.idx %r2, list;
    ZERO: mov.b32 %r9, 10; bra END;
    ONE: mov.b32 %r9, 11; bra END;
    TWO: mov.b32 %r9, 12; bra END;
    THREE: mov.b32 %r9, 13;
    END:
    """
    np.testing.assert_array_equal(_run(body + STORE), np.tile([10, 11, 12, 13], 8))
    with pytest.raises(EmulatorError, match="lane 4: branch index 4 is beyond the target list"):
        _run(body.replace("%r1, 3", "%r1, 7") + STORE)


def test_a_cluster_shares_memory_and_waits_at_its_barrier() -> None:
    body = """
        mov.u32 %r20, buffer; mov.u32 %r22, %cluster_ctarank;
        mad.lo.u32 %r21, %r1, 4, %r20; mad.lo.u32 %r23, %r22, 1000, %r1;
        st.shared.b32 [%r21], %r23;
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        xor.b32 %r24, %r22, 1; mapa.shared::cluster.u32 %r25, %r21, %r24;
        ld.shared::cluster.b32 %r9, [%r25];
        barrier.cluster.arrive.relaxed; barrier.cluster.wait;
    """
    for seed in (None, 3):
        got = _run(body + STORE, threads=64, grid=4, cluster=2, outside=SHARED, seed=seed)
        np.testing.assert_array_equal(got, np.concatenate([(rank ^ 1) * 1000 + np.arange(64) for rank in (0, 1, 0, 1)]))


def test_a_barrier_that_lacks_a_warp_is_a_deadlock_that_says_who_waits() -> None:
    with pytest.raises(DeadlockError) as caught:
        _run("setp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 5, 64;\n@!%p1 bar.sync 6, 64;\nret;", threads=64)
    text = str(caught.value)
    assert "k: deadlock, every warp waits" in text
    assert "CTA (0, 0, 0) warp 0 lanes 0xffffffff wait at barrier 5 for 64 threads, 32 have arrived" in text
    assert "arrived: PTX line 11 `bar.sync`" in text
    assert "CTA (0, 0, 0) warp 1 lanes 0xffffffff wait at barrier 6 for 64 threads, 32 have arrived" in text
    assert "arrived: PTX line 12 `bar.sync`" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("bar.sync 16;", "barrier 16 does not exist"),
        ("bar.sync 1, 48;", "barrier 1 with 48 threads: not a multiple of 32"),
        ("bar.sync 1, 4096;", "or more than the CTA has"),
        ("bar.arrive 1, 64; bar.sync 1, 96;", "barrier 1 with 96 threads, while others wait there with another number"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "arrives at the cluster barrier again"),
        ("trap;", "lane 0: the kernel trapped"),
    ],
)
def test_a_misused_barrier_or_a_trap_is_an_error(body: str, message: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        _run(body + "ret;", threads=128)
    assert message in str(caught.value)
    assert "k: PTX line 10 `" in str(caught.value)


def test_a_kernel_that_loops_for_ever_runs_into_its_budget() -> None:
    with pytest.raises(EmulatorError, match="still running after 100000 warp instructions, the budget of this launch"):
        _run("LOOP: add.u32 %r9, %r9, 1; bra LOOP;", budget=100_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": (1025, 1, 1)}, r"block \(1025, 1, 1\) has 1025 threads; at most 1024"),
        ({"block": (1, 1, 65)}, "and 64 in z"),
        ({"grid": (0, 1, 1)}, r"grid \(0, 1, 1\) must be three positive numbers"),
        ({"grid": (1, 65536, 1)}, r"grid \(1, 65536, 1\) is beyond"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "is not a multiple of cluster"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, "has more than 16 CTAs"),
        ({"dynamic_shared": 240_000}, "241024 bytes of shared memory a CTA; sm_100a has 232448"),
    ],
)
def test_an_impossible_launch_is_refused_before_it_starts(change: dict[str, object], message: str) -> None:
    program = engine.load(parse(module_text("ret;", ("out",), outside=SHARED)), "k", "sm_100a")
    config = LaunchConfig(**({"grid": (1, 1, 1), "block": (32, 1, 1)} | change))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=message):
        engine.launch(program, config, bytes(8), Memory())


def test_the_kernels_own_requirements_are_checked() -> None:
    text = module_text("ret;", ("out",)).replace("\n{\n", "\n.reqntid 64\n{\n", 1)
    program = engine.load(parse(text), "k", "sm_90a")
    with pytest.raises(DeviceError, match=r"block \(32, 1, 1\), but the kernel requires \(64,\) \(.reqntid\)"):
        engine.launch(program, LaunchConfig((1, 1, 1), (32, 1, 1)), bytes(8), Memory())
    with pytest.raises(DeviceError, match="4 parameter bytes given, the kernel has 8"):
        engine.launch(program, LaunchConfig((1, 1, 1), (64, 1, 1)), bytes(4), Memory())


def test_an_unknown_kernel_and_architecture_are_named() -> None:
    module = parse(module_text("ret;", ()))
    with pytest.raises(DeviceError, match="no kernel `other` in the module; it has k"):
        engine.load(module, "other", "sm_90a")
    with pytest.raises(UnknownInstructionError, match="sm_70: no such architecture here"):
        engine.load(module, "k", "sm_70")


def test_the_same_module_is_decoded_once() -> None:
    module = parse(module_text("ret;", ()))
    assert engine.load(module, "k", "sm_90a") is engine.load(module, "k", "sm_90a")
    assert engine.load(module, "k", "sm_90a") is not engine.load(module, "k", "sm_100a")


def test_the_callers_floating_point_mode_neither_matters_nor_changes() -> None:
    libm = ctypes.CDLL("libm.so.6")
    toward_zero = 0xC00  # FE_TOWARDZERO of x86
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("the rounding mode's number is x86's")
    body = "mov.b32 %r9, 0f3F800000; add.f32 %r9, %r9, 0f33C00000;"
    want = _run(body + STORE)[0]
    libm.fesetround(toward_zero)
    try:
        got = _run(body + STORE)[0]
        mode = libm.fegetround()
    finally:
        libm.fesetround(0)
    assert got == want == 0x3F800001
    assert mode == toward_zero


def test_registers_of_different_blocks_share_their_places() -> None:
    lines = [f"mad.lo.u32 %r{n}, %r{n - 1}, 3, 1;" for n in range(3, 30)]
    module = parse(module_text("mov.u32 %r2, %tid.x;" + "".join(lines) + "ret;", ()))
    code = decode(module, module.kernels["k"], "sm_90a", {})
    assert code.registers_size < 10 * 128


PROCESS = """
import sys
import numpy as np
from ptx_run import one
print(*one("mad.lo.u32", "%r20", np.arange(4, dtype=np.uint32), "5", "6"))
"""


def test_processes_that_build_the_same_handlers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    environment = {**os.environ, "EQUIV_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROCESS]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["6 11 16 21"] * 3
    libraries = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert libraries == {".so", ".names"}
    again = subprocess.run(
        command, env={**environment, "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
    )
    assert again.stdout.strip() == "6 11 16 21"


def test_a_launch_names_the_instructions_that_it_executed_and_nobody_has_measured() -> None:
    body = """
        mov.b64 %rd5, 0; setp.eq.u32 %p1, %r1, 99; @%p1 bra NEVER; add.rn.f32x2 %rd6, %rd5, %rd5;
        mul.rn.f32x2 %rd7, %rd6, %rd6; mul.rn.f32x2 %rd7, %rd7, %rd6; add.rn.f32 %f1, 0f3F800000, 0f3F800000; ret;
        NEVER: fma.rn.f32x2 %rd6, %rd5, %rd5, %rd5; ret;
    """
    text = module_text(OUT + body, ("out",))
    stats = run(text, [np.zeros(32, np.uint32)], LaunchConfig((1, 1, 1), (32, 1, 1)))
    assert stats.unmeasured == ("add.rn.f32x2", "mul.rn.f32x2")
