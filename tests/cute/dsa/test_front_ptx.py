"""Facts of the front's compiled code, without running it: no spills, the instructions of each role, and their order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sample_front
import triton
from cuda.bindings.driver import CUstream
from cutlass import Float32, cute

import equiv
from equiv.cute import host
from equiv.cute.dsa.front_host import FORMS
from equiv.cute.tensormap import tensor_map

if TYPE_CHECKING:
    from collections.abc import Callable

MMA: dict[str, tuple[str, int, dict[str, Any]]] = {
    "split4": ("sm_100a", 48, {}),
    "split2": ("sm_100a", 128, {}),
    "split1-fp4": ("sm_100a", 1024, {"fp4": True}),
    "split1-normalized": ("sm_100a", 256, {"normalized": True}),
}
HOPPER: dict[str, tuple[str, int, dict[str, Any]]] = {
    "hopper-split4": ("sm_90a", 16, {}),
    "hopper-split2": ("sm_90a", 64, {}),
    "hopper-split2-fp4": ("sm_90a", 48, {"fp4": True}),
}
VARIANTS = MMA | HOPPER
REGISTERS = 65536
"""Those of a multiprocessor; the Hopper form's two CTAs of 320 threads share them."""
Compiled = tuple[str, bytes]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compiled]:
    """Variant -> PTX and cubin, made without a GPU."""
    made: dict[str, Compiled] = {}

    def get(name: str) -> Compiled:
        if name not in made:
            arch, batch, axes = VARIANTS[name]
            given = sample_front.inputs(batch, **axes)
            rows = given["projected"][:, :1536] if given["q_c"] is None else given["q_c"]
            kernel = FORMS[arch](
                batch,
                1536,
                1664,
                normalized=given["q_c"] is not None,
                row_pitch=rows.stride(0),
                fp4=axes.get("fp4", False),
            )
            rest = [given[key] for key in ("norm_w", "norm_b", "cache", "slots", "q_out", "w_out")]
            tensors = (given["projected"], rows, given["w_qa"], tensor_map(given["w_q"], 128), *rest)
            folder = tmp_path_factory.mktemp("cute")
            with equiv.device(f"emulated:{arch}").active():
                function = cute.compile(
                    kernel,
                    *map(host.dynamic, tensors),
                    Float32(1e-6),
                    Float32(1e-6),
                    CUstream(0),
                    options=f"--keep-ptx --keep-cubin --dump-dir={folder}",
                )
            made[name] = function.__ptx__.rstrip("\0"), function.__cubin__
        return made[name]

    return get


@pytest.mark.parametrize("name", VARIANTS)
def test_the_cubin_has_no_spills_and_no_stack(compiled: Callable[[str], Compiled], name: str, tmp_path: Path) -> None:
    ptx, cubin = compiled(name)
    assert f".target {VARIANTS[name][0]}" in ptx
    assert ".local" not in ptx
    image = tmp_path / "kernel.cubin"
    image.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "--dump-resource-usage", image], check=True, capture_output=True, text=True).stdout
    assert "STACK:0 " in usage
    assert "LOCAL:0 " in usage
    registers = re.search(r"REG:(\d+) ", usage)
    assert registers is not None
    assert int(registers[1]) <= (REGISTERS // (2 * 320) if name in HOPPER else 168)


@pytest.mark.parametrize("name", MMA)
def test_a_block_is_four_products_and_one_commit(compiled: Callable[[str], Compiled], name: str) -> None:
    ptx, _ = compiled(name)
    assert ptx.count("tcgen05.mma.cta_group::1.kind::f16 ") == 4
    assert ptx.count("tcgen05.commit.") == 2


@pytest.mark.parametrize(
    ("name", "rows", "blocks"), [("hopper-split4", 16, 6), ("hopper-split2", 32, 12), ("hopper-split2-fp4", 24, 12)]
)
def test_a_block_is_four_warpgroup_products_of_all_rows_and_one_commit(
    compiled: Callable[[str], Compiled], name: str, rows: int, blocks: int
) -> None:
    ptx, _ = compiled(name)
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16") == 4 * blocks
    assert ptx.count("wgmma.mma_async") == 4 * blocks
    assert ptx.count("wgmma.commit_group") == blocks


def test_two_ctas_of_the_hopper_form_find_registers_for_all_their_threads(
    compiled: Callable[[str], Compiled],
) -> None:
    for name in HOPPER:
        ptx, _ = compiled(name)
        assert ".reqntid 320" in ptx
        assert ".minnctapersm 2" in ptx


def test_the_next_launch_may_begin_early_and_with_few_rows_before_this_one_waits(
    compiled: Callable[[str], Compiled],
) -> None:
    for name, early in (("hopper-split4", True), ("hopper-split2", False)):
        ptx, _ = compiled(name)
        assert ptx.count("griddepcontrol.launch_dependents") == 1
        begins = ptx.index("griddepcontrol.launch_dependents")
        assert (begins < ptx.index("griddepcontrol.wait")) == early
        assert begins < ptx.index("wgmma.mma_async")


@pytest.mark.parametrize("name", VARIANTS)
def test_only_weights_are_loaded_before_the_wait_for_the_grid_before(
    compiled: Callable[[str], Compiled], name: str
) -> None:
    ptx, _ = compiled(name)
    early = ptx[: ptx.index("griddepcontrol.wait")]
    arch, batch, _ = VARIANTS[name]
    _, plan = FORMS[arch].cut(batch)
    assert early.count("cp.async.bulk.tensor.2d") == (plan.stages if arch == "sm_100a" else plan.blocks)
    assert "ld.global" not in early
    assert early.count("fence.proxy.tensormap::generic.acquire.sys") == 1


def test_the_norm_divides_correctly_rounded_and_takes_the_root_that_keeps_subnormals(
    compiled: Callable[[str], Compiled],
) -> None:
    ptx, _ = compiled("split4")
    assert ptx.count("div.rn.f32") == ptx.count("rsqrt.approx.f32") + 2  # query and key scales divide too
    assert ptx.count("rsqrt.approx.ftz.f32") == 1  # the key's
    normalized, _ = compiled("split1-normalized")
    assert "rsqrt.approx.f32" not in normalized
    assert "st.async" not in normalized


def test_partial_sums_leave_as_many_at_a_time_as_lie_together(compiled: Callable[[str], Compiled]) -> None:
    for name, columns in (("split4", 48), ("split2", 64)):
        ptx, _ = compiled(name)
        assert ptx.count("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32") == columns // 4
    # Fragments of wgmma have two neighbouring rows of two channels; lanes swap them for four of one, sent in one of two
    # passes over all rows. The norm tells the other CTAs about the rows of a lane one by one.
    ptx, _ = compiled("hopper-split2")
    assert ptx.count("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32") == 32 // 8 * 2
    assert ptx.count("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32") == 2
