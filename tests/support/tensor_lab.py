"""Runs `tcgen05` instructions on a CTA of 128 threads: tensor memory filled from an array before, read into it after.

Thread t is lane t of tensor memory. The body in between sees `%tm` (address of the allocation), `%sm` (shared address
of a buffer with the image), `%tid`, predicates %pt (true), %pf (false), %pe (one thread), and `%rd3`, its results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ptx_run import aligned, module_text, run

from equiv.emulator.engine import LaunchConfig

Array = npt.NDArray[Any]
SHARED = 1 << 16
BASE = 0x400
"""Shared address of the image: the buffer is the CTA's first variable."""
CHUNK = 32

COMMIT = """
    @%pe tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [barrier];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %pd, [barrier], 0;
    @!%pd bra WAIT;
    tcgen05.fence::after_thread_sync;
"""


def _names(stem: str, count: int) -> str:
    return "{" + ", ".join(f"%{stem}{i}" for i in range(count)) + "}"


def _prologue(columns: int, image_bytes: int) -> str:
    return f"""
    .reg .b32 %tm, %sm, %tid, %ta, %x, %y; .reg .pred %pt, %pf, %pe, %pd; .reg .b32 %v<128>; .reg .b32 %w<128>;
    mov.u32 %tid, %tid.x; mov.u32 %sm, buffer; setp.eq.u32 %pt, 0, 0; setp.eq.u32 %pf, 0, 1; setp.eq.u32 %pe, %tid, 0;
    ld.param.b64 %rd1, [image]; ld.param.b64 %rd2, [state]; ld.param.b64 %rd3, [out];
    mov.u32 %r2, %tid;
FILL: setp.ge.u32 %p1, %r2, {image_bytes // 16}; @%p1 bra FILLED;
    shl.b32 %r4, %r2, 4; add.u32 %r5, %r4, %sm; cvt.u64.u32 %rd4, %r4; add.s64 %rd4, %rd4, %rd1;
    ld.global.v4.b32 {{%r6,%r7,%r8,%r9}}, [%rd4]; st.shared.v4.b32 [%r5], {{%r6,%r7,%r8,%r9}};
    add.u32 %r2, %r2, 128; bra FILL;
FILLED: setp.lt.u32 %p1, %tid, 32; @%pe mbarrier.init.shared::cta.b64 [barrier], 1;
    @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {columns};
    fence.proxy.async.shared::cta; bar.sync 0;
    ld.shared.b32 %tm, [slot]; shr.u32 %r3, %tid, 5; shl.b32 %r3, %r3, 21; add.u32 %ta, %tm, %r3;
    mul.wide.u32 %rd5, %tid, {4 * columns}; add.s64 %rd2, %rd2, %rd5;
    mul.wide.u32 %rd6, %tid, 512; add.s64 %rd3, %rd3, %rd6;"""


def _transfer(columns: int, *, load: bool) -> str:
    lines = []
    for at in range(0, columns, CHUNK):
        registers = _names("v", CHUNK)
        moves = [
            f"{'st' if load else 'ld'}.global.b32 "
            + (f"[%rd2+{4 * (at + i)}], %v{i};" if load else f"%v{i}, [%rd2+{4 * (at + i)}];")
            for i in range(CHUNK)
        ]
        if load:
            lines += [
                f"tcgen05.ld.sync.aligned.32x32b.x{CHUNK}.b32 {registers}, [%ta+{at}];",
                "tcgen05.wait::ld.sync.aligned;",
            ]
            lines += moves
        else:
            lines += moves
            lines += [
                f"tcgen05.st.sync.aligned.32x32b.x{CHUNK}.b32 [%ta+{at}], {registers};",
                "tcgen05.wait::st.sync.aligned;",
            ]
    return "\n".join(lines)


PAIR_COMMIT = COMMIT.replace("::1.", "::2.").replace(
    "cluster.b64 [barrier]", "cluster.multicast::cluster.b64 [barrier], 3"
)
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"


def pair_text(body: str, columns: int, image_bytes: int) -> str:
    """The module for a cluster of two CTAs, each with its own image, state and results, one after the other."""
    one = text(f"{MEET} {body} {MEET}", columns, image_bytes).replace("alloc.cta_group::1", "alloc.cta_group::2")
    one = one.replace("permit.cta_group::1", "permit.cta_group::2")
    own = f"""
    mov.u32 %r50, %cluster_ctarank; mul.wide.u32 %rd50, %r50, {image_bytes}; add.s64 %rd1, %rd1, %rd50;
    mul.wide.u32 %rd50, %r50, {512 * columns}; add.s64 %rd2, %rd2, %rd50;
    mul.wide.u32 %rd50, %r50, 65536; add.s64 %rd3, %rd3, %rd50;
    setp.eq.u32 %pf, %r50, 0; and.pred %pe, %pe, %pf; setp.eq.u32 %pf, 0, 1;
    mov.u32 %r2, %tid;
FILL:"""
    return one.replace("mov.u32 %r2, %tid;\nFILL:", own).replace(
        "@%pe mbarrier.init", "setp.eq.u32 %p2, %tid, 0; @%p2 mbarrier.init"
    )


def text(body: str, columns: int, image_bytes: int) -> str:
    """The whole module."""
    steps = [
        _prologue(columns, image_bytes), _transfer(columns, load=False),
        "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;", body,
        "bar.sync 0; tcgen05.fence::after_thread_sync;", _transfer(columns, load=True),
        f"bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, {columns};",
        "@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; ret;",
    ]  # fmt: skip
    outside = f".shared .align 1024 .b8 buffer[{SHARED}]; .shared .align 8 .b64 barrier; .shared .align 4 .b32 slot;"
    return module_text("\n".join(steps), ("image", "state", "out"), "sm_100a", outside)


def lab(body: str, state: Array, image: Array | None = None) -> tuple[Array, Array]:
    """Tensor memory [128, columns] after `body`, which found it as `state`, and what it stored at %rd3, [128, 128]."""
    columns = state.shape[1]
    held = np.ascontiguousarray(state, np.uint32).copy()
    out = np.zeros((128, 128), np.uint32)
    given = aligned(16) if image is None else image
    run(text(body, columns, given.nbytes), [given, held, out], LaunchConfig((1, 1, 1), (128, 1, 1)), "sm_100a")
    return held, out


def pair_lab(body: str, states: Array, images: Array) -> Array:
    """Tensor memory [2, 128, columns] of a pair of CTAs after `body`; only one thread of the first has %pe."""
    held, out = np.ascontiguousarray(states, np.uint32).copy(), np.zeros((2, 128, 128), np.uint32)
    source = pair_text(body, states.shape[2], images.nbytes // 2)
    run(source, [images, held, out], LaunchConfig((2, 1, 1), (128, 1, 1), (2, 1, 1)), "sm_100a")
    return held


def unique(columns: int) -> Array:
    """A different word in every cell: lane * 512 + column, and its complement above, so that both halves tell it."""
    cell = np.arange(128)[:, None] * 512 + np.arange(columns)
    return (cell | (cell ^ 0x5555) << 16).astype(np.uint32)
