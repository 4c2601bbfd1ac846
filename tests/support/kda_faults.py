"""Seeded faults of `kda`'s candidates. Importing a fault's name from here gives the party that has it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kda_row_faults import COMMIT, FORMULAS, ONE, PREPARE, ROWS, THREE, TILE, WIDE
from seeded import Fault, by_name, package

from equiv.kda import parties
from equiv.kda.tensors import axis, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.records import Case

SCALE = "                scale_quad(rS, r, c, factor)\n"
ZEROS = """        else:
            for t in cutlass.range(half, T, 2):
                mY[request * T + t, head * DIM + channel] = BFloat16(0.0)
"""
SOURCE = "        source = mSlots[request, offset]\n"

NINE = (
    Fault("decay dropped", ONE, WIDE, SCALE, "", "kda.13k (S decay) were left out", ("y", "state")),
    Fault("decay applied twice", ONE, WIDE, SCALE, SCALE * 2, "kda.13k (S decay) were done twice", ("y", "state")),
    Fault(
        "gate rounded to BF16",
        ONE,
        FORMULAS,
        "return triton_exp(mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias)))))",
        "g = mul_rn(lower_bound, sigmoid(mul_rn(a, add_rn(raw_gate, dt_bias))))\n"
        "    return triton_exp(Float32(cutlass.BFloat16(g)))",
        "kda.13h (gate g = lower bound * sigmoid) were rounded to BF16",
        ("y", "state"),
    ),
    Fault(
        "state stored through BF16",
        ONE,
        TILE,
        "rS[r, c, None].load().to(mState.element_type)",
        "rS[r, c, None].load().to(cutlass.BFloat16).to(mState.element_type)",
        "kda.7a (state stored to a float32 pool) were rounded to BF16",
        ("state",),
    ),
    Fault(
        "eps added to the mean",
        "wide-b3-qk-amplitudes",
        FORMULAS,
        "add_rn(squares, NORM_EPS)",
        "add_rn(squares, 128 * NORM_EPS)",
        "kda.13a (q, k: n = sum of squares + 1e-6) were the sum + 128e-6, as if eps were added to a mean",
        ("y", "state"),
    ),
    Fault(
        "o not rounded before the norm",
        ONE,
        WIDE,
        "sO = memory.allocate_tensor(BFloat16, rows, 16)",
        "sO = memory.allocate_tensor(Float32, rows, 16)",
        "kda.8 (o = S q) were missing",
        ("y",),
        ((WIDE, "sO[t, mine] = BFloat16(out)", "sO[t, mine] = out"),),
    ),
    Fault(
        "conv window one tap late",
        "wide-b4-t4-record",
        PREPARE,
        "rX[i] = element(state + (offset + i) * mConv.stride[2])",
        "rX[i] = element(state + (offset + i + 1) * mConv.stride[2])",
        "the windows were read one column late",
        ("y", "conv", "corrections", "key"),
    ),
    Fault(
        "slots ignored",
        THREE,
        WIDE,
        "window_slot = mSlots[request, 0]",
        "window_slot = request + 1",
        "each request's slot were its number in the batch + 1",
        ("y", "conv", "state", "conv_rest", "state_rest"),
        (
            (WIDE, SOURCE, "        source = request + 1\n"),
            (WIDE, "rS, mSlots[request, t], head", "rS, request + 1, head"),
        ),
    ),
    Fault(
        "padded output not zeroed",
        "wide-b5-t3-absent-middle",
        WIDE,
        ZEROS,
        "",
        "STATE FAULT in y_absent",
        ("y_absent",),
    ),
)
"""The faults of arithmetic and of the state that the operator's issue names; the missing barrier is in `SCHEDULE`."""

WS = "kda/ws.py"
SCHEDULE = (
    Fault(
        "missing barrier before the operand block is reused",
        "ws-b5-one-cta",
        WS,
        "        if j >= BLOCKS:\n",
        "        if j >= 1 << 30:\n",
        "nothing orders the two",
    ),
    Fault(
        "missing wait before the state page is reused",
        "ws-b5-one-cta",
        WS,
        "            cute.arch.mbarrier_wait(empty, j // self.layout.pages & 1)\n",
        "",
        "warp 12 lanes 0xffffffff wait for parity 0 of the mbarrier",
    ),
    Fault(
        "missing wait for the operands",
        "ws-b5-one-cta",
        WS,
        "            cute.arch.mbarrier_wait(barrier_at(shared, OPS_FULL, index), j >> 2 & 1)\n",
        "",
        "(`__dynamic_shmem__0` + 133760)), never written",
    ),
    Fault(
        "missing barrier before the operands are read",
        ONE,
        WIDE,
        "            cute.arch.barrier()\n            for t in cutlass.range(T, unroll=1):",
        "            for t in cutlass.range(T, unroll=1):",
        "(`__dynamic_shmem__0` + 1536)), never written",
    ),
)
"""Faults of the schedule: the first is the issue's; the device stops with an error that names both sides."""

PLACES = (
    Fault(
        "accepted counts ignored",
        "wide-b4-t2",
        WIDE,
        "offset = mAccepted[request] - 1",
        "offset = Int32(0)",
        "accepted counts were not read, but 1",
    ),
    Fault(
        "rejected tokens kept in the window",
        "wide-b4-t2",
        PREPARE,
        "rX[i] = element(state + (offset + i) * mConv.stride[2])",
        "rX[i] = element(state + i * mConv.stride[2])",
        "the windows were read from their first column, whatever was accepted",
    ),
    Fault(
        "state left in another token's slot",
        "wide-b4-t2",
        WIDE,
        "rS, mSlots[request, t], head",
        "rS, mSlots[request, (t + 1) % T], head",
        "each token's state were left in the next token's slot",
    ),
    Fault(
        "negative slot counted from the last",
        "wide-bf16-b4-absent",
        WIDE,
        SOURCE,
        SOURCE + "        if source < 0:\n            source += mState.shape[0]\n            window_slot = source\n",
        "STATE FAULT in conv_rest",
        more=((WIDE, "rS, mSlots[request, t], head", "rS, source, head"),),
    ),
    Fault(
        "slots clamped to 0",
        "wide-b5-t3-absent-middle",
        WIDE,
        "if (source > 0) & (window_slot > 0):",
        "source = cutlass.max(source, 0)\n        window_slot = cutlass.max(window_slot, 0)\n        if source >= 0:",
        "a negative slot were slot 0",
        more=(
            (WIDE, "rS, mSlots[request, t], head", "rS, cutlass.max(mSlots[request, t], 0), head"),
            (TILE, "if slot > 0:", "if slot >= 0:"),
        ),
    ),
    Fault(
        "32-bit offsets of slots",
        "wide-b6-far",
        TILE,
        "Int64(slot) * mState.stride[0]",
        "Int64(slot * Int32(mState.stride[0]))",
        "6442450944 bytes before the start of `state`",
    ),
    Fault(
        "one token too many committed",
        "wide-b8-t5-commit-dim-first",
        COMMIT,
        "source, final, count = mSlots[request, 0], mFinal[request], mCounts[request]\n",
        "source, final, count = mSlots[request, 0], mFinal[request], mCounts[request]\n"
        "        if (count > 0) & (count < T):\n            count += 1\n",
        "a token more than was accepted were committed",
    ),
    Fault(
        "one token too few committed",
        "wide-b8-t5-commit-dim-first",
        COMMIT,
        "source, final, count = mSlots[request, 0], mFinal[request], mCounts[request]\n",
        "source, final, count = mSlots[request, 0], mFinal[request], mCounts[request] - 1\n",
        "a token fewer than was accepted were committed",
    ),
    Fault(
        "boundary with all accepted tokens",
        "ws-b4-t4-commit-boundary",
        COMMIT,
        "            if second_count <= 0:\n",
        "            if second_count > 0:\n                second_count = count\n            if second_count <= 0:\n",
        "the boundary's slot got all accepted tokens",
    ),
    Fault(
        "records written by slot",
        "wide-b4-t4-record",
        WIDE,
        "self.record_key_gate(mKeyGate, sK, sRaw, request,",
        "self.record_key_gate(mKeyGate, sK, sRaw, window_slot,",
        "past the end of `key_gate`",
    ),
    Fault(
        "padded output not zeroed by KdaWS",
        "ws-b3-absent-first",
        WS,
        "                zero_rows(self, operands, spot)\n",
        "",
        "STATE FAULT in y_absent",
    ),
)
"""Slots, windows, counts: from reports on such kernels (user needs, section 5)."""

FAULTS = (*NINE, *SCHEDULE, *PLACES, *ROWS)


def _run(fault: Fault, case: Case, tensors: Mapping[str, Any]) -> None:
    options = {"kernel": str(axis(case, "kernel")), "ctas": whole(case, "ctas")}
    parties._run(f"{package(fault)}.kda.host", case, tensors, options)


def __getattr__(name: str) -> Callable[..., None]:
    return partial(_run, by_name(FAULTS, name))
