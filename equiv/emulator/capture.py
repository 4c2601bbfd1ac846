"""Records the launches of a device while they run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from equiv.emulator.content import snapshot
from equiv.emulator.record import BufferRecord, Capture, LaunchRecord, Pointer, RecordFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from equiv.emulator.launch import Launch
    from equiv.emulator.memory import Region
    from equiv.emulator.store import Image


class Recorder:
    """Takes the launches of one capture; blobs and images are written as they come, the index by `save`.

    Raises:
        RecordError: the name cannot be a file name, or is taken in that folder.
    """

    def __init__(self, root: Path, name: str, device: str) -> None:
        self._folder = RecordFolder(root)
        self._folder.vacant(name)
        self._name = name
        self._device = device
        self._launches: list[LaunchRecord] = []

    def before(
        self, launch: Launch, image: Image, pointers: Sequence[Pointer], regions: Sequence[Region]
    ) -> LaunchRecord:
        """The record of a launch that is about to start; `regions` are the buffers that it can reach."""
        self._folder.images.put(image)
        buffers = tuple(
            BufferRecord(one.name, one.writable, snapshot(one.address, one.nbytes, self._folder.blobs), None)
            for one in regions
        )
        return LaunchRecord(
            image=image.digest,
            kernel=launch.kernel,
            arch=image.arch,
            toolchain=dict(image.toolchain),
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_shared=launch.dynamic_shared,
            attributes=dict(launch.attributes),
            params=launch.params,
            pointers=tuple(pointers),
            buffers=buffers,
        )

    def after(self, record: LaunchRecord, regions: Sequence[Region], error: BaseException | None) -> None:
        """Completes the record with what the launch left behind, or with what stopped it."""
        if error is not None:
            self._launches.append(replace(record, error=f"{type(error).__name__}: {error}"))
            return
        buffers = tuple(
            replace(buffer, after=snapshot(one.address, one.nbytes, self._folder.blobs))
            for buffer, one in zip(record.buffers, regions, strict=True)
        )
        self._launches.append(replace(record, buffers=buffers))

    def save(self) -> Path:
        """Writes the capture; returns its file."""
        return self._folder.save(Capture(self._name, self._device, tuple(self._launches)))
