"""The stock KDA chain, emulated, against float64; what it writes, what it leaves alone, absent requests.

Contract: windows and records of keys are exact; states, corrections and outputs are those of the formulas up to float32
sums and the BF16 roundings; nothing else changes. Absent requests behave as in stock, which is not what candidates do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kda_plain import BOUND, Step, decays, front, recur, unit, wide

import equiv
from equiv.errors import UsageError
from equiv.triton_ref.kda import kda_commit, kda_record, kda_step

ARCHES = ("sm_90a", "sm_100a")
COMMITTED = ("conv_state", "state", "corrections", "key_gate", "a_log", "dt_bias", "slots")
BF16_STEP = 2.0**-7
"""Two neighbours of BF16 differ by at most this part of them; a float32 sum may land on either."""


def run(step: Step, arch: str, **changed: Any) -> dict[str, Any]:
    """The tensors after a step or a record."""
    tensors = step.copy() | changed
    with equiv.device(f"emulated:{arch}").active():
        (kda_record if step.record else kda_step)(**tensors, **step.options)
    return tensors


def close(found: torch.Tensor, expected: np.ndarray[Any, Any], relative: float, absolute: float) -> None:
    """Element by element, in float64."""
    error = np.abs(wide(found) - expected)
    assert (error <= relative * np.abs(expected) + absolute).all(), float(error.max())


STEPS = {
    "t1": Step(),
    "t1-bias-dim-first-gate1": Step(bias=True, dim_first=True, gate_mode=1, seed=2),
    "t1-bf16": Step(state=torch.bfloat16, seed=3),
    "t3": Step(tokens=3, seed=4),
    "t2-dim-first-bias-gate1": Step(tokens=2, dim_first=True, bias=True, gate_mode=1, seed=5),
    "t3-bf16": Step(tokens=3, state=torch.bfloat16, seed=6),
}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_outputs_states_and_windows_of_the_formulas(name: str, arch: str) -> None:
    step = STEPS[name]
    made = front(step, offset=step.tokens > 1)
    done = recur(step, made)
    tensors = run(step, arch)
    # The norm divides by the root mean square of a head, so that a neighbour of o is a step of the largest output.
    close(tensors["y"].reshape(done.y.shape), done.y, 2 * BF16_STEP, 1e-4)
    slots = tensors["slots"].long()
    rounding = 2.0**-8 if step.state == torch.bfloat16 else 0.0
    close(tensors["state"][slots], done.states, rounding, 2e-6)
    assert (wide(tensors["conv_state"][slots[:, 0], :, : step.tokens + 2]) == made.window).all()


@pytest.mark.parametrize("arch", ARCHES)
def test_a_step_leaves_inputs_and_other_slots_alone(arch: str) -> None:
    step = STEPS["t3"]
    tensors = run(step, arch)
    others = [slot for slot in range(step.batch * step.tokens + 2) if slot not in step.tensors["slots"]]
    assert len(others) == 2
    assert torch.equal(tensors["state"][others], step.tensors["state"][others])
    free = [slot for slot in range(len(tensors["conv_state"])) if slot not in step.tensors["slots"][:, 0]]
    assert torch.equal(tensors["conv_state"][free], step.tensors["conv_state"][free])
    for name in ("rows", "conv_w", "a_log", "dt_bias", "f_b", "norm_w", "slots", "accepted"):
        assert torch.equal(tensors[name], step.tensors[name]), name


@pytest.mark.parametrize("arch", ARCHES)
def test_columns_of_the_window_beyond_the_tokens_keep_their_bytes(arch: str) -> None:
    step = Step(seed=7)
    longer = torch.randn(4, 768, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    longer[:, :, :3] = step.tensors["conv_state"]
    tensors = run(step, arch, conv_state=longer.clone())
    assert torch.equal(tensors["conv_state"][:, :, 3:], longer[:, :, 3:])
    assert torch.equal(tensors["conv_state"][:, :, :3], run(step, arch)["conv_state"])


def test_an_absent_request_of_one_token_gets_zeros_and_the_norms_sign() -> None:
    tensors = run(Step(batch=3, absent=(1,), seed=8), "sm_90a")
    assert (tensors["y"][1] == 0).all()
    assert torch.signbit(tensors["y"][1]).any()  # 0 * w: the norm runs over absent rows, too
    assert (tensors["y"][0] != 0).any()


def test_an_absent_request_of_several_tokens_gets_zeros_for_the_first_alone() -> None:
    step = Step(batch=3, tokens=2, absent=(1,), seed=9)
    y = run(step, "sm_90a")["y"].reshape(3, 2, -1)
    assert (y[1, 0] == 0).all()
    assert (y[1, 1] != 0).any()  # what was there before, normalised
    assert (y[2] != 0).any()


def test_an_absent_request_of_a_record_gets_zeros_and_no_records() -> None:
    step = Step(batch=3, tokens=2, absent=(1,), record=True, seed=10)
    tensors = run(step, "sm_90a")
    assert (tensors["y"].reshape(3, 2, -1)[1] == 0).all()
    assert (tensors["corrections"][1] == 7).all()
    assert (tensors["key_gate"][1] == 7).all()
    assert (tensors["corrections"][2] != 7).any()


def test_slots_are_addressed_in_64_bits() -> None:
    step = Step(heads=1, seed=11)
    tensors, distance = step.copy(), 1 << 29
    memory = torch.empty(3 * distance + 128 * 128)
    far = memory.as_strided((4, 1, 128, 128), (distance, 128 * 128, 128, 1))
    far[1:3] = step.tensors["state"][1:3]
    found = run(step, "sm_90a", state=far)
    usual = run(step, "sm_90a", **tensors)
    assert torch.equal(found["state"][1:3], usual["state"][1:3])
    assert torch.equal(found["y"], usual["y"])


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_a_record_and_its_commit_are_the_formulas(dtype: torch.dtype, arch: str) -> None:
    step = Step(batch=4, tokens=3, record=True, state=dtype, seed=12)
    made = front(step, offset=False)
    done = recur(step, made)
    tensors = run(step, arch)
    assert torch.equal(tensors["state"], step.tensors["state"])
    close(tensors["y"].reshape(done.y.shape), done.y, 2 * BF16_STEP, 1e-4)
    by_head = done.corrections.transpose(0, 2, 1, 3)
    close(tensors["corrections"], by_head, 0, 2e-6)
    key, raw = (wide(x).transpose(0, 2, 1, 3) for x in tensors["key_gate"].split(128, dim=-1))
    assert (np.abs(key - made.k) <= BF16_STEP * np.abs(made.k)).all()
    assert (np.abs(raw - made.raw) <= BF16_STEP * np.abs(made.raw) + 1e-6).all()
    assert (key == made.k).mean() > 0.995
    assert (raw == made.raw).mean() > 0.995

    source = tensors["slots"][:, 0]
    counts, boundary_counts = (torch.tensor(x).int() for x in ([3, 2, 0, 1], [1, 2, 0, 0]))
    free = [slot for slot in range(1, 14) if slot not in source]
    final = torch.tensor([source[0], free[0], source[2], source[3]]).int()
    boundary = torch.tensor([*free[1:4], 0]).int()
    before = {name: tensors[name].clone() for name in ("state", "conv_state")}
    u, k, keep = wide(tensors["corrections"]), unit(key), decays(step, raw)
    with equiv.device(f"emulated:{arch}").active():
        given = {name: tensors[name] for name in COMMITTED}
        plan = {"counts": counts, "final": final, "boundary": boundary, "boundary_counts": boundary_counts}
        kda_commit(**given, **plan, heads=2, tokens=3, lower_bound=BOUND)
    expected, windows = before["state"].clone(), before["conv_state"].clone()
    for b, to, n in ((0, final, 3), (1, final, 2), (3, final, 1), (0, boundary, 1), (1, boundary, 2)):
        state = wide(before["state"][source[b]])
        for t in range(n):
            state = state * keep[b, t][:, None, :] + u[b, :, t, :, None] * k[b, t][:, None, :]
        slot = int(to[b])
        close(tensors["state"][slot], state, 2.0**-8 if dtype == torch.bfloat16 else 0.0, 2e-6)
        expected[slot] = tensors["state"][slot]
        windows[slot, :, :3] = before["conv_state"][source[b], :, n - 1 : n + 2]
    assert torch.equal(tensors["state"], expected)
    assert torch.equal(tensors["conv_state"], windows)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": torch.zeros(3, 1200, dtype=torch.bfloat16)}, "rows must be batch * tokens = 2 rows; got rows=3"),
        (
            {"rows": torch.zeros(2, 1000, dtype=torch.bfloat16)},
            "rows of 2 heads are 1154 columns wide; got rows.shape[1]=1000",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(Step(), "sm_90a", **changed)
    assert str(raised.value) == message


def test_an_unknown_gate_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^gate_mode must be 0 or 1; got gate_mode=2$"):
        run(Step(gate_mode=2), "sm_90a")
