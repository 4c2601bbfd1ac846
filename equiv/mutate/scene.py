"""One case of the candidate, recorded once and played again as often as need be, without its host code.

The sound run leaves what every launch needs: the memory before the first one, what the host wrote between launches, the
shapes and parameters. All memory stays where it was, so parameters are valid as they are, pointers inside tensor maps
included. What the sound run left behind is what a mutant must leave behind, bit for bit: no model is computed.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from equiv import packages
from equiv.buffers import GuardedBuffer
from equiv.emulator import engine
from equiv.emulator.content import view
from equiv.emulator.device import EmulatedDevice
from equiv.emulator.memory import Memory
from equiv.errors import DeviceError, UnsupportedError
from equiv.runner import Placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from equiv.emulator.launch import Launch, LaunchCount
    from equiv.emulator.memory import Region
    from equiv.pairs import Pair
    from equiv.records import Bits, Case

    Bytes = npt.NDArray[np.uint8]

DENSE = 1 << 26
"""Bytes of a buffer up to which what the host writes between launches is looked for."""
SLACK = 4
"""How many times the instructions of the sound launch a mutant may take, ..."""
GRACE = 100_000
"""... and how many more."""


@dataclass(frozen=True)
class Step:
    """One launch: what the host wrote before it, as (address, bytes), and what was launched.

    `host`: the elements among these bytes that the launch before had left otherwise, (address, bytes), `[n, 2]`,
    ascending.
    """

    writes: tuple[tuple[int, Bytes], ...]
    host: npt.NDArray[np.int64]
    regions: tuple[Region, ...]
    launch: Launch
    instructions: int


class _Recording(EmulatedDevice):
    """A device that keeps what its launches were given."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.steps: list[Step] = []
        self.kept: list[Any] = []
        self.begin: Callable[[], None] = lambda: None
        self.units: dict[int, int] = {}  # bytes of an element, by the address of a region
        self._left: dict[int, Bytes] = {}
        self._given: tuple[tuple[tuple[int, Bytes], ...], npt.NDArray[np.int64], tuple[Region, ...]]

    def run(self, launch: Launch) -> LaunchCount:
        if not self.steps:
            self.begin()
            self._left = {one.address: view(one.address, one.nbytes).copy() for one in _dense(self.memory.regions)}
        self.kept.append(launch.tensors)
        count = super().run(launch)
        writes, host, regions = self._given
        self.steps.append(Step(writes, host, regions, launch, count.warp_instructions))
        return count

    @contextmanager
    def _adopted(self, launch: Launch) -> Iterator[None]:
        with super()._adopted(launch):
            regions = self.memory.regions
            dense = _dense(regions)
            now = {one.address: view(one.address, one.nbytes).copy() for one in dense}
            writes = tuple(item for item in now.items() if not _same(self._left.get(item[0]), item[1]))
            spans = [_changed(at, data, self._left, self.units.get(at, 1)) for at, data in writes]
            self._given = writes, np.concatenate([np.zeros((0, 2), np.int64), *spans]), regions
            yield
            self._left.update({one.address: view(one.address, one.nbytes).copy() for one in dense})

    def _adopt(self, name: str, tensor: Any, adopted: list[Region]) -> None:  # noqa: ANN401
        self.kept.append(tensor)  # its memory must stay its own
        known = len(adopted)
        super()._adopt(name, tensor, adopted)
        if len(adopted) > known:
            self.units[adopted[-1].address] = tensor.element_size() if hasattr(tensor, "element_size") else 1


def _dense(regions: tuple[Region, ...]) -> list[Region]:
    return [one for one in regions if one.nbytes <= DENSE]


def _same(one: Bytes | None, other: Bytes) -> bool:
    return one is not None and np.array_equal(one, other)


def _changed(address: int, now: Bytes, left: Mapping[int, Bytes], unit: int) -> npt.NDArray[np.int64]:
    """Elements, of `unit` bytes, that are not as they were left, or that nothing left: (address, bytes), `[n, 2]`."""
    differs = np.ones(-(-len(now) // unit) * unit, np.bool_)
    differs[len(now) :] = False
    for start, data in left.items():
        low, high = max(address, start), min(address + len(now), start + len(data))
        if low < high:
            differs[low - address : high - address] = (
                now[low - address : high - address] != data[low - start : high - start]
            )
    elements = np.zeros(len(differs) // unit + 2, np.int8)
    elements[1:-1] = differs.reshape(-1, unit).any(axis=1)
    first, last = (np.flatnonzero(np.diff(elements) == sign) * unit for sign in (1, -1))
    return np.stack([address + first, np.minimum(last, len(now)) - first], axis=1)


@dataclass
class Scene:
    """A recorded case.

    Attributes:
        steps: its launches.
        cost: instructions of all of them, by warps.
        shared: whether forked processes would see each other's writes, so that only one may play it at a time.
    """

    pair: Pair
    case: Case
    inputs: Mapping[str, Bits]
    buffers: list[GuardedBuffer]
    steps: tuple[Step, ...] = ()
    kept: list[Any] = field(default_factory=list, repr=False)
    _before: list[list[tuple[int, Bytes]]] = field(default_factory=list, repr=False)
    _after: list[list[tuple[int, Bytes]]] = field(default_factory=list, repr=False)
    _expected: dict[str, Bits] = field(default_factory=dict, repr=False)
    _undefined: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    @property
    def cost(self) -> int:
        """Instructions by warps."""
        return sum(step.instructions for step in self.steps)

    @property
    def shared(self) -> bool:
        """Whether some of its memory is a file that a forked process shares."""
        return any(buffer.spec.sparse for buffer in self.buffers)

    @property
    def kernels(self) -> set[tuple[str, str]]:
        """(image, kernel) of its launches."""
        return {(step.launch.image, step.launch.kernel) for step in self.steps}

    def close(self) -> None:
        """Frees its sparse memory."""
        for buffer in self.buffers:
            buffer.close()

    def play(
        self,
        programs: Mapping[tuple[str, str], engine.Program],
        launching: Callable[..., Any] = engine.launch,
        **how: Any,  # noqa: ANN401
    ) -> None:
        """Launches everything again from the start, with these programs; `how` goes to `launching`.

        Raises:
            EmulatorError, DeviceError: what stops a launch.
        """
        for buffer, saved in zip(self.buffers, self._before, strict=True):
            for start, end in buffer.image.extents():
                if buffer.image.sparse:
                    buffer.image.bytes[start:end] = 0
            for start, data in saved:
                buffer.image.bytes[start : start + len(data)] = data
        for step in self.steps:
            for address, data in step.writes:
                view(address, len(data))[:] = data
            memory = Memory()
            for one in step.regions:
                memory.register(one.address, one.nbytes, one.name, one.writable)
            launch = step.launch
            config = engine.LaunchConfig(launch.grid, launch.block, launch.cluster, launch.dynamic_shared)
            program = programs[launch.image, launch.kernel]
            budget = how.pop("budget", None) or step.instructions * SLACK + GRACE
            launching(program, config, launch.params, memory, budget=budget, **how)

    def difference(self) -> str:
        """What is not as the sound run left it, in words, or "": elements of outputs and bytes that must not change.

        Elements that the contract leaves undefined (`Pair.undefined`) do not count, nor do bytes of no output that a
        kernel may write.
        """
        if all(map(_unchanged, self.buffers, self._after)):
            return ""
        outputs = self.outputs()
        for name, expected in self._expected.items():
            differs = self.differing(name, outputs[name], expected)
            if differs.any():
                return f"{name}: {int(differs.sum())} of {differs.size} elements"
        faults = [fault for buffer in self.buffers for fault in buffer.faults()]
        return faults[0] if faults else ""

    def differing(self, name: str, ours: Bits, theirs: Bits) -> npt.NDArray[np.bool_]:
        """Which elements of an output differ, without those that the contract leaves undefined (`Pair.undefined`)."""
        differs = np.asarray(ours != theirs)
        return differs & ~self._undefined[name] if name in self._undefined else differs

    def outputs(self) -> dict[str, Bits]:
        """Copies of the logical outputs as the last play left them."""
        found = self.pair.outputs(
            self.case, self.inputs, {buffer.spec.name: buffer.elements for buffer in self.buffers}
        )
        return {name: np.array(bits) for name, bits in found.items()}

    def keep_start(self) -> None:
        """Takes the memory as it is for what each play starts from."""
        self._before = [_saved(buffer) for buffer in self.buffers]

    def keep_end(self) -> None:
        """Takes the memory as it is for what a sound play leaves behind."""
        self._after = [_saved(buffer) for buffer in self.buffers]
        self._expected = self.outputs()
        undefined = self.pair.undefined(self.case, self.inputs)
        self._undefined = {name: np.asarray(places, np.bool_) for name, places in undefined.items()}


def _saved(buffer: GuardedBuffer) -> list[tuple[int, Bytes]]:
    return [(start, kept_once(buffer.image.bytes[start:end].copy())) for start, end in buffer.image.extents()]


_LARGE = 1 << 20
_KEPT: WeakValueDictionary[bytes, Bits] = WeakValueDictionary()


def kept_once(array: Bits) -> Bits:
    """The array, or an equal one kept before if it is large: cases share weights, and what no launch changes."""
    if array.nbytes < _LARGE:
        return array
    key = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
    return _KEPT.setdefault(key + repr((array.shape, array.dtype.str)).encode(), array)


def _unchanged(buffer: GuardedBuffer, saved: list[tuple[int, Bytes]]) -> bool:
    """Whether an image is as it was saved; pages that a sparse one has now and had not hold zeros."""
    if any(not np.array_equal(buffer.image.bytes[start : start + len(data)], data) for start, data in saved):
        return False
    known = {page for start, data in saved for page in range(start, start + len(data), 4096)}
    return all(
        page in known or not buffer.image.bytes[page : page + 4096].any()
        for start, end in (buffer.image.extents() if buffer.image.sparse else ())
        for page in range(start, end, 4096)
    )


def placed(pair: Pair, case: Case, inputs: Mapping[str, Bits], party: str = "candidate") -> Scene:
    """A scene with its tensors in memory, of which nothing is recorded yet."""
    inputs = {name: kept_once(bits) for name, bits in inputs.items()}
    scene = Scene(pair, case, inputs, [GuardedBuffer(spec, case.seed, party) for spec in pair.layout(case)])
    for buffer in scene.buffers:
        buffer.place(inputs[buffer.spec.name] if buffer.spec.role != "output" else None)
    return scene


def record(pair: Pair, case: Case, arch: str, party: str = "candidate", *, sound: bool = True) -> Scene:
    """Runs a party, the candidate, and keeps everything; `sound`: it must not change bytes that it must not.

    Raises:
        UnsupportedError: a package is missing; or the host computes something after a launch, or from its results, so
            that launches alone do not repeat the case.
        DeviceError: it fails, or changes bytes that it must not.
    """
    packages.imported("torch")
    device = _Recording(arch)
    scene = placed(pair, case, pair.inputs(case), party)
    device.begin = scene.keep_start
    with device.active():
        function = getattr(pair, party).load()
        tensors = {buffer.spec.name: Placed(buffer, device.torch_device) for buffer in scene.buffers}
        for name, place in tensors.items():
            device.register(name, place.tensor, writable=place.buffer.spec.role != "input")
            device.units[place.buffer.address] = place.buffer.elements.itemsize
        function(case, {name: place.tensor for name, place in tensors.items()})
    scene.steps, scene.kept = tuple(device.steps), [device.kept, tensors]
    if not scene.steps:
        raise UnsupportedError("launches", f"{case.name}: the {party} launched nothing")
    faults = [fault for buffer in scene.buffers for fault in buffer.faults()]
    if faults and sound:
        raise DeviceError(f"{case.name}: the sound {party}: {faults[0]}")
    scene.keep_end()
    return scene
