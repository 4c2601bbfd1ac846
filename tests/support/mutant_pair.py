"""A pair whose candidate is PTX, launched without a compiler: y = bf16(x * 3) + 1, turned round within a block.

Two launches: the first writes y, the second adds to what the host has zeroed, so that replaying needs its write.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.pairs import Axis, Pair, Party
from equiv.records import Case, OutputSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits

SOURCE = "kernel.py"
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .u32 n)
.reqntid 64, 1, 1
{
.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<20>; .reg .f32 %f<10>; .reg .b64 %rd<10>;
mov.u32 %r1, %tid.x;
ld.param.b32 %r2, [n];
setp.ge.u32 %p1, %r1, %r2;
@%p1 bra END;
ld.param.b64 %rd1, [x];
ld.param.b64 %rd2, [y];
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd1, %rd3;
ld.global.f32 %f1, [%rd4];
mul.f32 %f2, %f1, 0f40400000;
cvt.rn.bf16.f32 %rs1, %f2;
cvt.f32.bf16 %f3, %rs1;
mov.b32 %r3, %f3;
and.b32 %r4, %r3, -1;
mov.b32 %f4, %r4;
add.f32 %f5, %f4, 0f3F800000;
add.f32 %f9, %f4, %f4;
add.s64 %rd5, %rd2, %rd3;
st.global.f32 [%rd5], %f5;
setp.ne.u32 %p2, %r2, 40;
@%p2 trap;
END: bra.uni OUT;
OUT: ret;
}
.visible .entry total(.param .u64 y, .param .u64 t)
.reqntid 64, 1, 1
{
.reg .pred %p<2>; .reg .b32 %r<20>; .reg .f32 %f<10>; .reg .b64 %rd<10>; .shared .align 16 .b8 part[256];
mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [y]; ld.param.b64 %rd2, [t];
and.b32 %r3, %r1, 31; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd4, %rd1, %rd6; ld.global.b32 %r2, [%rd4];
mul.wide.u32 %rd3, %r1, 4;
mov.b32 %r5, part; setp.lt.u32 %p1, %r1, 0; @%p1 st.shared.b32 [%r5+252], %r1;
shl.b32 %r6, %r1, 2; add.s32 %r7, %r5, %r6; st.shared.b32 [%r7], %r2;
bar.sync 0;
xor.b32 %r8, %r6, 252; add.s32 %r9, %r5, %r8; ld.shared.b32 %r10, [%r9];
add.s64 %rd5, %rd2, %rd3; ld.global.b32 %r11, [%rd5]; add.s32 %r12, %r11, %r10; st.global.b32 [%rd5], %r12;
ret;
}
"""
N = 40


def layout(case: Case) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("x", "input", "f32", (N,), (1,)),
        TensorSpec("y", "output", "f32", (N,), (1,)),
        TensorSpec("t", "output", "i32", (64,), (1,)),
    )


def inputs(case: Case) -> dict[str, Bits]:
    if case.axes["values"] == "ones":
        return {"x": np.full(N, 0x3F80_0000, np.uint32)}
    generator = np.random.default_rng(case.seed)
    return {"x": generator.standard_normal(N, dtype=np.float32).view(np.uint32)}


def outputs(case: Case, given: Mapping[str, Bits], after: Mapping[str, Bits]) -> dict[str, Bits]:
    return {name: after[name].copy() for name in ("y", "t")}


def undefined(case: Case, given: Mapping[str, Bits]) -> dict[str, Bits]:
    mask = np.zeros(N, np.bool_)
    mask[3] = case.axes["values"] == "open"
    return {"y": mask.view(np.uint8).view(np.bool_)}


def candidate(case: Case, tensors: Mapping[str, Any]) -> None:
    """Both launches on the active device."""
    from equiv.emulator.device import EmulatedDevice
    from equiv.emulator.launch import Launch
    from equiv.emulator.store import Image, shared_store

    image = shared_store().put(Image(b"mutant pair", PTX, "sm_100a", {}))
    device = EmulatedDevice.current[-1]

    def launch(kernel: str, threads: int, params: bytes) -> None:
        device.run(Launch(image, kernel, (1, 1, 1), (threads, 1, 1), (1, 1, 1), 0, {}, params))

    x, y, t = (tensors[name].data_ptr() for name in ("x", "y", "t"))
    launch("scale", 64, struct.pack("<QQI", x, y, N))
    ctypes.memset(t, 0, 256)
    launch("total", 64, struct.pack("<QQ", y, t))
    if case.axes["values"] == "host":
        ctypes.memset(t, 7, 4)


def _absent(*_: object) -> Any:
    raise AssertionError("a mutation run needs neither oracle nor model")


PAIR = Pair(
    name="mutant_pair",
    summary="PTX to be mutated",
    axes=(Axis("values", "str", "normal", "what x holds", ("normal", "ones", "open", "host")),),
    regimes={},
    oracle=Party("mutant_pair:candidate", ()),
    candidate=Party("mutant_pair:candidate", ()),
    layout=layout,
    inputs=inputs,
    check=lambda _: [],
    output_specs=lambda _: (
        OutputSpec("y", "f32", ("i",), "bitwise", ""),
        OutputSpec("t", "i32", ("i",), "bitwise", ""),
    ),
    outputs=outputs,
    undefined=undefined,
    model=_absent,
    envelope=_absent,
    declaration=_absent,
)


def case(values: str = "normal", seed: int = 1) -> Case:
    """A case called `<values>-<seed>`."""
    return Case("mutant_pair", f"{values}-{seed}", "", seed, ("pr",), {"values": values}, {})
