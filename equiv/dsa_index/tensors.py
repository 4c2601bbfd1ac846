"""Shapes, strides and byte places of the pair `dsa_index`: what the parties get, how logical outputs are cut from it.

Sources: spec/dsa.md 1.0 (packed row), 1.5 (FP4 row), 1.7 (cache page). Knows no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.dsa import BLOCK, DIM, HEADS, PAGE
from equiv.pairs import Axis
from equiv.records import OutputSpec, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.records import AxisValue, Bits, Case

Q_ROW = HEADS * DIM
FP4_SCALES = Q_ROW // 2
"""Byte of a FP4 query row where its scale bytes start."""

AXES = (
    Axis("batch", "int", 16, "requests (tokens) in the batch", low=1, high=1024),
    Axis(
        "format", "str", "fp8", "codes: E4M3 with a scale a head, or E2M1 with a scale per 32 channels", ("fp8", "fp4")
    ),
    Axis("scale", "str", "f32", "key scale in the page: FP32, or UE8M0 bytes (four equal ones in fp8)", ("f32", "mx")),
    Axis("key_round", "str", "bf16", "rounding of the key LayerNorm's result before it is quantised", ("bf16", "f32")),
    Axis("key_floor", "float", 1e-4, "smallest amax of a key, below which its FP8 scale stays constant", (1e-4, 1e-10)),
    Axis("eps", "float", 1e-6, "added to the key's variance", low=1e-12, high=1.0),
    Axis("rows", "str", "dense", "columns of key and weights in the projected row, and pitches", ("dense", "packed")),
    Axis("pages", "int", 0, "pages in the cache; 0 means one more than the batch needs, at least 2", low=0, high=64),
    Axis("page_stride", "int", 0, "bytes from page to page, a multiple of 16; 0 means dense", low=0, high=1 << 32),
)
_DEFAULTS = {axis.name: axis.default for axis in AXES}

_ROWS = {
    "dense": {"width": 160, "key_at": 0, "weight_at": 128, "row_pitch": 160, "q_pitch": Q_ROW},
    "packed": {"width": 2272, "key_at": 2112, "weight_at": 2240, "row_pitch": 2304, "q_pitch": Q_ROW + 64},
}


def axis(case: Case, name: str) -> AxisValue:
    """The value of an axis, its default where the case does not name it."""
    return case.axes.get(name, _DEFAULTS[name])


def whole(case: Case, name: str) -> int:
    """An integer axis."""
    return int(axis(case, name))


def rows(case: Case) -> dict[str, int]:
    """`width`, `key_at`, `weight_at`, `row_pitch` of the projected row and `q_pitch`, all in elements."""
    return _ROWS[str(axis(case, "rows"))]


def is_fp4(case: Case) -> bool:
    """Whether query and key are quantised to E2M1 with a UE8M0 scale per 32 channels."""
    return axis(case, "format") == "fp4"


def is_mx(case: Case) -> bool:
    """Whether the page holds UE8M0 bytes instead of an FP32 scale."""
    return is_fp4(case) or axis(case, "scale") == "mx"


def page_bytes(case: Case) -> int:
    """Bytes of one page: 64 tokens of 132 (fp8) or 68 (fp4)."""
    return PAGE * (68 if is_fp4(case) else 132)


def pages(case: Case) -> int:
    """Pages in the cache."""
    return whole(case, "pages") or max(2, -(-whole(case, "batch") // PAGE) + 1)


def page_stride(case: Case) -> int:
    """Bytes from one page to the next."""
    return whole(case, "page_stride") or page_bytes(case)


def layout(case: Case) -> tuple[TensorSpec, ...]:
    """The tensors both parties get. A cache that spans more than 2**28 bytes is sparse."""
    batch, row = whole(case, "batch"), rows(case)
    q_out = FP4_SCALES + HEADS * DIM // BLOCK if is_fp4(case) else Q_ROW
    stride = page_stride(case)
    cache = (pages(case), page_bytes(case))
    return (
        TensorSpec("q", "input", "bf16", (batch, HEADS, DIM), (row["q_pitch"], DIM, 1)),
        TensorSpec("projected", "input", "bf16", (batch, row["width"]), (row["row_pitch"], 1)),
        TensorSpec("norm_w", "input", "f32", (DIM,), (1,)),
        TensorSpec("norm_b", "input", "f32", (DIM,), (1,)),
        TensorSpec("cache", "inout", "u8", cache, (stride, 1), sparse=cache[0] * stride > 1 << 28),
        TensorSpec("slots", "input", "i64", (batch,), (1,)),
        TensorSpec("q_out", "output", "u8", (batch, q_out), (q_out, 1)),
        TensorSpec("w_out", "output", "bf16", (batch, HEADS), (HEADS, 1)),
    )


def written(slots: Bits) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(requests, pages, positions in the page) of the tokens that are written: slots >= 0, in request order."""
    signed = np.asarray(slots).view(np.int64)
    requests = np.flatnonzero(signed >= 0)
    return requests, signed[requests] // PAGE, signed[requests] % PAGE


def token_bytes(case: Case, slots: Bits) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(page [T, 1], value bytes [T, n], scale bytes [T, 4]) of the written tokens, as indices into `cache`."""
    _, page, at = written(slots)
    values = DIM // 2 if is_fp4(case) else DIM
    value_at = at[:, None] * values + np.arange(values)
    scale_at = PAGE * values + at[:, None] * 4 + np.arange(4)
    return page[:, None], value_at, scale_at


def _nibbles(packed: Bits) -> Bits:
    """Two E2M1 codes a byte, the low nibble first: [..., n] -> [..., 2n]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def outputs(case: Case, inputs: Mapping[str, Bits], tensors: Mapping[str, Bits]) -> dict[str, Bits]:
    """Logical outputs cut from `q_out`, `w_out` and `cache` after the run; `inputs` gives the slots.

    Shapes: q_codes [B, 32, 128] uint8, weights [B, 32] uint16, key_codes [T, 128] uint8, key_scale [T] uint32 (FP32) or
    [T, 4] uint8 (UE8M0), fp4 also q_scale [B, 32, 4] uint8; cache_rest [n] uint8: every byte owned by no written token.
    """
    cache, q_out = tensors["cache"], tensors["q_out"]
    page, value_at, scale_at = token_bytes(case, inputs["slots"])
    values, scales = cache[page, value_at], np.ascontiguousarray(cache[page, scale_at])
    owned = np.zeros(cache.shape, dtype=np.bool_)
    owned[page, value_at] = True
    owned[page, scale_at] = True
    batch = whole(case, "batch")
    found: dict[str, Bits] = {"weights": tensors["w_out"], "cache_rest": cache[~owned]}
    if is_fp4(case):
        found["q_codes"] = _nibbles(q_out[:, :FP4_SCALES].reshape(batch, HEADS, DIM // 2))
        found["q_scale"] = q_out[:, FP4_SCALES:].reshape(batch, HEADS, DIM // BLOCK)
        found["key_codes"], found["key_scale"] = _nibbles(values), scales
    else:
        found["q_codes"] = q_out.reshape(batch, HEADS, DIM)
        found["key_codes"] = values
        found["key_scale"] = scales if is_mx(case) else scales.view("<u4").astype(np.uint32)[:, 0]
    return found


def output_specs(case: Case) -> tuple[OutputSpec, ...]:
    """The logical outputs and what is promised of each (spec/dsa.md 2.3)."""
    codes = "e2m1" if is_fp4(case) else "e4m3"
    key_scale = (
        OutputSpec("key_scale", "ue8m0", ("token", "block" if is_fp4(case) else "copy"), "envelope", _KEY)
        if is_mx(case)
        else OutputSpec("key_scale", "f32", ("token",), "envelope", _KEY)
    )
    q_scale = OutputSpec("q_scale", "ue8m0", ("request", "head", "block"), "bitwise", _SCALE)
    return (
        OutputSpec("q_codes", codes, ("request", "head", "channel"), "bitwise", _CODES),
        *((q_scale,) if is_fp4(case) else ()),
        OutputSpec("weights", "bf16", ("request", "head"), "envelope", _WEIGHTS),
        OutputSpec("key_codes", codes, ("token", "channel"), "envelope", _KEY),
        key_scale,
        OutputSpec(
            "cache_rest", "u8", ("byte",), "bitwise", "bytes of no written token stay as they were", copied=True
        ),
    )


_SCALE = "amax is exact, so is its power of two"
_CODES = "amax and scale are exact; one rounding to code"
_WEIGHTS = "one of the declared products, rounded to BF16: one value, but for a few BF16 subnormals"
_REST = "bytes of no written token stay as they were"
_KEY = "the LayerNorm's two sums may be taken in another declared order"


def place(case: Case, inputs: Mapping[str, Bits], output: str, index: tuple[int, ...]) -> str:
    """Where an element of an output lies: `request 7, slot 130 (page 2, position 2), channel 5`."""
    slots = inputs["slots"]
    requests, page, at = written(slots)
    if output == "cache_rest":
        (page_of,), (byte,) = _rest_bytes(case, slots, np.array(index))
        return _byte_place(case, int(page_of), int(byte))
    dims = next(spec.dims for spec in output_specs(case) if spec.name == output)
    words = [f"{name} {at_index}" for name, at_index in zip(dims, index, strict=True)]
    if dims[0] == "token":
        token = index[0]
        slot = int(page[token]) * PAGE + int(at[token])
        words[0] = f"request {requests[token]}, slot {slot} (page {page[token]}, position {at[token]})"
    return ", ".join(words)


def shared(case: Case, inputs: Mapping[str, Bits], output: str, indices: npt.NDArray[np.int64]) -> str:
    """What bytes of `cache_rest` share: `all in scale bytes of slot 127 (page 1), which nothing writes`, or ""."""
    if output != "cache_rest":
        return ""
    page, byte = _rest_bytes(case, inputs["slots"], indices[:, 0])
    is_value, position, _ = _in_page(case, byte)
    slots, touched = np.unique(page * PAGE + position), np.unique(page)
    part = "" if len(set(is_value.tolist())) > 1 else "value bytes of " if is_value[0] else "scale bytes of "
    where = f"{'page' if len(touched) == 1 else 'pages'} {_listed(touched)}"
    if len(slots) <= LISTED:
        return f"all in {part}slot{'s' * (len(slots) > 1)} {_listed(slots)} ({where}), which nothing writes"
    if len(touched) < pages(case) or part:
        return f"all in {part}{len(slots)} slots of {where}, which nothing writes"
    return ""


LISTED = 4
"""Slots that are named one by one."""


def _listed(numbers: npt.NDArray[np.int64]) -> str:
    consecutive = len(numbers) > 2 and int(numbers[-1] - numbers[0]) == len(numbers) - 1
    return f"{numbers[0]}..{numbers[-1]}" if consecutive else ", ".join(map(str, numbers.tolist()))


def _rest_bytes(
    case: Case, slots: Bits, at: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(pages, bytes in the page) of elements of `cache_rest`."""
    owner_page, value_at, scale_at = token_bytes(case, slots)
    free = np.ones((pages(case), page_bytes(case)), dtype=np.bool_)
    free[owner_page, value_at] = False
    free[owner_page, scale_at] = False
    return np.divmod(np.flatnonzero(free.ravel())[at], page_bytes(case))


def _in_page(
    case: Case, byte: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of bytes of a page: whether each is a value or a scale byte, of which position, and which one of it."""
    values = DIM // 2 if is_fp4(case) else DIM
    is_value = byte < PAGE * values
    position = np.where(is_value, byte // values, (byte - PAGE * values) // 4)
    return is_value, position, np.where(is_value, byte % values, (byte - PAGE * values) % 4)


def _byte_place(case: Case, page: int, byte: int) -> str:
    is_value, position, at = _in_page(case, np.array(byte))
    part = f"{'value' if is_value else 'scale'} byte {at}"
    return (
        f"page {page}, byte {byte} ({part} of position {position}, slot {page * PAGE + position}, which nothing writes)"
    )
