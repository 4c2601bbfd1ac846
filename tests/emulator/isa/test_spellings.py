"""Spellings that ptxas 13.0 accepts for sm_90a, each decoded; operands stand for every register class."""

from __future__ import annotations

import pytest
from ptx_run import module_text

from equiv.emulator.decode import decode
from equiv.emulator.ptx_parser import parse
from equiv.errors import UnknownInstructionError

SPELLINGS = """
atom.global.add.f64 %rd3,[%rd1],%rd2;
red.global.add.f64 [%rd1],%rd2;
atom.global.add.noftz.f16 %rs1,[%rd1],%rs2;
atom.global.add.noftz.bf16 %rs1,[%rd1],%rs2;
atom.shared.add.noftz.f16x2 %r2,[%r1],%r3;
atom.global.v2.f32.add {%f1,%f2},[%rd1],{%f3,%f4};
atom.global.add.v2.f32 {%f1,%f2},[%rd1],{%f3,%f4};
atom.global.add.v4.f32 {%f1,%f2,%f5,%f6},[%rd1],{%f3,%f4,%f7,%f8};
red.relaxed.gpu.global.add.v4.f32 [%rd1],{%f3,%f4,%f7,%f8};
red.global.v4.f32.add [%rd1],{%f3,%f4,%f7,%f8};
red.global.add.noftz.v4.bf16x2 [%rd1],{%r3,%r4,%r5,%r6};
red.global.max.noftz.v8.f16 [%rd1],{%rs1,%rs2,%rs3,%rs4,%rs5,%rs6,%rs7,%rs8};
red.add.v2.f32 [%rd1],{%f3,%f4};
atom.global.cas.b16 %rs1,[%rd1],%rs2,%rs3;
atom.global.add.L2::cache_hint.f32 %f1,[%rd1],%f2,%rd3;
atom.global.exch.b32 %r2,[%rd1],%r3;
red.global.gpu.add.u32 [%rd1],%r2;
atom.global.gpu.acq_rel.add.f32 %f1,[%rd1],%f2;
red.relaxed.gpu.global.add.L2::cache_hint.v2.f32 [%rd1],{%f3,%f4},%rd4;
atom.acq_rel.sys.shared::cluster.add.u32 %r2,[%r1],%r3;
fence.acq_rel.cluster;
fence.acquire.gpu;
fence.sc.sys;
fence.proxy.alias;
fence.proxy.async;
fence.proxy.async.global;
fence.proxy.async.shared::cluster;
fence.mbarrier_init.release.cluster;
fence.acquire.sync_restrict::shared::cluster.cluster;
fence.release.sync_restrict::shared::cta.cluster;
fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;
fence.proxy.tensormap::generic.release.gpu;
fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
membar.gl;
membar.proxy.alias;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1],[%r1],128;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %rd1;
tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], 4, %r1;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r1], 3;
prefetch.global.L2 [%rd1];
prefetch.global.L2::evict_last [%rd1];
prefetch.tensormap [%rd1];
prefetchu.L1 [%rd1];
discard.global.L2 [%rd1], 128;
applypriority.global.L2::evict_normal [%rd1], 128;
ld.global.nc.L2::128B.b32 %r2,[%rd1];
ld.relaxed.gpu.global.L1::no_allocate.b32 %r2,[%rd1];
ld.mmio.relaxed.sys.global.u32 %r2,[%rd1];
ld.acquire.gpu.global.u64 %rd2,[%rd1];
ld.volatile.shared.v2.u64 {%rd2,%rd3},[%r1];
ld.weak.global.cv.b32 %r2,[%rd1];
st.release.cluster.shared::cluster.b32 [%r1],%r2;
st.mmio.relaxed.sys.global.u32 [%rd1],%r2;
st.volatile.global.v4.b32 [%rd1],{%r3,%r4,%r5,%r6};
isspacep.global %p1,%rd1;
isspacep.shared::cluster %p1,%rd1;
barrier.cluster.arrive.release.aligned;
barrier.cluster.arrive.relaxed;
barrier.cluster.wait.acquire.aligned;
barrier.sync 1, 64;
barrier.sync.aligned 1;
barrier.arrive 1, 64;
barrier.cta.red.popc.aligned.u32 %r2, 1, 64, %p1;
barrier.red.and.pred %p2, 1, %p1;
bar.red.popc.u32 %r2, 0, %p1;
bar.cta.red.or.pred %p2, 0, 64, !%p1;
nanosleep.u32 100;
setmaxnreg.inc.sync.aligned.u32 232;
setmaxnreg.dec.sync.aligned.u32 40;
elect.sync _|%p1, 0xffffffff;
griddepcontrol.wait;
griddepcontrol.launch_dependents;
getctarank.u64 %r2, %rd1;
getctarank.shared::cluster.u32 %r2, %r1;
mapa.u64 %rd2, %rd1, 1;
mapa.shared::cluster.u64 %rd2, %rd1, %r3;
mbarrier.arrive.shared::cluster.b64 _, [%r1];
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 5;
mbarrier.arrive.relaxed.cta.shared.b64 %rd2, [%r1];
mbarrier.arrive_drop.shared::cluster.b64 _, [%r1], 5;
mbarrier.arrive_drop.expect_tx.shared.b64 %rd2, [%r1], 5;
mbarrier.test_wait.relaxed.cluster.shared.b64 %p1, [%r1], %rd2;
mbarrier.try_wait.relaxed.cta.shared.b64 %p1, [%r1], %rd2, 5;
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], %r2, 5;
cp.async.mbarrier.arrive.noinc.b64 [%rd1];
cp.async.mbarrier.arrive.shared.b64 [%r1];
cp.async.ca.shared.global.L2::128B [%r1], [%rd1], 8, %r2;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1],%r2,[%r1];
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1],[%r1],128;
cp.reduce.async.bulk.global.shared::cta.bulk_group.min.bf16 [%rd1],[%r1],128;
cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s64 [%rd1],[%r1],128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64 [%r1],[%r1],128,[%r1];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.and.b32 [%r1],%r2,[%r1];
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1],[%rd1],128,[%r1];
cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1],[%r1],128,%rd3;
cp.async.bulk.prefetch.L2.global [%rd1], 128;
cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1,{%r2,%r3}];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1],[%rd1,{%r2,%r3}],[%r1];
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1,{%r2,%r3}],[%r1];
cp.async.bulk.wait_group.read 3;
"""


def _decode(text: str, arch: str) -> None:
    module = parse(module_text(text, ("p",), arch))
    decode(module, module.kernels["k"], arch, {})


@pytest.mark.parametrize("text", SPELLINGS.strip().splitlines())
def test_a_spelling_of_the_assembler_is_known(text: str) -> None:
    _decode(text, "sm_90a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd2, [%r1], 5;", "`.noComplete` is not known here"),
        (
            ("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%r1],[%rd1,{%r2,%r3,%r4}],[%r1],{%rs1};"),
            "`.im2col` is not known here",
        ),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1],[%rd1,{%r2}],[%r1];",
         "operand t must be an address and 2 coordinates"),
        ("ld.global.b32 %r2,[%rd1,{%r2}];", "operand a must be an address"),
        ("st.bulk.weak.shared::cta [%r1], 64, 0;", "needs sm_100 or higher"),
        (
            ("cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes.cta_group::1"
            " [%r1],[%rd1,{%r2}],[%r1];"),
            "needs sm_100 or higher",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(text: str, message: str) -> None:
    with pytest.raises(UnknownInstructionError, match=message):
        _decode(text, "sm_90a")
