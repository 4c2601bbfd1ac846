"""A PTX kernel of our own with the instructions of a delta-rule attention kernel, for timing the emulator.

Each warp repeats one step: float32 of its lanes through shared memory, fused multiply-adds, `ex2`, a butterfly over the
warp, conversion to BF16 and a matrix product.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from equiv.emulator import engine
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse

THREADS: Final = 128
CTAS: Final = 16
STEPS: Final = 64
FMAS: Final = 32
_VALUES: Final = range(8)


def step(*, products: bool, number: int = 0) -> list[str]:
    """The instructions of one step on %f0 to %f7, which stay small; `number` gives it registers of its own."""
    lines = _step(products=products)
    return [re.sub(r"%f(\d+)", lambda found: f"%f{int(found[1]) + 20 * number}", line) for line in lines]


def _step(*, products: bool) -> list[str]:
    low, high = ("{" + ", ".join(f"%f{n}" for n in half) + "}" for half in (range(4), range(4, 8)))
    lines = [f"st.shared.v4.f32 [%r1], {low};", f"st.shared.v4.f32 [%r1+16], {high};", "bar.sync 0;"]
    lines += [f"ld.shared.v4.f32 {low}, [%r2];", f"ld.shared.v4.f32 {high}, [%r2+16];", "bar.sync 0;"]
    lines += [f"fma.rn.ftz.f32 %f{n % 8}, %f{n % 8}, 0f3E800000, %f{(n * 3 + 1) % 8};" for n in range(FMAS)]
    lines += [f"fma.rn.ftz.f32 %f{n}, %f{n}, 0f3D000000, %f9;" for n in _VALUES]
    lines += [f"ex2.approx.ftz.f32 %f{n}, %f{n};" for n in range(4)]
    for mask in (16, 8, 4, 2, 1):
        lines += [f"shfl.sync.bfly.b32 %f8, %f0, {mask}, 31, 0xffffffff;", "add.ftz.f32 %f0, %f0, %f8;"]
    lines.append("mul.ftz.f32 %f0, %f0, 0f3D000000;")
    if products:
        lines += [f"cvt.rn.bf16x2.f32 %r{10 + n}, %f{n}, %f{n + 1};" for n in range(6)]
        lines.append(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f10, %f11, %f12, %f13},"
            " {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f10, %f11, %f12, %f13};"
        )
    return lines


def text(*, products: bool, steps: int = 1) -> str:
    """PTX of the kernel `micro`: one pointer to float32 [CTAs * threads], the last state of each thread.

    With more than one step in its loop each has registers of its own, so that no two instructions are alike; such a
    kernel is only for being read.
    """
    values = " ".join(f"mul.f32 %f{n}, %f9, 0f{0x3F000000 + (n << 20):08X};" for n in _VALUES)
    body = "\n".join(line for number in range(steps) for line in step(products=products, number=number))
    return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry micro(.param .u64 out)
{{
.reg .pred %p<2>; .reg .b32 %r<20>; .reg .f32 %f<{20 * steps}>; .reg .b64 %rd<4>;
.shared .align 16 .b8 buffer[{32 * THREADS}];
mov.u32 %r0, %tid.x;
mov.u32 %r3, buffer;
mad.lo.u32 %r1, %r0, 32, %r3;
xor.b32 %r4, %r0, 33;
mad.lo.u32 %r2, %r4, 32, %r3;
cvt.rn.f32.u32 %f9, %r0;
mul.f32 %f9, %f9, 0f3A800000;
{values}
mov.f32 %f10, 0f00000000; mov.f32 %f11, %f10; mov.f32 %f12, %f10; mov.f32 %f13, %f10;
mov.u32 %r5, 0;
STEP:
{body}
add.u32 %r5, %r5, 1;
setp.lt.u32 %p0, %r5, {STEPS};
@%p0 bra STEP;
add.f32 %f0, %f0, %f10;
add.f32 %f0, %f0, %f7;
mov.u32 %r6, %ctaid.x;
mad.lo.u32 %r6, %r6, {THREADS}, %r0;
ld.param.u64 %rd0, [out];
mad.wide.u32 %rd1, %r6, 4, %rd0;
st.global.f32 [%rd1], %f0;
ret;
}}
"""


def launch(*, products: bool) -> tuple[engine.LaunchStats, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Runs it once; what it took, and what it left.

    Raises:
        UnsupportedError: there is no C compiler.
    """
    out = np.zeros(CTAS * THREADS, np.float32)
    memory = Memory()
    memory.register(out.ctypes.data, out.nbytes, "out")
    program = _program(products=products)
    config = engine.LaunchConfig((CTAS, 1, 1), (THREADS, 1, 1))
    return engine.launch(program, config, out.ctypes.data.to_bytes(8, "little"), memory), out


def _program(*, products: bool) -> engine.Program:
    if products not in _PROGRAMS:
        _PROGRAMS[products] = engine.load(parse(text(products=products)), "micro", "sm_90a")
    return _PROGRAMS[products]


_PROGRAMS: dict[bool, engine.Program] = {}
