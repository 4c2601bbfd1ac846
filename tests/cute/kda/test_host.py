"""What the host side does with arguments: unfit ones are named, weights are laid out anew, a grid is chosen."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from kda_fused import bits, run
from kda_plain import BOUND, Step

from equiv.cute.kda import host
from equiv.errors import UsageError

WIDTH = 128 * 2
USED = 4 * WIDTH + 128 + 2


def shifted(one: torch.Tensor) -> torch.Tensor:
    """The same values one element further in memory."""
    return torch.cat([one.flatten()[:1], one.flatten()])[1:].view(one.shape)


WRONG: dict[str, tuple[Any, str]] = {
    "rows": (lambda t: t[:1], r"rows must be torch.bfloat16 \[2, any\]; got torch.bfloat16 \[1, 1154\]"),
    "rows narrow": (lambda t: t[:, :-1], f"rows must have 4 D \\+ 128 \\+ H = {USED} columns or more; got {USED - 1}"),
    "rows column": (lambda t: t.t().contiguous().t(), "rows must be dense in its columns; got strides"),
    "rows aligned": (lambda t: t.contiguous(), "rows must begin at a multiple of 16 bytes in each row or slot; got"),
    "conv_w": (lambda t: t[:, :3], r"conv_w must be torch.float32 \[768, 4\]; got torch.float32 \[768, 3\]"),
    "conv_bias": (lambda _: torch.zeros(5), r"conv_bias must be torch.float32 \[768\]; got torch.float32 \[5\]"),
    "conv_state": (lambda t: t.float(), r"conv_state must be torch.bfloat16 \[any, 768, any\]; got torch.float32"),
    "conv_state short": (lambda t: t[:, :, :2], r"conv_state must hold tokens \+ 2 = 3 columns; got 2"),
    "conv_state gaps": (
        lambda t: torch.zeros(4, 768, 6, dtype=t.dtype)[:, :, ::2],
        r"conv_state must be dense within a slot, either way round; got strides \(4608, 6, 2\)",
    ),
    "a_log": (lambda t: t.double(), r"a_log must be torch.float32 \[2\]; got torch.float64 \[2\]"),
    "dt_bias": (lambda t: t[:-1], r"dt_bias must be torch.float32 \[256\]; got torch.float32 \[255\]"),
    "f_b": (lambda t: t.t(), r"f_b must be torch.bfloat16 \[256, 128\]; got torch.bfloat16 \[128, 256\]"),
    "f_b aligned": (shifted, "f_b must begin at a multiple of 16 bytes in each row or slot; got address 0x"),
    "norm_w": (lambda t: t.half(), r"norm_w must be torch.bfloat16 \[128\]; got torch.float16 \[128\]"),
    "slots": (lambda t: t.long(), r"slots must be torch.int32 \[2, 1\]; got torch.int64 \[2, 1\]"),
    "accepted": (lambda t: t[:1], r"accepted must be torch.int32 \[2\]; got torch.int32 \[1\]"),
    "state": (lambda t: t.half(), "state must be FP32 or BF16; got torch.float16"),
    "state pages": (lambda t: t.transpose(2, 3), "state must be dense within a slot; got strides"),
    "state slots": (lambda t: t[:-1], r"state must be torch.float32 \[4, 2, 128, 128\]; got torch.float32 \[3, 2,"),
    "y": (lambda t: t[:, :-1], r"y must be torch.bfloat16 \[2, 256\]; got torch.bfloat16 \[2, 255\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_that_does_not_fit_is_named(name: str) -> None:
    change, message = WRONG[name]
    step = Step()
    field = name.partition(" ")[0]
    tensors = step.tensors | {field: change(step.tensors[field])}
    with pytest.raises(UsageError, match=f"^{message}"):
        host.kda_step(**tensors, **step.options, kernel="wide")


def test_records_must_have_the_requests_shape() -> None:
    step = Step(tokens=2, record=True)
    tensors = step.tensors | {"key_gate": step.tensors["key_gate"][..., :128]}
    message = r"key_gate must be torch.bfloat16 \[2, 2, 2, 256\]; got torch.bfloat16 \[2, 2, 2, 128\]"
    with pytest.raises(UsageError, match=message):
        host.kda_record(**tensors, **step.options)


def test_a_commit_names_the_plan_that_does_not_fit() -> None:
    step = Step(tokens=2, record=True)
    names = ("conv_state", "state", "corrections", "key_gate", "a_log", "dt_bias", "slots")
    plan = dict.fromkeys(("counts", "final", "boundary", "boundary_counts"), torch.ones(2, dtype=torch.int32))
    given = {name: step.tensors[name] for name in names} | plan | {"boundary": torch.ones(3, dtype=torch.int32)}
    with pytest.raises(UsageError, match=r"boundary must be torch.int32 \[2\]; got torch.int32 \[3\]"):
        host.kda_commit(**given, heads=2, tokens=2, lower_bound=BOUND)


def test_an_unknown_kernel_is_refused() -> None:
    step = Step()
    with pytest.raises(UsageError, match="kernel must be one of ws, wide; got kernel='split'"):
        host.kda_step(**step.tensors, **step.options, kernel="split")


def test_only_the_wide_kernel_takes_a_bf16_state() -> None:
    step = Step(state=torch.bfloat16)
    message = "kernel 'ws' needs an FP32 state, 'wide' takes BF16 too; got state torch.bfloat16"
    with pytest.raises(UsageError, match=message):
        host.kda_step(**step.tensors, **step.options, kernel="ws")


def test_weights_prepared_once_give_the_same_bits() -> None:
    step = Step()
    prepared = step.copy() | {
        "conv_w": host.convolution_weight(step.tensors["conv_w"]),
        "norm_w": step.tensors["norm_w"].float(),
    }
    assert prepared["conv_w"].shape == (3, 4, WIDTH)
    one, other = run(step, "sm_100a"), run(step, "sm_100a", tensors=prepared)
    assert (bits(one["y"]) == bits(other["y"])).all()


def test_an_emulated_device_gets_few_ctas_and_a_gpu_one_a_multiprocessor() -> None:
    assert host.multiprocessors(torch.zeros(1)) == host.EMULATED_CTAS
    on_gpu = mock.Mock(is_cuda=True, device="cuda:0")
    found = mock.Mock(multi_processor_count=132)
    with mock.patch.object(torch.cuda, "get_device_properties", return_value=found):
        assert host.multiprocessors(on_gpu) == 132
