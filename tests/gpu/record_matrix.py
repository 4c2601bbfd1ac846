"""Records matrix instructions in the emulator, to be replayed on an H200: Triton's products and hand-written PTX.

    python tests/gpu/record_matrix.py FOLDER                    # here, no GPU needed
    python3 -m equiv.emulator.replay FOLDER --device cuda:0     # on the GPU machine: every byte compared

The hand-written kernels are those of the tests of `mma.sync`, `ldmatrix` and `wgmma`, assembled by ptxas; each test
writes its launches into a capture of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests" / "support"),
    str(ROOT / "tests" / "emulator"),
    str(ROOT / "tests/emulator/isa"),
]

import ptx_run  # noqa: E402
import pytest  # noqa: E402

from equiv.device import device  # noqa: E402
from equiv.emulator import toolchain  # noqa: E402
from equiv.emulator.launch import Launch  # noqa: E402
from equiv.emulator.store import Image, shared_store  # noqa: E402

if TYPE_CHECKING:
    from equiv.emulator.engine import LaunchConfig

ARCH = "sm_90a"
FILES = ("test_matrix.py", "test_wgmma.py")
TRITON = "test_matrix_kernels.py"


class Recorder:
    """Runs tests with their launches recorded; those that expect an error are left out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name, self.count, self.launches = folder, "", 0, 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps what runs to its end on a Hopper GPU."""
        faults = ("named", "whole", "cannot", "waiting", "lanes_that_name", "late_results")
        items[:] = [one for one in items if "sm_100" not in one.name and not any(word in one.name for word in faults)]

    def pytest_runtest_setup(self, item: Any) -> None:
        """The capture's name is that of the test."""
        self.name, self.count = "".join(c if c.isalnum() else "-" for c in item.name), 0

    def run(self, text: str, buffers: list[Any], config: LaunchConfig, *_: object, **__: object) -> None:
        """`ptx_run.run`, assembled and recorded."""
        text = text.replace(".target sm_100a", f".target {ARCH}")
        cubin = toolchain.assemble(text, ARCH, toolchain.ptxas_for(text))
        image = shared_store().put(Image(cubin, text, ARCH, {"ptxas": "tests"}))
        where = device(f"emulated:{ARCH}")
        for number, buffer in enumerate(buffers):
            where.register(f"buffer{number}", (buffer.ctypes.data, buffer.nbytes))
        params = b"".join(buffer.ctypes.data.to_bytes(8, "little") for buffer in buffers)
        self.count, self.launches = self.count + 1, self.launches + 1
        with where.recorded(self.folder, f"{self.name}-{self.count}"):
            where.run(Launch(image, "k", config.grid, config.block, config.cluster, config.dynamic_shared, {}, params))  # type: ignore[attr-defined]


class Products:
    """Records the launches that tests make through a device of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launches = folder, 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps Hopper's."""
        items[:] = [one for one in items if "sm_90a" in one.name]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        """One capture a test."""
        made = device(f"emulated:{ARCH}")
        item.module.equiv = type("Recorded", (), {"device": staticmethod(lambda _: made)})
        self.launches += 1
        with made.recorded(self.folder, "".join(c if c.isalnum() else "-" for c in item.name)):
            return (yield)


def main(folder: Path) -> int:
    """Record into `folder`; the exit status of the tests."""
    recorder = Recorder(folder)
    vars(ptx_run)["run"] = recorder.run  # before the tests import it by name
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    isa = ROOT / "tests/emulator/isa"
    status = pytest.main([*options, *(str(isa / name) for name in FILES)], plugins=[recorder])
    products = Products(folder)
    status = pytest.main([*options, str(ROOT / "tests/emulator" / TRITON)], plugins=[products]) or status
    print(f"{recorder.launches} hand-written and {products.launches} Triton launches")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
