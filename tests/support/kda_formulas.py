"""The formulas of `kda` in float64, request by request and token by token, without any rounding but the BF16 ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.rounding import arithmetic as fp
from equiv.rounding.conversions import named
from equiv.rounding.formats import BF16, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from equiv.records import Bits, Case

    F64 = npt.NDArray[np.float64]


def value(bits: Bits) -> F64:
    """Numbers of BF16 or float32 patterns."""
    return decode(bits, BF16) if bits.dtype == np.uint16 else fp.floats(bits).astype(np.float64)


def bf16(x: F64) -> F64:
    """The nearest BF16 values."""
    return decode(named("bf16.f32.rn")(fp.bits_of(x)), BF16)


def sigmoid(x: F64) -> F64:
    """1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + np.exp(-x)))


def _unit(x: F64) -> F64:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6))


def exact(one: Case, given: Mapping[str, Bits]) -> dict[str, F64]:
    """`y` [steps, R, T, H, 128]; `state` [R, T, H, 128, 128] after each token of the last step; `corrections` likewise.

    `folded` [R, H, 128, 128]: the state after `counts` tokens, of mode commit.
    """
    heads, tokens, steps = (int(one.axes[name]) for name in ("heads", "tokens", "steps"))
    dim, record = 128 * heads, one.axes["mode"] != "step"
    slots = given["slots"].view(np.int32)
    rows = value(given["rows"]).reshape(steps, len(slots), tokens, -1)
    window, pool = value(given["conv_state"]), value(given["state"])
    taps, bias = value(given["conv_w"]), value(given["conv_bias"]) if "conv_bias" in given else 0.0
    rate = np.exp(value(given["a_log"]))[:, None]
    ys, states, corrections, folded = [], [], [], []
    for step in range(steps):
        for b in np.flatnonzero(slots[:, 0] > 0):
            at = 0 if record else int(given["accepted"].view(np.int32)[step, b]) - 1
            home, state = slots[b, 0], pool[slots[b, at]].copy()
            line = np.concatenate([window[home][:, at : at + 3], rows[step, b, :, : 3 * dim].T], axis=1)
            window[home] = line[:, 1:]
            y, seen, us = [], [], []
            for t in range(tokens):
                row = rows[step, b, t]
                total = (line[:, t : t + 4] * taps).sum(axis=1) + bias
                q, k, v = bf16(total * sigmoid(total)).reshape(3, heads, 128)
                raw = bf16(value(given["f_b"]) @ row[4 * dim : 4 * dim + 128]).reshape(heads, 128)
                z = raw + value(given["dt_bias"]).reshape(heads, 128)
                decay = np.exp(float(one.axes["lower_bound"]) * sigmoid(rate * z))
                q, k = _unit(q) * 128**-0.5, _unit(k)
                state = state * decay[:, None]
                u = (v - np.einsum("hvk,hk->hv", state, k)) * sigmoid(row[4 * dim + 128 :])[:, None]
                state = state + u[:, :, None] * k[:, None]
                o = bf16(np.einsum("hvk,hk->hv", state, q))
                r = 1 / np.sqrt((o * o).mean(-1, keepdims=True) + float(one.axes["eps"]))
                gate = sigmoid(row[3 * dim : 4 * dim]).reshape(heads, 128)
                y.append(o * r * value(given["norm_w"]) * gate)
                seen.append(state)
                us.append(u)
                if not record:
                    pool[slots[b, t]] = state
            ys.append(y)
            if step == steps - 1:
                states.append(seen)
                corrections.append(us)
                if one.axes["mode"] == "commit" and (count := int(given["counts"].view(np.int32)[b])):
                    folded.append(seen[count - 1])
    found = np.array(ys).reshape(steps, -1, tokens, heads, 128)
    return {"y": found, "state": np.array(states), "corrections": np.array(corrections), "folded": np.array(folded)}
