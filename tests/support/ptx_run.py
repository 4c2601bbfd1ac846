"""Runs a few PTX instructions on arrays: one thread an element, sources loaded from and results stored to arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equiv.emulator import engine
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Array = npt.NDArray[Any]
OBSERVERS: list[Callable[[str, engine.LaunchConfig, str, list[Array], list[Array]], None]] = []
"""Are told of each launch without further options: text, configuration, architecture, buffers before and after."""
TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SPECIALS = np.array(
    [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x80800000, 0x3F800000, 0xBF800000, 0x40490FDB, 0x7F7FFFFF,
     0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0x4B000001, 0x33800000, 0x3F000001],
    np.uint32)  # fmt: skip


def module_text(body: str, params: tuple[str, ...], arch: str = "sm_100a", outside: str = "") -> str:
    """A kernel `k` with 64-bit parameters of these names, plenty of registers, and a body."""
    declared = ",\n".join(f".param .u64 {name}" for name in params)
    registers = (
        ".reg .pred %p<20>; .reg .b8 %rb<20>; .reg .b16 %rs<40>; .reg .b32 %r<60>; .reg .f32 %f<40>; .reg .b64 %rd<60>;"
    )
    return (
        f".version 8.8\n.target {arch}\n.address_size 64\n{outside}\n.visible .entry k(\n{declared})\n{{\n"
        f"{registers}\n{body}\n}}\n"
    )


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeros at an address that suits every access."""
    block = np.zeros(nbytes + 256, np.uint8)
    start = -block.ctypes.data % 256
    return block[start : start + nbytes]


def each(
    instructions: str, sources: Mapping[str, Array], results: Mapping[str, int], arch: str = "sm_100a"
) -> dict[str, Array]:
    """Run `instructions` once an element.

    Args:
        sources: register (`%r1`) -> array of its width; all of one length. A predicate takes uint8.
        results: register -> its width in bits; 1 for a predicate, which is returned as uint8.
    """
    length = len(next(iter(sources.values())))
    padded = -(-length // 32) * 32
    names = [*sources, *results]
    arrays: dict[str, Array] = {}
    lines = ["mov.u32 %r50, %tid.x; mov.u32 %r51, %ctaid.x; shl.b32 %r51, %r51, 5; add.s32 %r50, %r50, %r51;"]
    for number, name in enumerate(names):
        bits = sources[name].dtype.itemsize * 8 if name in sources else max(results[name], 8)
        arrays[name] = np.zeros(padded, TYPES[bits])
        if name in sources:
            arrays[name][:length] = sources[name]
        at = 10 + number
        lines += [f"ld.param.b64 %rd{at}, [p{number}];", f"mad.wide.u32 %rd{at}, %r50, {bits // 8}, %rd{at};"]
        if name in sources and name.startswith("%p"):
            lines += [f"ld.global.u8 %r52, [%rd{at}];", f"setp.ne.b32 {name}, %r52, 0;"]
        elif name in sources:
            lines.append(f"ld.global.b{bits} {name}, [%rd{at}];")
    lines.append(instructions)
    for number, name in enumerate(names):
        if name in results and results[name] == 1:
            lines += [f"selp.b32 %r52, 1, 0, {name};", f"st.global.u8 [%rd{10 + number}], %r52;"]
        elif name in results:
            lines.append(f"st.global.b{results[name]} [%rd{10 + number}], {name};")
    lines.append("ret;")
    text = module_text("\n".join(lines), tuple(f"p{number}" for number in range(len(names))), arch)
    run(text, list(arrays.values()), engine.LaunchConfig((padded // 32, 1, 1), (32, 1, 1)), arch)
    return {name: arrays[name][:length] for name in results}


def run(
    text: str,
    buffers: list[Array],
    config: engine.LaunchConfig,
    arch: str = "sm_100a",
    *,
    budget: int | None = None,
    seed: int | None = None,
    completion: str = "eager",
    checks: bool = True,
    check: str | None = None,
) -> engine.LaunchStats:
    """Launch the kernel of a module on buffers, which become its 64-bit parameters."""
    memory = Memory()
    for number, buffer in enumerate(buffers):
        memory.register(buffer.ctypes.data, buffer.nbytes, f"buffer {number}")
    params = b"".join(buffer.ctypes.data.to_bytes(8, "little") for buffer in buffers)
    before = [buffer.copy() for buffer in buffers] if OBSERVERS else []
    program = engine.load(parse(text), "k", arch)
    stats = engine.launch(
        program, config, params, memory, budget=budget, seed=seed, completion=completion, checks=checks, check=check
    )
    if check is None and budget is None and seed is None and completion == "eager":
        for observe in OBSERVERS:
            observe(text, config, arch, before, buffers)
    return stats


def one(opcode: str, result: str, *sources: Array | str, bits: int = 32, arch: str = "sm_100a") -> Array:
    """Run one instruction with destination `result`; sources are arrays (in registers) or constants as spelt."""
    given: dict[str, Array] = {}
    spelt = [result]
    for number, source in enumerate(sources):
        if isinstance(source, str):
            spelt.append(source)
            continue
        width = source.dtype.itemsize * 8
        name = {8: "%rb", 16: "%rs", 32: "%r", 64: "%rd"}[width] + str(number + 1)
        given[name] = source
        spelt.append(name)
    return each(f"{opcode} {', '.join(spelt)};", given, {result: bits}, arch)[result]
