"""Both engines place variables and check launches alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equiv.emulator import engine, ptx_parser
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.loading import check_launch, place_variables
from equiv.emulator.memory import Memory
from equiv.emulator.reference import engine as portable
from equiv.errors import DeviceError, UnknownInstructionError

PTX = """
.version 8.8
.target sm_90a
.address_size 64
.global .align 8 .u32 counts[3] = {1, 2, 3};
.const .align 16 .b8 table[5];
.entry k(.param .u64 out, .param .u32 n) .maxntid 256, 1, 1
{
    ret;
}
"""
GOOD = LaunchConfig((4, 1, 1), (64, 1, 1), (2, 1, 1), 100)
PARAMS = bytes(12)


def test_variables_get_aligned_memory_with_their_values_and_constants_cannot_be_written() -> None:
    module = ptx_parser.parse(PTX)
    regions, storage = place_variables(module, module.kernels["k"])
    assert [(name, one.nbytes, one.writable, one.name) for name, one in regions.items()] == [
        ("counts", 12, True, "variable counts"),
        ("table", 5, False, "variable table"),
    ]
    assert [one.address % 256 for one in regions.values()] == [0, 0]
    start = regions["counts"].address - storage[0].ctypes.data
    assert storage[0][start : start + 12].view("<u4").tolist() == [1, 2, 3]
    module = ptx_parser.parse(PTX.replace(".align 16", ".align 512"))
    with pytest.raises(UnknownInstructionError, match="alignment 512 is not supported"):
        place_variables(module, module.kernels["k"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": (0, 1, 1)}, "k: grid (0, 1, 1) must be three positive numbers"),
        ({"block": (32, 1, 65)}, "k: block (32, 1, 65) has 2080 threads; at most 1024, and 64 in z"),
        ({"block": (1, 1, 65)}, "k: block (1, 1, 65) has 65 threads; at most 1024, and 64 in z"),
        ({"grid": (2**31, 1, 1)}, "k: grid (2147483648, 1, 1) is beyond (2^31 - 1, 65535, 65535)"),
        ({"grid": (2, 1, 65536)}, "k: grid (2, 1, 65536) is beyond (2^31 - 1, 65535, 65535)"),
        ({"block": (512, 1, 1)}, "k: block (512, 1, 1) has 512 threads; the kernel allows (256,"),
        ({"cluster": (17, 1, 1)}, "k: cluster (17, 1, 1) has more than 16 CTAs"),
        ({"cluster": (3, 1, 1)}, "k: grid (4, 1, 1) is not a multiple of cluster (3, 1, 1)"),
        ({"dynamic_shared": -1}, "k: -1 bytes of dynamic shared memory"),
        ({"dynamic_shared": 232449}, "k: 232449 bytes of shared memory a CTA; sm_90a has 232448"),
    ],
)
def test_a_launch_that_a_driver_would_refuse_is_refused_by_both_engines(change: dict[str, object], said: str) -> None:
    module, config = ptx_parser.parse(PTX), replace(GOOD, **change)  # type: ignore[arg-type]
    with pytest.raises(DeviceError) as first:
        engine.launch(engine.load(module, "k", "sm_90a"), config, PARAMS, Memory())
    with pytest.raises(DeviceError) as second:
        portable.launch(portable.load(module, "k", "sm_90a"), config, PARAMS, Memory())
    assert str(first.value) == str(second.value)
    assert said in str(first.value)


def test_the_parameter_block_has_the_size_of_the_list() -> None:
    kernel = ptx_parser.parse(PTX).kernels["k"]
    assert check_launch(kernel, "sm_90a", 28, GOOD, PARAMS) == 128
    with pytest.raises(DeviceError, match="k: 16 parameter bytes given, the kernel has 12"):
        check_launch(kernel, "sm_90a", 0, GOOD, bytes(16))
