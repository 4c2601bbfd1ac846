"""Pins one GPU to each xdist worker before anything can load CUDA; nothing else."""

from __future__ import annotations

from equiv.gpus import pin_xdist_worker

pin_xdist_worker()
