"""`KdaWS`: a KDA decode step for wide batches as one persistent kernel whose warps have roles.

Letters: B requests, T tokens, H heads, D = 128 H. An item is a head of a request, item = head * B + request. CTA c of n
walks items floor(B H c / n) up to floor(B H (c + 1) / n), so that what depends on the head alone is seldom read. Two
prep groups take its items by turns and turn them into operand blocks (`ws_prep`); the scan group runs the recurrence
over them (`ws_scan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import Float32, Int32, cute
from cutlass._mlir.dialects import llvm

from equiv.cute.kda.ws_copies import item_slots, load_page, split, stage_conv, stage_rows, wait_bulk_reads
from equiv.cute.kda.ws_layout import (
    ACTIVE,
    BETA,
    BLOCKS,
    DONE,
    LIMIT,
    NEXT,
    OPS_FULL,
    SLOTS,
    STATE_EMPTY,
    STATE_FULL,
    Layout,
    Shared,
    barrier_at,
    block_at,
    block_of,
    gates_at,
    init_barriers,
    meta,
    page_at,
    stage_at,
)
from equiv.cute.kda.ws_prep import CONSTANTS, Place, prepare, sync, take_head, write_meta
from equiv.cute.kda.ws_scan import HELD, Spot, epilogue, load_state, scan, zero_rows
from equiv.errors import UsageError
from equiv.geometry.kda import DIM

if TYPE_CHECKING:
    from collections.abc import Hashable

SCAN_THREADS = 256
PREP_THREADS = 128
THREADS = SCAN_THREADS + 2 * PREP_THREADS
SCAN_REGISTERS = 168
PREP_REGISTERS = 88
"""256 * 168 + 256 * 88 registers are all 65536 of a multiprocessor."""
MAX_TOKENS = 8


class Operands:
    """The kernel's operands by name, while tracing."""

    def __init__(self, **given):
        self.__dict__.update(given)


class KdaWS:
    """The persistent, warp-specialised KDA step.

    Args:
        heads: H.
        tokens: T, 1 to 8.
        record: RecoverSSM verify: states are read and not written; corrections, keys and raw gates are recorded.
            Needs T > 1.
        gate_mode: order of the F_B projection: 0 one chain, 1 four chains of two matrix instructions.
        has_bias: the convolution has a bias.
        conv_dim_first: the window lies as [slot, 3D, window] in memory, else as [slot, window, 3D].
        window: columns of the convolution window, at least T + 2.
        ctas: CTAs of the launch: one per multiprocessor, or any number.

    Operands of the call, in order (dense, but for the first strides of x, conv state, F_A, beta, state, output and
    output gate; all of x, F_A, output gate, window, state and F_B is aligned to 16 bytes; M = B T rows, row b T + t):
        0 x: BF16 [M, >= 3D], q | k | v. 1 conv weight: FP32 [3, 4, D] (part, tap, channel). 2 bias: FP32 [3D].
        3 conv state: BF16 [slots, 3D, window]. 4 F_A: BF16 [M, 128]. 5 beta: BF16 [M, H]. 6 A_log: FP32 [H].
        7 dt_bias: FP32 [D]. 8 slots: int32 [B, T], or [B, 1] when recording; <= 0: the request is absent, its rows of
        the output become +0 and nothing else is touched. 9 state: FP32 [slots, H, 128, 128], a head's page dense.
        10 output: BF16 [M, D]. 11 output gate: BF16 [M, D]. 12 norm weight: BF16 or FP32 [128]. 13 lower bound,
        14 scale, 15 eps: FP32. 16 F_B: BF16 [D, 128]. 17 accepted: int32 [B], 1 to T; read if T > 1 and not recording.
        18 corrections: FP32 [B, H, T, 128]. 19 key/gate: BF16 [B, H, T, 256]; both written when recording.
        Then the CUDA stream. Operands that an instance does not read may be any tensor of the same rank.

    Raises:
        UsageError: a parameter out of range, or more shared memory than a CTA may have.
    """

    def __init__(
        self,
        heads: int,
        tokens: int,
        record: bool,
        gate_mode: int,
        has_bias: bool,
        conv_dim_first: bool,
        window: int,
        ctas: int,
    ):
        if heads < 1:
            raise UsageError(f"heads must be positive; got heads={heads}")
        if not 1 <= tokens <= MAX_TOKENS:
            raise UsageError(f"tokens must be 1 to {MAX_TOKENS}; got tokens={tokens}")
        if record and tokens == 1:
            raise UsageError("record needs more than one token; got tokens=1")
        if gate_mode not in (0, 1):
            raise UsageError(f"gate_mode must be 0 or 1; got gate_mode={gate_mode}")
        if window < tokens + 2:
            raise UsageError(f"window must be at least tokens + 2 = {tokens + 2} columns; got window={window}")
        if ctas < 1:
            raise UsageError(f"ctas must be positive; got ctas={ctas}")
        self.heads = heads
        self.dim = DIM * heads
        self.tokens = tokens
        self.record = record
        self.gate_mode = gate_mode
        self.has_bias = has_bias
        self.dim_first = conv_dim_first
        self.window = window
        self.ctas = ctas
        self.layout = Layout(tokens, window if conv_dim_first else 3)
        if self.layout.bytes > LIMIT:
            raise UsageError(
                f"tokens={tokens} and window={window} need {self.layout.bytes} shared bytes of the {LIMIT} there are"
            )

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances."""
        return (
            self.heads,
            self.tokens,
            self.record,
            self.gate_mode,
            self.has_bias,
            self.dim_first,
            self.window,
            self.ctas,
        )

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,
        mW: cute.Tensor,
        mBias: cute.Tensor,
        mConv: cute.Tensor,
        mFa: cute.Tensor,
        mBeta: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mState: cute.Tensor,
        mOut: cute.Tensor,
        mGate: cute.Tensor,
        mNormW: cute.Tensor,
        lower_bound: cutlass.Float32,
        scale: cutlass.Float32,
        eps: cutlass.Float32,
        mFb: cute.Tensor,
        mAccepted: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
        stream,
    ):
        """One launch; being a programmatic dependent one it may start before its predecessor ends."""
        self.kernel(
            mX, mW, mBias, mConv, mFa, mBeta, mALog, mDtBias, mSlots, mState, mOut, mGate, mNormW, lower_bound, scale,
            eps, mFb, mAccepted, mCorrections, mKeyGate,
        ).launch(
            grid=(self.ctas, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream, use_pdl=True
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mW: cute.Tensor,
        mBias: cute.Tensor,
        mConv: cute.Tensor,
        mFa: cute.Tensor,
        mBeta: cute.Tensor,
        mALog: cute.Tensor,
        mDtBias: cute.Tensor,
        mSlots: cute.Tensor,
        mState: cute.Tensor,
        mOut: cute.Tensor,
        mGate: cute.Tensor,
        mNormW: cute.Tensor,
        lower_bound: cutlass.Float32,
        scale: cutlass.Float32,
        eps: cutlass.Float32,
        mFb: cute.Tensor,
        mAccepted: cute.Tensor,
        mCorrections: cute.Tensor,
        mKeyGate: cute.Tensor,
    ):
        """Threads 0-255 are the scan group, then come two prep groups of 128."""
        operands = Operands(
            x=mX, weight=mW, bias=mBias, conv_state=mConv, f_a=mFa, beta=mBeta, a_log=mALog, dt_bias=mDtBias,
            slots=mSlots, state=mState, output=mOut, gate=mGate, norm_w=mNormW, lower_bound=lower_bound, scale=scale,
            eps=eps, f_b=mFb, accepted=mAccepted, corrections=mCorrections, key_gate=mKeyGate,
        )  # fmt: skip
        shared = Shared(self.layout)
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        if thread == 0:
            init_barriers(shared, SCAN_THREADS, PREP_THREADS)
        cute.arch.barrier()
        # A dependent launch takes the place of CTAs that have ended, and waits there for the others.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        if thread < SCAN_THREADS:
            cute.arch.setmaxregister_increase(SCAN_REGISTERS)
            self.scan_items(operands, shared, cta, thread)
        else:
            cute.arch.setmaxregister_decrease(PREP_REGISTERS)
            self.prepare_items(operands, shared, cta, thread - SCAN_THREADS)

    def share(self, operands, cta: Int32) -> tuple[Int32, Int32]:
        """First item and number of items of a CTA; computed by each role, in its own registers."""
        items, cta = operands.slots.shape[0] * self.heads, unhoisted(cta)
        begin = items * cta // self.ctas
        return begin, items * (cta + 1) // self.ctas - begin

    @cute.jit
    def scan_items(self, operands, shared, cta: Int32, thread: Int32):
        """The scan group: state page and operand block of each item in turn; thread 0 asks for the next page."""
        begin, count = self.share(operands, cta)
        if thread == 0:
            for page in cutlass.range_constexpr(self.layout.pages):
                if page < count:
                    head, number = split(operands, begin + page)
                    request = item_slots(self, operands.slots, operands.accepted, number)
                    load_page(shared, page, operands.state, request.source, head)
        weight = Float32(operands.norm_w[thread % DIM])
        for j in cutlass.range(count, unroll=1):
            # A recording step has more addresses that would be kept in registers over all items.
            local = unhoisted(thread) if self.record else thread
            head, number = split(operands, begin + j)
            page, index = j % self.layout.pages, block_of(j)
            block = block_at(shared, index)
            words = meta(block, self.layout)
            spot = Spot(
                block=block,
                head=head,
                number=number,
                row=number * self.tokens,
                thread=local,
                group=local // 8,
                lane=local % 8,
                slots=words + SLOTS,
                betas=cute.recast_ptr(words + BETA, dtype=cutlass.Float32),
                weight=weight,
                outputs=shared.outputs,
                norms=shared.norms,
            )
            cute.arch.mbarrier_wait(barrier_at(shared, OPS_FULL, index), j >> 2 & 1)
            active = (words + ACTIVE).load()
            cute.arch.mbarrier_wait(barrier_at(shared, STATE_FULL, page), j // self.layout.pages & 1)
            if active != 0:
                rS = cute.make_rmem_tensor(HELD, cutlass.Float32)
                load_state(rS, page_at(shared, page), spot)
                self.next_page(operands, shared, words, j, begin, count, thread)
                scan(self, operands, rS, spot)
                epilogue(self, operands, spot)
            else:
                self.next_page(operands, shared, words, j, begin, count, thread)
                zero_rows(self, operands, spot)
            cute.arch.mbarrier_arrive(barrier_at(shared, DONE, index))

    @cute.jit
    def next_page(self, operands, shared, words, j: Int32, begin: Int32, count: Int32, thread: Int32):
        """Every scan thread has taken its part of the page; thread 0 waits for all of them and asks for the next."""
        page = j % self.layout.pages
        empty = barrier_at(shared, STATE_EMPTY, page)
        cute.arch.mbarrier_arrive(empty)
        if thread == 0 and j + self.layout.pages < count:
            cute.arch.mbarrier_wait(empty, j // self.layout.pages & 1)
            head, _ = split(operands, begin + j + self.layout.pages)
            load_page(shared, page, operands.state, (words + NEXT).load(), head)

    @cute.jit
    def prepare_items(self, operands, shared, cta: Int32, thread: Int32):
        """A prep group: items group, group + 2, ..., each staged while the one before is worked on."""
        begin, count = self.share(operands, cta)
        start = thread // PREP_THREADS
        constants = cute.make_rmem_tensor(CONSTANTS, cutlass.Float32)
        staged, _ = split(operands, begin + start)
        if start < count:
            self.stage_first(operands, shared, constants, begin + start, start, thread % PREP_THREADS)
        cute.arch.cp_async_commit_group()
        for j in cutlass.range(start, count, 2, unroll=1):
            local = unhoisted(thread)
            group, channel = local // PREP_THREADS, local % PREP_THREADS
            item = begin + j
            index = block_of(j)
            head, number = split(operands, item)
            more = j + self.layout.pages < count
            place = Place(
                stage=stage_at(shared, index),
                block=block_at(shared, index),
                gates=gates_at(shared, group) if self.layout.resident else None,
                constants=constants,
                raw=shared.raw + group * self.tokens * DIM,
                sums=shared.sums + group * self.layout.sums * 4,
                request=item_slots(self, operands.slots, operands.accepted, number),
                head=head,
                number=number,
                row=number * self.tokens,
                thread=channel,
                warp=channel // 32,
                lane=channel % 32,
                barrier=1 + group,
                beta=operands.beta[number * self.tokens + cutlass.min(channel, self.tokens - 1), head],
                following=self.following(operands, item, more),
            )
            if cutlass.const_expr(self.dim_first):
                if channel == 0:
                    wait_bulk_reads()
                sync(place)
            if j + 2 < count:
                self.stage_item(operands, stage_at(shared, block_of(j + 2)), item + 2, channel)
            cute.arch.cp_async_commit_group()
            self.wait_for_inputs(operands, place, staged)
            staged = head
            sync(place)
            self.wait_for_block(shared, index, j)
            if place.request.source > 0:
                prepare(self, operands, place)
                write_meta(self, operands, place)
            if channel == 0:
                self.announce(place)
            cute.arch.mbarrier_arrive(barrier_at(shared, OPS_FULL, index))
        if cutlass.const_expr(self.dim_first) and thread % PREP_THREADS == 0:
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def stage_first(self, operands, shared, constants, item: Int32, group: Int32, thread: Int32):
        """Asks for what a prep group's first item needs, first for what does not depend on the request's slots."""
        if cutlass.const_expr(self.layout.resident):
            head, _ = split(operands, item)
            take_head(self, operands, gates_at(shared, group), constants, head, thread)
        self.stage_item(operands, stage_at(shared, 2 * group), item, thread)

    @cute.jit
    def wait_for_inputs(self, operands, place, staged: Int32):
        """Until this thread's copies of the item's inputs are done; those of its head too, unless `staged`."""
        if cutlass.const_expr(self.layout.resident):  # noqa: SIM102  decided while tracing
            if place.head != staged:
                take_head(self, operands, place.gates, place.constants, place.head, place.thread)
                cute.arch.cp_async_commit_group()
                cute.arch.cp_async_wait_group(0)
        cute.arch.cp_async_wait_group(1)

    @cute.jit
    def wait_for_block(self, shared, index: Int32, j: Int32):
        """Until the scan group is done with the item that had the CTA's j-th item's operand block before."""
        if j >= BLOCKS:
            cute.arch.mbarrier_wait(barrier_at(shared, DONE, index), (j >> 2) - 1 & 1)

    @cute.jit
    def stage_item(self, operands, stage, item: Int32, thread: Int32):
        """Asks for the window and rows of an item, unless its request is absent."""
        head, number = split(operands, item)
        request = item_slots(self, operands.slots, operands.accepted, number)
        if request.source > 0:
            stage_conv(self, stage, operands.conv_state, request, head, thread)
            rows = stage + self.layout.window
            stage_rows(self, rows, operands.x, operands.gate, operands.f_a, number * self.tokens, head, thread)

    @cute.jit
    def following(self, operands, item: Int32, more: cutlass.Boolean):
        """Slot of the state that the item's page gets next, 0 if not `more` items use it."""
        slot = Int32(0)
        if more:
            _, number = split(operands, item + self.layout.pages)
            slot = item_slots(self, operands.slots, operands.accepted, number).source
        return slot

    def announce(self, place: Place):
        """Tells the scan group whether the item's request is present and which state its page gets next."""
        words = meta(place.block, self.layout)
        (words + ACTIVE).store(place.request.source)
        (words + NEXT).store(place.following)


def unhoisted(value: Int32) -> Int32:
    """The value, of which the compiler does not know that it is the same in every pass of a loop.

    What is computed from it is computed again in each pass, instead of once into registers that the loop then lacks.
    """
    return Int32(llvm.inline_asm(Int32.mlir_type, [value.ir_value()], "mov.b32 $0, $1;", "=r,r", has_side_effects=True))
