"""Pins one GPU to each xdist worker before anything can load CUDA; nothing else."""

from __future__ import annotations

import os


def pinned(devices: str, worker: str) -> str:
    """The entry of the caller's `CUDA_VISIBLE_DEVICES` that worker `gwN` gets: index, UUID or MIG name, as it is."""
    listed = [entry.strip() for entry in devices.split(",") if entry.strip()]
    return listed[int(worker.removeprefix("gw")) % len(listed)] if listed else ""


if "CUDA_VISIBLE_DEVICES" in os.environ and os.environ.get("PYTEST_XDIST_WORKER", "").startswith("gw"):
    os.environ["CUDA_VISIBLE_DEVICES"] = pinned(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["PYTEST_XDIST_WORKER"])
