"""Records the launches of the emulator's own tests, so that `launch_device.py` can repeat them on a GPU.

    python tests/gpu/launch_recorder.py FOLDER TEST...

Runs the tests in the emulator. Each launch that sm_90a can do becomes FOLDER/<n>.cubin, assembled by Triton's ptxas,
and an entry of FOLDER/plan.json: kernel, shape, name of its test; FOLDER/data.npz holds its buffers before
(`<n>/<i>`) and after (`<n>/<i>/after`).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equiv.emulator import toolchain
from equiv.emulator.tensormap import ELEMENT_BYTES, TensorMap, encode

if TYPE_CHECKING:
    from equiv.emulator.engine import LaunchConfig


MAPS = [
    TensorMap(1 << 32, element, (4096, 100, 3), (1 << 15, 1 << 22), (64 // size, 16, 2), (1, 2, 1), 128)
    for element, size in ELEMENT_BYTES.items()
] + [
    TensorMap(1 << 20, "bf16", (64,), (), (64,)),
    TensorMap(1 << 20, "f32", (24, 20, 5, 7, 9), (96, 1920, 9600, (1 << 39) + 16),
              (8, 16, 3, 1, 2), (1, 8, 3, 1, 2), 32),
    TensorMap(1 << 20, "f32", (24, 20, 5, 7, 9), (96, 1920, 9600, 67200), (8, 256, 3, 1, 2), swizzle=64, nan_fill=True),
    TensorMap(1 << 20, "u8", (1 << 32, 1 << 17), ((1 << 32) + 16,), (256, 256)),
    TensorMap(1 << 20, "f16", (1 << 16, 2), (1 << 17,), (8, 2)),
    TensorMap(1 << 20, "f16", ((1 << 16) - 8, 1), ((1 << 17) - 16,), (8, 1)),
]  # fmt: skip
"""Tensor maps whose bytes the driver's are compared with."""


class Recorder:
    """Observer of `ptx_run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.images: dict[str, bytes | None] = {}

    def image(self, text: str, test: str) -> bytes | None:
        """The cubin of a text, or None where sm_90a does not have its instructions."""
        text = text.replace(".target sm_100a", ".target sm_90a")
        if text not in self.images:
            try:
                self.images[text] = toolchain.assemble(text, "sm_90a", toolchain.ptxas_for(text))
            except toolchain.AssemblerError as error:
                self.refused[test] = str(error).strip().splitlines()[-1]
                self.images[text] = None
        return self.images[text]

    def __call__(self, text: str, config: LaunchConfig, arch: str, before: list[Any], after: list[Any]) -> None:
        """Keep one launch."""
        del arch
        test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
        cubin = self.image(text, test)
        if cubin is None:
            return
        number = len(self.plan)
        (self.folder / f"{number}.cubin").write_bytes(cubin)
        self.plan.append({
            "test": test, "grid": config.grid, "block": config.block, "cluster": config.cluster,
            "shared": config.dynamic_shared, "addresses": [buffer.ctypes.data for buffer in after],
        })  # fmt: skip
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            self.data[f"{number}/{index}"] = old.view(np.uint8).reshape(-1)
            self.data[f"{number}/{index}/after"] = new.copy().view(np.uint8).reshape(-1)

    def write(self) -> None:
        """Finish the folder."""
        (self.folder / "plan.json").write_text(json.dumps({"launches": self.plan, "refused": self.refused}))
        (self.folder / "maps.json").write_text(json.dumps([
            {**asdict(one), "steps": one.steps or (1,) * len(one.shape), "bytes": encode(one).hex()} for one in MAPS
        ]))  # fmt: skip
        np.savez_compressed(self.folder / "data.npz", **self.data)


def main() -> int:
    """Entry point."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    import ptx_run

    recorder = Recorder(folder)
    ptx_run.OBSERVERS.append(recorder)
    status = int(pytest.main(["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", *sys.argv[2:]]))
    recorder.write()
    print(f"{len(recorder.plan)} launches, {len(recorder.refused)} tests with instructions that sm_90a does not have")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
