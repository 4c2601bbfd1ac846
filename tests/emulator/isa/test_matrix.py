"""`ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`: each element where PTX says, products as the model has them."""

from __future__ import annotations

import numpy as np
import pytest
from fragments import a_fragment, b_fragment, d_fragment, d_matrix
from matrix_cases import tiles
from ptx_run import Array, aligned, each, module_text, run

from equiv.emulator.engine import LaunchConfig
from equiv.errors import DeadlockError, EmulatorError, IllegalAccessError
from equiv.rounding.matrix import fused_dot, variant

LANES = np.arange(32)
TILE = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8) + 1000


def _load(instruction: str, registers: int, rows: str = "shl.b32 %r2, %r1, 4;") -> Array:
    """Registers [r, 32] of an ldmatrix from four tiles of unique elements; `rows` sets %r2, where a lane's row is."""
    out = np.zeros((registers, 32), np.uint32)
    source = aligned(512)
    source[:] = TILE.reshape(-1).view(np.uint8)
    stores = "".join(f"st.global.b32 [%rd2+{128 * i}], %r{10 + i};" for i in range(registers))
    body = f"""
        mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [in]; ld.param.b64 %rd2, [out];
        mul.wide.u32 %rd3, %r1, 16; add.s64 %rd3, %rd3, %rd1; ld.global.v4.b32 {{%r20,%r21,%r22,%r23}}, [%rd3];
        mov.u32 %r3, buffer; mad.lo.u32 %r4, %r1, 16, %r3; st.shared.v4.b32 [%r4], {{%r20,%r21,%r22,%r23}};
        bar.warp.sync -1;
        {rows} add.u32 %r2, %r2, %r3;
        {instruction}
        mul.wide.u32 %rd3, %r1, 4; add.s64 %rd2, %rd2, %rd3; {stores} ret;"""
    text = module_text(body, ("in", "out"), outside=".shared .align 16 .b8 buffer[512];")
    run(text, [source, out], LaunchConfig((1, 1, 1), (32, 1, 1)))
    return out


@pytest.mark.parametrize(
    ("number", "registers"), [("x1", "{%r10}"), ("x2", "{%r10,%r11}"), ("x4", "{%r10,%r11,%r12,%r13}")]
)
def test_ldmatrix_gives_each_lane_two_elements_of_a_row_of_each_tile(number: str, registers: str) -> None:
    count = int(number[1:])
    got = _load(f"ldmatrix.sync.aligned.m8n8.{number}.shared.b16 {registers}, [%r2];", count)
    for tile in range(count):
        low, high = TILE[tile, LANES // 4, 2 * (LANES % 4)], TILE[tile, LANES // 4, 2 * (LANES % 4) + 1]
        np.testing.assert_array_equal(got[tile], low.astype(np.uint32) | high.astype(np.uint32) << 16)


def test_ldmatrix_trans_gives_each_lane_two_elements_of_a_column() -> None:
    got = _load("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%r10,%r11,%r12,%r13}, [%r2];", 4)
    for tile in range(4):
        low, high = TILE[tile, 2 * (LANES % 4), LANES // 4], TILE[tile, 2 * (LANES % 4) + 1, LANES // 4]
        np.testing.assert_array_equal(got[tile], low.astype(np.uint32) | high.astype(np.uint32) << 16)


def test_ldmatrix_takes_its_rows_from_wherever_the_lanes_point() -> None:
    swapped = "xor.b32 %r2, %r1, 5; shl.b32 %r2, %r2, 4;"
    got = _load("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r2];", 4, swapped)
    rows = TILE.reshape(32, 8)[LANES ^ 5].reshape(4, 8, 8)
    np.testing.assert_array_equal(got & 0xFFFF, rows[:, LANES // 4, 2 * (LANES % 4)])


def test_only_the_lanes_that_name_rows_need_valid_addresses() -> None:
    wild = "setp.ge.u32 %p1, %r1, 8; shl.b32 %r2, %r1, 4; @%p1 mov.u32 %r2, 77777;"
    got = _load("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r2];", 1, wild)
    np.testing.assert_array_equal(got[0] & 0xFFFF, TILE[0, LANES // 4, 2 * (LANES % 4)])
    with pytest.raises(IllegalAccessError, match=r"lane 8: .*77777 is not a multiple of 16|lane 8"):
        _load("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10,%r11}, [%r2];", 2, wild)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_inverse_of_ldmatrix(trans: str) -> None:
    store = (
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r30,%r31,%r32,%r33}}, [%r2];"
        "xor.b32 %r5, %r2, 0; bar.warp.sync -1;"
        f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r2], {{%r33,%r32,%r31,%r30}}; bar.warp.sync -1;"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r2];"
    )
    got = _load(store, 4)
    np.testing.assert_array_equal(got & 0xFFFF, TILE[::-1][:, LANES // 4, 2 * (LANES % 4)])
    crossed = store.replace("stmatrix.sync.aligned.m8n8.x4.trans", "stmatrix.sync.aligned.m8n8.x4")
    if trans:
        got = _load(crossed, 4)
        np.testing.assert_array_equal(got & 0xFFFF, TILE[::-1][:, 2 * (LANES % 4), LANES // 4])


def test_movmatrix_transposes_a_tile_in_registers() -> None:
    tile = np.arange(64, dtype=np.uint16).reshape(8, 8)

    def words(matrix: Array) -> Array:
        return matrix.reshape(32, 2).copy().view(np.uint32)[:, 0]

    got = each("movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;", {"%r1": words(tile)}, {"%r2": 32})["%r2"]
    np.testing.assert_array_equal(got, words(tile.T.copy()))


def _mma(opcode: str, a: Array, b: Array, c: Array, arch: str) -> Array:
    names = "%r{}"
    sources: dict[str, Array] = {}
    operands = []
    at = 1
    for registers in (a_fragment(a), b_fragment(b), d_fragment(c)):
        used = [names.format(at + i) for i in range(len(registers))]
        at += len(registers)
        operands.append("{" + ", ".join(used) + "}")
        sources |= dict(zip(used, registers, strict=True))
    results = [names.format(at + i) for i in range(len(d_fragment(c)))]
    text = f"{opcode} {{{', '.join(results)}}}, {', '.join(operands)};"
    got = each(text, sources, dict.fromkeys(results, 32), arch)
    return d_matrix(np.stack([got[name] for name in results]), 8, c.dtype)


OPCODES = [
    f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{d}"
    for k, d, a, b in (
        (16, "f32", "f16", "f16"), (16, "f16", "f16", "f16"), (8, "f32", "f16", "f16"), (8, "f16", "f16", "f16"),
        (16, "f32", "bf16", "bf16"), (8, "f32", "bf16", "bf16"), (8, "f32", "tf32", "tf32"), (4, "f32", "tf32", "tf32"),
        (32, "f32", "e4m3", "e5m2"), (32, "f16", "e5m2", "e4m3"),
        (16, "f32", "e4m3", "e4m3"), (16, "f16", "e5m2", "e5m2"),
    )
]  # fmt: skip


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_mma_of_asymmetric_matrices_equals_the_model(opcode: str, arch: str) -> None:
    model = variant(opcode, arch)
    for tile in tiles(model, (16, 8), 12, 1):
        got = _mma(opcode, tile.a, tile.b, tile.c, arch)
        np.testing.assert_array_equal(got, fused_dot(model, tile.a, tile.b, tile.c), err_msg=tile.kind)


def test_each_element_of_a_and_b_meets_its_partner() -> None:
    """One 1 in A and one in B: D has one 1, and only if their k agree."""
    one = np.uint16(0x3F80)
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    for row, k, n in ((0, 0, 0), (3, 5, 1), (11, 9, 6), (15, 15, 7), (8, 2, 4)):
        a, b = np.zeros((16, 16), np.uint16), np.zeros((16, 8), np.uint16)
        a[row, k] = b[k, n] = one
        want = np.zeros((16, 8), np.uint32)
        want[row, n] = 0x3F800000
        np.testing.assert_array_equal(_mma(opcode, a, b, np.zeros((16, 8), np.uint32), "sm_90a"), want)


ZEROS = "".join(f"mov.b32 %r{number}, 0; " for number in range(1, 8))
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%r7}, {%r1,%r2,%r3,%r4};"


def test_a_warp_without_all_its_lanes_cannot_multiply() -> None:
    with pytest.raises(
        EmulatorError, match="all 32 lanes of the warp must execute it together; lanes 0xffff0000 do not"
    ):
        run(module_text(ZEROS + MMA + "ret;", ()), [], LaunchConfig((1, 1, 1), (16, 1, 1)))


def test_lanes_that_pass_by_a_product_leave_the_others_waiting() -> None:
    body = ZEROS + "mov.u32 %r9, %tid.x; setp.lt.u32 %p1, %r9, 7; @%p1 bra END;" + MMA + "END: ret;"
    with pytest.raises(EmulatorError, match=r"lanes 0x0000007f do not|wait for lanes") as caught:
        run(module_text(body, ()), [], LaunchConfig((1, 1, 1), (32, 1, 1)))
    assert "mma.sync" in str(caught.value)
    assert isinstance(caught.value, EmulatorError | DeadlockError)
