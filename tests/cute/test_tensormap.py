"""The encoder of tensor maps against the emulator's, which equals the driver's, and against what CuTe DSL writes."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import pytest
import sample_front
import torch

import equiv
from equiv.cute.tensormap import Matrix, differences, encode, tensor_map
from equiv.emulator import tensormap as emulated
from equiv.emulator.record import RecordFolder
from equiv.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = Matrix(0x7F12_3456_7890 & ~15, 4096, 1536, 3072, 128)
MATRICES = [
    WEIGHTS,
    Matrix(0xFFFF_FFFF_FFF0, 1, 1 << 32, (1 << 40) - 16, 256, 8),
    Matrix(0, 1 << 32, 64, 1 << 36, 1, 64),
    Matrix(16, 5, 1536, 4608, 16, 16),
]


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
def test_a_map_is_what_the_emulator_encodes_for_the_same_matrix(matrix: Matrix) -> None:
    want = emulated.encode(
        emulated.TensorMap(
            matrix.address,
            "bf16",
            (matrix.columns, matrix.rows),
            (matrix.pitch,),
            (matrix.box_columns, matrix.box_rows),
            swizzle=128,
        )
    )
    assert encode(matrix) == want


@pytest.mark.parametrize(("batch", "pitch"), [(5, 1696), (33, 2304)])
def test_a_map_is_what_cute_dsl_passes_for_the_rows_of_a_launch(batch: int, pitch: int, tmp_path: Path) -> None:
    device = equiv.device("emulated:sm_100a")
    given = sample_front.inputs(batch, pitch=pitch)
    with device.recorded(tmp_path, "front"):
        sample_front.run(device, given)
    (launch,) = RecordFolder(tmp_path).load("front").launches
    rows = given["projected"]
    (offset,) = {one.offset for one in launch.pointers if one.offset == 0}
    found = launch.params[offset : offset + 128]
    box = 16 if batch == 5 else 48
    assert differences(encode(Matrix(rows.data_ptr(), batch, 1536, pitch * 2, box)), found) == {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"address": 8}, "address must be 0 to 18446744073709551615 and a multiple of 16; got address=8"),
        ({"rows": 0}, "rows must be 1 to 4294967296; got rows=0"),
        ({"columns": (1 << 32) + 1}, "columns must be 1 to 4294967296; got columns=4294967297"),
        ({"pitch": 24}, "pitch must be 16 to 1099511627775 and a multiple of 16; got pitch=24"),
        ({"pitch": 1 << 40}, "pitch must be 16 to 1099511627775 and a multiple of 16; got pitch=1099511627776"),
        ({"box_rows": 257}, "box_rows must be 1 to 256; got box_rows=257"),
        ({"box_columns": 72}, "box_columns must be 8 to 64 and a multiple of 8; got box_columns=72"),
    ],
)
def test_what_the_hardware_cannot_do_is_refused(changed: dict[str, int], message: str) -> None:
    fields = {name: getattr(WEIGHTS, name) for name in WEIGHTS.__slots__} | changed
    with pytest.raises(UsageError, match=re.escape(f"tensor map: {message}")):
        encode(Matrix(**fields))


def test_differences_name_the_words_and_leave_out_what_has_no_effect() -> None:
    words = list(struct.unpack("<32I", encode(WEIGHTS)))
    words[2] ^= 1 << 21 | 1 << 18 | 2
    words[17] = 5
    assert differences(encode(WEIGHTS), struct.pack("<32I", *words)) == {}
    words[2] ^= 1 << 13
    words[14] += 1
    found = differences(encode(WEIGHTS), struct.pack("<32I", *words))
    assert list(found) == [2, 14]
    assert found[14] == (127, 128)


def test_a_tensor_has_its_map_in_its_own_memory_and_keeps_it() -> None:
    weights = torch.zeros(256, 1536, dtype=torch.bfloat16)
    found = tensor_map(weights, 128)
    assert bytes(found.numpy()) == encode(Matrix(weights.data_ptr(), 256, 1536, 3072, 128))
    assert found.data_ptr() % 64 == 0
    assert tensor_map(weights, 128) is found
    part = tensor_map(weights[128:, 64:128], 64)
    assert bytes(part.numpy()) == encode(Matrix(weights.data_ptr() + 128 * 3072 + 128, 128, 64, 3072, 64))


@pytest.mark.parametrize(
    "tensor", [torch.zeros(4, 64), torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64, 4, dtype=torch.bfloat16).T]
)
def test_other_than_a_matrix_with_dense_rows_is_refused(tensor: Any) -> None:
    with pytest.raises(UsageError, match="a BF16 matrix with dense rows is needed; got torch"):
        tensor_map(tensor, 4)
