"""The stock KDA chain in float64 with its BF16 roundings, written from the formulas alone; and inputs for it.

Letters: B requests, T tokens, M = B T rows, H heads, D = 128 H, C = 3D, S = T + 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

F64 = npt.NDArray[np.float64]
SCALE = 128**-0.5
BOUND = -5.0
EPS = 1e-5


@dataclass
class Step:
    """Arguments of `kda_step`, by name, and its options."""

    batch: int = 2
    tokens: int = 1
    heads: int = 2
    gate_mode: int = 0
    bias: bool = False
    dim_first: bool = False
    state: torch.dtype = torch.float32
    absent: tuple[int, ...] = ()
    record: bool = False
    seed: int = 1
    tensors: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=source)

        batch, tokens, width = self.batch, self.tokens, 128 * self.heads
        used = 4 * width + 128 + self.heads
        pitch = (used + 15) // 16 * 16
        columns, count = 3 * width, batch * tokens
        window = normal(count + 2, *((columns, tokens + 2) if self.dim_first else (tokens + 2, columns))).bfloat16()
        slots = (torch.randperm(count, generator=source) + 1).int().reshape(batch, tokens)
        for request in self.absent:
            slots[request] = 0
        self.tensors = {
            "rows": normal(count, pitch).bfloat16()[:, :used],
            "conv_w": normal(columns, 4),
            "conv_bias": normal(columns) if self.bias else None,
            "conv_state": window if self.dim_first else window.transpose(1, 2),
            "a_log": 0.3 * normal(self.heads),
            "dt_bias": normal(width),
            "f_b": (0.1 * normal(width, 128)).bfloat16(),
            "norm_w": normal(128).bfloat16(),
            "slots": slots[:, :1].contiguous() if self.record else slots,
            "accepted": torch.randint(1, tokens + 1, (batch,), generator=source).int(),
            "state": (0.3 * normal(count + 2, self.heads, 128, 128)).to(self.state),
            "y": torch.full((count, width), 7.0, dtype=torch.bfloat16),
        }
        if self.record:
            self.tensors["corrections"] = torch.full((batch, self.heads, tokens, 128), 7.0)
            self.tensors["key_gate"] = torch.full((batch, self.heads, tokens, 256), 7.0, dtype=torch.bfloat16)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments."""
        return {
            "heads": self.heads,
            "tokens": self.tokens,
            "gate_mode": self.gate_mode,
            "lower_bound": BOUND,
            "scale": SCALE,
            "eps": EPS,
        }

    def copy(self) -> dict[str, Any]:
        """The tensors once more, with their strides."""
        return {name: one if one is None else strided_copy(one) for name, one in self.tensors.items()}


def strided_copy(one: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; what lies between rows is zero."""
    made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
    made.copy_(one)
    return made


def bf16(x: F64) -> F64:
    """Rounded to BF16 through float32, as the kernels do."""
    return wide(torch.from_numpy(np.asarray(x, dtype=np.float32)).bfloat16())


def wide(x: torch.Tensor) -> F64:
    """Values in float64."""
    return np.asarray(x.double().numpy())


def sigmoid(x: F64) -> F64:
    """1 / (1 + e^-x)."""
    return np.asarray(1 / (1 + np.exp(-x)))


@dataclass
class Front:
    """What the recurrence reads: each [B, T, H, 128] but beta [B, T, H]; and the windows after the step [B, C, S]."""

    q: F64
    k: F64
    v: F64
    raw: F64
    gate: F64
    beta: F64
    window: F64


def front(step: Step, *, offset: bool) -> Front:
    """Projection and convolution; `offset`: the window begins at accepted - 1."""
    given, width = step.tensors, 128 * step.heads
    rows = wide(given["rows"]).reshape(step.batch, step.tokens, -1)
    mixed = np.empty((step.batch, step.tokens, 3 * width))
    windows = np.empty((step.batch, 3 * width, step.tokens + 2))
    weight = wide(given["conv_w"])
    for b in range(step.batch):
        slot = int(given["slots"][b, 0])
        at = int(given["accepted"][b]) - 1 if offset else 0
        old = wide(given["conv_state"][slot])
        line = np.concatenate([old[:, at : at + 3], rows[b, :, : 3 * width].T], axis=1)
        windows[b] = line[:, 1:]
        for t in range(step.tokens):
            total = (line[:, t : t + 4] * weight).sum(axis=1)
            total += 0 if given["conv_bias"] is None else wide(given["conv_bias"])
            mixed[b, t] = bf16(total * sigmoid(total))
    raw = bf16(rows[:, :, 4 * width : 4 * width + 128] @ wide(given["f_b"]).T)

    def split(x: F64) -> F64:
        return x.reshape(step.batch, step.tokens, step.heads, 128)

    q, k, v = (split(mixed[:, :, i * width : (i + 1) * width]) for i in range(3))
    beta = rows[:, :, 4 * width + 128 :]
    return Front(q, k, v, split(raw), split(rows[:, :, 3 * width : 4 * width]), beta, windows)


@dataclass
class Done:
    """y [B, T, H, 128], state after each token [B, T, H, 128, 128], corrections [B, T, H, 128]."""

    y: F64
    states: F64
    corrections: F64


def recur(step: Step, made: Front) -> Done:
    """Recurrence and gated norm, from slots[b, accepted - 1], or slots[b, 0] for a record."""
    given = step.tensors
    shape = (step.batch, step.tokens, step.heads, 128)
    done = Done(np.empty(shape), np.empty((*shape, 128)), np.empty(shape))
    q = made.q / np.sqrt((made.q**2).sum(-1, keepdims=True) + 1e-6) * SCALE
    k = unit(made.k)
    keep = decays(step, made.raw)
    weight, strength = wide(given["norm_w"]), sigmoid(made.beta)
    for b in range(step.batch):
        column = 0 if step.record else int(given["accepted"][b]) - 1
        state = wide(given["state"][int(given["slots"][b, column])])
        for t in range(step.tokens):
            state = state * keep[b, t][:, None, :]
            u = (made.v[b, t] - (state @ k[b, t][..., None])[..., 0]) * strength[b, t][:, None]
            state = state + u[..., None] * k[b, t][:, None, :]
            o = bf16((state @ q[b, t][..., None])[..., 0])
            done.states[b, t], done.corrections[b, t] = state, u
            mean = (o**2).mean(-1, keepdims=True)
            done.y[b, t] = o / np.sqrt(mean + EPS) * weight * sigmoid(made.gate[b, t])
    return done


def unit(k: F64) -> F64:
    """Keys over their norms."""
    return np.asarray(k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6))


def decays(step: Step, raw: F64) -> F64:
    """What each state column keeps, shape of `raw` [..., H, 128]."""
    log, bias = wide(step.tensors["a_log"]), wide(step.tensors["dt_bias"]).reshape(step.heads, 128)
    return np.asarray(np.exp(BOUND * sigmoid(np.exp(log)[:, None] * (raw + bias))))
