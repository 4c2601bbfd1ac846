"""A recorded scene on its way to another process, where its memory lies at other addresses.

Parameters hold addresses, and so does what a host allocates, tensor maps for one: each aligned word there that is an
address in memory of the scene follows it. A scene with others does not repeat itself, and is no use here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.buffers import PAGE, Image
from equiv.emulator.store import shared_store
from equiv.mutate.scene import Scene, kept_once, placed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from equiv.emulator import store
    from equiv.mutate.scene import Step
    from equiv.pairs import Pair
    from equiv.records import Bits, Case

    Bytes = npt.NDArray[np.uint8]
    Words = npt.NDArray[np.int64]

_HERE = frozenset({"pair", "case", "inputs", "buffers", "steps", "kept"})
"""What a scene has that is memory of a process, or that needs a word of its own."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A scene without its memory, which travels between processes.

    Attributes:
        steps: its launches, with the addresses that they had.
        addresses: of the images of its buffers.
        images: what its launches execute.
        rest: its other fields.
    """

    case: Case
    inputs: Mapping[str, Bits]
    steps: tuple[Step, ...]
    addresses: tuple[int, ...]
    images: tuple[store.Image, ...]
    rest: Mapping[str, Any]


def pack(scene: Scene) -> Parcel:
    """What `unpack` needs of a scene."""
    return Parcel(
        scene.case,
        scene.inputs,
        tuple(replace(step, launch=replace(step.launch, tensors=())) for step in scene.steps),
        tuple(_start(buffer.image) for buffer in scene.buffers),
        tuple(shared_store().get(image) for image in dict.fromkeys(step.launch.image for step in scene.steps)),
        {name: value for name, value in vars(scene).items() if name not in _HERE},
    )


def unpack(parcel: Parcel, pair: Pair) -> Scene:
    """The scene in memory of this process, which knows its images now."""
    for image in parcel.images:
        shared_store().put(image)
    scene = placed(pair, parcel.case, parcel.inputs)
    moves = _Moves(parcel, [buffer.image for buffer in scene.buffers])
    rest = dict(parcel.rest)
    for name in ("_before", "_after"):
        rest[name] = [[(start, kept_once(data)) for start, data in saved] for saved in rest[name]]
    return replace(scene, steps=tuple(map(moves.step, parcel.steps)), kept=moves.own, **rest)


class _Moves:
    """Where the memory of a scene was and where it is.

    Attributes:
        own: memory for what its host allocated, as far from the start of a page as it was.
    """

    def __init__(self, parcel: Parcel, images: Sequence[Image]) -> None:
        self._spans = [(was, one.size, _start(one)) for was, one in zip(parcel.addresses, images, strict=True)]
        self._temporary: set[int] = set()
        self.own: list[Image] = []
        for region in dict.fromkeys(region for step in parcel.steps for region in step.regions):
            if not any(was <= region.address < was + size for was, size, _ in self._spans):
                self.own.append(Image(region.address % PAGE + region.nbytes, sparse=False))
                self._spans.append((region.address, region.nbytes, _start(self.own[-1]) + region.address % PAGE))
                self._temporary.add(region.address)

    def step(self, one: Step) -> Step:
        """A launch where its memory is."""
        return replace(
            one,
            writes=tuple(
                (self._address(address), self._inside(data) if address in self._temporary else data)
                for address, data in one.writes
            ),
            host=np.stack([self._words(one.host[:, 0]), one.host[:, 1]], axis=1),
            regions=tuple(replace(region, address=self._address(region.address)) for region in one.regions),
            launch=replace(one.launch, params=self._inside(np.frombuffer(one.launch.params, np.uint8)).tobytes()),
        )

    def _address(self, address: int) -> int:
        return int(self._words(np.array([address]))[0])

    def _inside(self, data: Bytes) -> Bytes:
        moved = data.copy()
        words = moved[: len(data) // 8 * 8].view(np.int64)
        words[:] = self._words(words)
        return moved

    def _words(self, words: Words) -> Words:
        moved = words.copy()
        for was, size, now in self._spans:
            moved[(words >= was) & (words < was + size)] += now - was
        return moved


def _start(image: Image) -> int:
    return int(image.bytes.ctypes.data)
