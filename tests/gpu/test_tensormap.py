"""The tensor maps that the DSA front writes itself are the driver's, in every field that means something."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from equiv.cute.tensormap import Matrix, differences, encode

if TYPE_CHECKING:
    from equiv.device import Device

pytestmark = pytest.mark.gpu

MATRICES = [
    Matrix(0x7F0000000000, 4096, 1536, 3072, 128),
    Matrix(0x7F0000000010, 1, 1536, 4608, 16),
    Matrix(0x7F0000001230, 17, 1536, 12576, 32),
    Matrix(0x7F0000000000, 1 << 31, 64, 1 << 20, 256, 8),
    Matrix(0x7F0000000000, 5, 1 << 31, (1 << 40) - 16, 1, 24),
]


def by_driver(matrix: Matrix) -> bytes:
    """What `cuTensorMapEncodeTiled` writes for a BF16 matrix with the 128-byte swizzle."""
    from cuda.bindings import driver

    def numbers(kind: Any, *values: int) -> list[Any]:
        return [kind(value) for value in values]

    error, found = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        matrix.address,
        numbers(driver.cuuint64_t, matrix.columns, matrix.rows),
        numbers(driver.cuuint64_t, matrix.pitch),
        numbers(driver.cuuint32_t, matrix.box_columns, matrix.box_rows),
        numbers(driver.cuuint32_t, 1, 1),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return struct.pack("<16Q", *(int(word) for word in found.opaque))


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: f"{matrix.rows}x{matrix.columns}")
def test_an_encoded_map_differs_from_the_driver_s_in_no_field(gpu: Device, matrix: Matrix) -> None:
    import torch

    torch.zeros(1, device=gpu.torch_device)  # the driver encodes in a context
    assert differences(encode(matrix), by_driver(matrix)) == {}
