"""Runs one party of a pair on one case, in guarded memory, and reports what it left behind.

One call is one isolated run: fresh buffers, fresh poison, nothing shared with the other party. The party gets torch
tensors; when it is done, all bytes of all tensors are checked, not only those it was expected to write.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any

from equiv import packages
from equiv.buffers import GuardedBuffer
from equiv.errors import DeviceError, EquivError, UnsupportedError
from equiv.packages import version
from equiv.records import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from equiv.device import Device
    from equiv.pairs import Pair, Party
    from equiv.records import Bits, Case

    Around = Callable[[Callable[[], None], Callable[[], None]], None]

CHUNK = 1 << 24
"""Bytes of a sparse tensor that a GPU looks through at a time."""


class PartyError(DeviceError):
    """A party stopped with an error: `party` is its name, `detail` what it or the device said."""

    def __init__(self, party: str, detail: str) -> None:
        self.party = party
        self.detail = detail
        super().__init__(f"{party}: {detail}")


def toolchain(party: Party) -> dict[str, str]:
    """Versions of the packages that compile a party.

    Raises:
        UnsupportedError: one of them is not installed; `needs` is `package:<name>`.
    """
    try:
        return {package: version(package) for package in party.packages}
    except PackageNotFoundError as error:
        raise UnsupportedError(f"package:{error.name}", packages.HINT) from error


def able(pair: Pair, name: str, case: Case, device: Device) -> dict[str, str]:
    """Versions of the packages that compile a party, if it can run the case on the device.

    Raises:
        UnsupportedError: a package is missing, there is no code for the architecture, or the party cannot do the case.
    """
    party: Party = getattr(pair, name)
    versions = toolchain(party)
    if device.arch not in party.architectures:
        raise UnsupportedError(f"arch:{'|'.join(party.architectures)}", f"{name} on {device.name}")
    if lacking := party.unsupported(case):
        raise UnsupportedError(lacking, f"{name} of {pair.name}")
    return versions


def capture_name(case: Case, party: str, arch: str) -> str:
    """What the launch records of one run of a party are called."""
    return f"{case.pair}.{case.id}.{case.seed}.{party}.{arch}"


def run_party(
    pair: Pair,
    name: str,
    case: Case,
    inputs: Mapping[str, Bits],
    device: Device,
    *,
    record: Path | None = None,
    poison: int | None = None,
    around: Around | None = None,
) -> Side:
    """Runs the oracle or the candidate.

    Args:
        pair: the operator.
        case: one of its cases.
        device: where it runs.
        name: `oracle` or `candidate`.
        inputs: logical bits of every `input` and `inout` tensor.
        record: the folder that gets the launch records of this run, or None.
        poison: seed of the bits in memory that nothing wrote, by default the case's own.
        around: gets (the call of the party, what puts the memory of a GPU back as it was) and runs it; None: a call.

    Raises:
        UnsupportedError: as `able`.
        BrokenPackageError: one is installed and cannot be imported.
        PartyError: it failed: its own exception, a compiler's, or what the device found (illegal access, deadlock).
    """
    versions = able(pair, name, case, device)
    party: Party = getattr(pair, name)
    packages.imported("torch")
    packages.check(packages.needed(device, party.packages))
    seed = case.seed if poison is None else poison
    buffers = [GuardedBuffer(spec, seed, name) for spec in pair.layout(case)]
    try:
        for buffer in buffers:
            buffer.place(inputs[buffer.spec.name] if buffer.spec.role != "output" else None)
        with _running(name):
            function = party.load()  # not on the device: a library that is imported there may look for its GPU
        with _running(name), device.active(), contextlib.ExitStack() as stack:
            placed = {buffer.spec.name: Placed(buffer, device.torch_device) for buffer in buffers}
            for tensor, place in placed.items():
                device.register(tensor, place.tensor, writable=place.buffer.spec.role != "input")
                stack.callback(device.unregister, tensor)
            if record:
                stack.enter_context(device.recorded(record, capture_name(case, name, device.arch)))
            call = partial(function, case, {tensor: place.tensor for tensor, place in placed.items()})
            if around:
                around(call, partial(_push, placed.values()))
            else:
                call()
            device.synchronize()
            launches = tuple(device.launches)
            notes = device.remarks()
        for place in placed.values():
            place.pull()
        return Side(
            outputs=pair.outputs(case, inputs, {buffer.spec.name: buffer.elements for buffer in buffers}),
            toolchain=versions,
            faults=tuple(fault for buffer in buffers for fault in buffer.faults()),
            launches=len(launches),
            warp_instructions=sum(launch.warp_instructions for launch in launches),
            seconds=sum(launch.seconds for launch in launches),
            notes=notes,
        )
    finally:
        for buffer in buffers:
            buffer.close()


def _push(places: Iterable[Placed]) -> None:
    for place in places:
        place.push()


@contextlib.contextmanager
def _running(party: str) -> Iterator[None]:
    """Turns whatever a party raises into an error that names it; ends a process that it forked and let return."""
    process = os.getpid()
    try:
        yield
    except UnsupportedError:
        raise
    except EquivError as error:
        said = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
        raise PartyError(party, "\n".join(said)) from error
    except (Exception, SystemExit) as error:  # sys.exit(0) in a party must not end a run as if it were good
        text = "".join(traceback.format_exception(error)).strip()
        raise PartyError(party, text) from error
    finally:
        if os.getpid() != process:
            os._exit(1)  # else it would carry on as a second copy of this run


@dataclass
class Placed:
    """A guarded buffer as a torch tensor of the device: the host image itself, or a copy of it on a GPU."""

    buffer: GuardedBuffer
    device: str

    def __post_init__(self) -> None:
        import torch

        image = torch.from_numpy(self.buffer.image.bytes)
        self.memory = image
        if self.device != "cpu":
            self.memory = torch.zeros(image.numel(), dtype=torch.uint8, device=self.device)
            self.push()
        self.tensor = self._tensor()

    def push(self) -> None:
        """Puts the host image onto a GPU: until `pull`, what the run starts from."""
        if self.device == "cpu":
            return
        import torch

        image = torch.from_numpy(self.buffer.image.bytes)
        for start, end in self.buffer.image.extents():
            self.memory[start:end].copy_(image[start:end])

    def _tensor(self) -> Any:  # noqa: ANN401  a torch.Tensor; torch is not known to the checker
        import torch

        from equiv.buffers import GUARD

        spec, storage = self.buffer.spec, self.buffer.storage
        size = max(self.buffer.span, storage.size)
        typed = self.memory[GUARD : GUARD + size].view(getattr(torch, storage.torch))
        return typed.as_strided(spec.shape, spec.strides, typed.storage_offset())

    def pull(self) -> None:
        """Brings the bytes back from a GPU; holes of a sparse tensor only where they are no longer zero."""
        if self.device == "cpu":
            return
        import torch

        host = torch.from_numpy(self.buffer.image.bytes)
        if not self.buffer.spec.sparse:
            host.copy_(self.memory)
            return
        for start in range(0, len(host), CHUNK):
            part = self.memory[start : start + CHUNK]
            if part.any():
                _copy_pages(part, host[start : start + CHUNK])
        for start, end in self.buffer.image.extents():
            host[start:end].copy_(self.memory[start:end])


def _copy_pages(source: Any, target: Any) -> None:  # noqa: ANN401  torch tensors
    """Copies the non-zero pages of `source` only, so that `target` stays sparse."""
    from equiv.buffers import PAGE

    for page in source.view(-1, PAGE).any(1).nonzero().flatten().tolist():
        target[page * PAGE : (page + 1) * PAGE].copy_(source[page * PAGE : (page + 1) * PAGE])
