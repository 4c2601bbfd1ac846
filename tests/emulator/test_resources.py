"""Figures read from a cubin are those that the assembler printed when it made it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from equiv.emulator import toolchain
from equiv.emulator.resources import resources
from equiv.errors import EmulatorError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = ".version {version}\n.target {arch}\n.address_size 64\n"
SPILLING = """.visible .entry spills(.param .u64 p) {{
    .reg .b64 %rd<2>;
    .reg .f32 %f<300>;
    ld.param.u64 %rd1, [p];
{loads}
{sums}
    ret;
}}
"""
SHARING = """.visible .entry shares(.param .u64 p) {
    .reg .b64 %rd<2>;
    .reg .b32 %r<3>;
    .shared .align 4 .b8 room[4000];
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, room;
    ld.global.u32 %r2, [%rd1];
    st.shared.u32 [%r1], %r2;
    bar.sync 0;
    bar.sync 3;
    ld.shared.u32 %r2, [%r1];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def spilling() -> str:
    loads = "\n".join(f"    ld.volatile.global.f32 %f{at}, [%rd1+{4 * at}];" for at in range(290))
    sums = "\n".join(f"    st.volatile.global.f32 [%rd1+{4 * at}], %f{at};" for at in reversed(range(290)))
    return SPILLING.format(loads=loads, sums=sums)


def made(body: str, arch: str, folder: Path, *options: str) -> tuple[bytes, dict[str, int]]:
    """A cubin, and what ptxas says of it."""
    text = HEAD.format(version="8.7", arch=arch) + body
    tool = toolchain.ptxas_for(text)
    (folder / "k.ptx").write_text(text)
    command = [str(tool.path), "-v", f"-arch={arch}", *options, str(folder / "k.ptx"), "-o", str(folder / "k.cubin")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    numbers = {"registers": r"Used (\d+) registers", "barriers": r"used (\d+) barriers", "stack": r"(\d+) bytes stack",
               "spilled": r"(\d+) bytes spill stores", "smem": r"(\d+) bytes smem"}  # fmt: skip
    found = {name: re.search(pattern, said) for name, pattern in numbers.items()}
    return (folder / "k.cubin").read_bytes(), {name: int(hit[1]) if hit else 0 for name, hit in found.items()}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_registers_stack_and_barriers_are_what_ptxas_says(arch: str, tmp_path: Path) -> None:
    cubin, said = made(SHARING, arch, tmp_path)
    found = resources(cubin, "shares")
    assert (found.registers, found.barriers, found.stack) == (said["registers"], said["barriers"], said["stack"])
    assert said["barriers"] == 4
    assert (found.spills, found.shared) == (0, said["smem"] + 1024)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_spills_are_seen(arch: str, tmp_path: Path) -> None:
    cubin, said = made(spilling(), arch, tmp_path, "-maxrregcount=64")
    found = resources(cubin, "spills")
    assert (found.registers, found.stack) == (said["registers"], said["stack"])
    assert said["spilled"] > 0
    assert found.spills > 100


def test_damaged_cubins_and_absent_kernels_are_refused(tmp_path: Path) -> None:
    cubin, _ = made(SHARING, "sm_90a", tmp_path)
    with pytest.raises(EmulatorError, match="the cubin has no kernel nobody; it has shares"):
        resources(cubin, "nobody")
    for damaged in (b"", b"\x7fELF", cubin[:200], b"MZ" + cubin[2:]):
        with pytest.raises(EmulatorError, match="shares: the cubin cannot be read: "):
            resources(damaged, "shares")


def test_a_cubin_that_does_not_say_a_kernel_s_registers_is_refused(tmp_path: Path) -> None:
    cubin, _ = made(SHARING, "sm_90a", tmp_path)
    entry = cubin.index(bytes((4, 0x2F, 8, 0)))
    for changed, said in (
        (bytes((4, 0x7E, 8, 0)), "names no registers, or no stack"),
        (bytes((9, 0x2F, 8, 0)), "of form 9"),
    ):
        with pytest.raises(EmulatorError, match=said):
            resources(cubin[:entry] + changed + cubin[entry + 4 :], "shares")
