"""The Python side of `csrc/cute_shim.c`: CUDA calls of compiled CuTe DSL host code, answered for the active device.

Knows the C interface and nothing of CuTe DSL's Python (that is `cute_runtime`). One process has one shim library; which
device answers is a stack. An exception raised while answering cannot travel through compiled host code, so it is kept
and `cuda error 999` is returned instead; `take_error` gives it back to whoever called the host code.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from equiv import ccode
from equiv.cache import cache_dir
from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SOURCE = Path(__file__).parent / "csrc" / "cute_shim.c"

FAILED = 999
"""cudaErrorUnknown: the call raised, and `take_error` has the exception."""

CLUSTER_DIMENSION = 4
LAUNCH_ATTRIBUTES = {2: "cooperative", 6: "programmatic_serialization", 8: "priority"}
"""cudaLaunchAttributeID -> name; an int value each. Others are refused by number."""

ATTRIBUTE_BYTES = 72
FATBIN = 0xBA55ED50
FATBIN_ELF = 2
FATBIN_COMPRESSED = 0xA000  # flag bits: LZ4, zstd


@dataclass(frozen=True, slots=True)
class RawLaunch:
    """A launch as host code made it.

    Attributes:
        image: digest of the cubin.
        attributes: launch attribute name -> value, those that are not zero.
        arguments: addresses of the parameter values, valid during the call; their count and sizes stand in the PTX.
    """

    image: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int
    attributes: Mapping[str, int]
    arguments: Any


class Host(Protocol):
    """A device as host code sees it."""

    device_attributes: Mapping[int, int]

    def static_shared(self, image: str, kernel: str) -> int:
        """Bytes of static shared memory of a kernel."""
        ...

    def launch_raw(self, launch: RawLaunch) -> None:
        """Runs a kernel to its end."""
        ...


@dataclass(frozen=True, slots=True)
class Shim:
    """The loaded library.

    Attributes:
        symbols: name that host code calls -> address of the function that answers it.
        keep: what must live as long as the process.
    """

    path: Path
    symbols: Mapping[str, int]
    keep: tuple[object, ...] = ()


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


_INT = ctypes.POINTER(ctypes.c_int)
_HANDLE = ctypes.POINTER(ctypes.c_uint64)


class _Callbacks(ctypes.Structure):
    _fields_ = (
        ("load", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _HANDLE)),
        ("kernel", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, _HANDLE)),
        ("unload", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)),
        ("device_attribute", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _INT)),
        ("kernel_attribute", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int, _INT)),
        ("set_kernel_attribute", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)),
        (
            "launch",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(_Config), ctypes.POINTER(ctypes.c_void_p)),
        ),
        ("refuse", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)),
    )


class _Symbol(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p))


_hosts: list[Host] = []
_errors: list[BaseException] = []
_libraries: dict[int, str] = {}
_kernels: dict[int, tuple[str, str]] = {}


def library() -> Path:
    """The built shim library, in the cache directory; its name carries the hash of its source.

    Raises:
        UnsupportedError: there is no C compiler, or it failed; its output is quoted.
    """
    source = SOURCE.read_bytes()
    path = cache_dir() / "cute_shim" / f"cute_shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        compiler = ccode.compiler()
        # Several processes may build at once: each writes its own file and renames it.
        built = path.with_name(f".{path.name}.{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(built), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise UnsupportedError("program:gcc", f"{' '.join(command)} failed: {error.stderr}") from error
        built.replace(path)
    return path


@contextmanager
def answering(host: Host) -> Iterator[Shim]:
    """Calls of host code go to `host` inside the block; gives the functions that host code must be linked to.

    An exception kept by a nested call that nobody took is dropped at the end: its host code reported it in its own way.
    """
    shim = _connect(library())
    _hosts.append(host)
    try:
        yield shim
    finally:
        _hosts.pop()
        _errors.clear()


def take_error() -> BaseException | None:
    """The first exception since the last call of this function, or None."""
    error = _errors[0] if _errors else None
    _errors.clear()
    return error


def read_fatbin(address: int) -> bytes:
    """The one cubin of the fat binary at an address of this process.

    Raises:
        UnsupportedError: it holds none, several, or a compressed one.
    """
    magic, _, header, size = struct.unpack("<IHHQ", ctypes.string_at(address, 16))
    if magic != FATBIN:
        raise UnsupportedError("fatbin", f"the loaded library starts with {magic:#010x}, wanted {FATBIN:#010x}")
    body = ctypes.string_at(address + header, size)
    found: list[bytes] = []
    place = 0
    while place + 64 <= len(body):
        kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", body, place)
        (flags,) = struct.unpack_from("<Q", body, place + 40)
        if kind == FATBIN_ELF:
            if flags & FATBIN_COMPRESSED:
                raise UnsupportedError("fatbin", f"the cubin is compressed (flags {flags:#x})")
            found.append(body[place + entry_header : place + entry_header + entry_size])
        place += entry_header + entry_size
    if len(found) != 1:
        raise UnsupportedError("fatbin", f"{len(found)} cubins in one library, wanted one")
    return found[0]


def _host() -> Host:
    if not _hosts:
        raise DeviceError("a CuTe function compiled on an emulated device ran outside every `device.active()` block")
    return _hosts[-1]


def _keeping(function: Callable[..., None]) -> Callable[..., int]:
    @wraps(function)
    def answer(*arguments: Any) -> int:  # noqa: ANN401  C values
        if _errors:
            return FAILED
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001  kept for `take_error`: it must not be lost, and cannot pass through C
            _errors.append(error)
            return FAILED
        return 0

    return answer


def _load(data: int, handle: Any) -> None:  # noqa: ANN401
    cubin = read_fatbin(data)
    _libraries[len(_libraries) + 1] = hashlib.sha256(cubin).hexdigest()
    handle[0] = len(_libraries)


def _kernel(library: int, name: bytes, handle: Any) -> None:  # noqa: ANN401
    _kernels[len(_kernels) + 1] = (_libraries[library], name.decode())
    handle[0] = len(_kernels)


def _unload(library: int) -> None:
    if library not in _libraries:
        raise DeviceError(f"unloading library {library}, which was never loaded")


def _device_attribute(attribute: int, value: Any) -> None:  # noqa: ANN401
    known = _host().device_attributes
    if attribute not in known:
        raise UnsupportedError(f"cudaDeviceAttr:{attribute}", f"known: {', '.join(map(str, sorted(known)))}")
    value[0] = known[attribute]


def _kernel_attribute(kernel: int, attribute: int, value: Any) -> None:  # noqa: ANN401
    if attribute != 1:  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        raise UnsupportedError(f"CUfunction_attribute:{attribute}", "reading it is not emulated")
    value[0] = _host().static_shared(*_kernels[kernel])


def _set_kernel_attribute(kernel: int, attribute: int, value: int) -> None:
    # 8: largest dynamic shared memory, 9: carve-out, 14: clusters beyond the portable size. All three allow something
    # that emulated devices allow anyway; what a launch really uses is checked there.
    if attribute not in {8, 9, 14}:
        raise UnsupportedError(f"cudaFuncAttribute:{attribute}", f"setting it to {value} on {_kernels[kernel][1]}")


def _launch(kernel: int, config: Any, arguments: Any) -> None:  # noqa: ANN401
    given = config.contents
    cluster = (1, 1, 1)
    attributes: dict[str, int] = {}
    for index in range(given.attribute_count):
        raw = ctypes.string_at(given.attributes + ATTRIBUTE_BYTES * index, ATTRIBUTE_BYTES)
        (number,) = struct.unpack_from("<I", raw)
        first, second, third = struct.unpack_from("<III", raw, 8)
        if number == CLUSTER_DIMENSION:
            cluster = (first, second, third)
        elif number in LAUNCH_ATTRIBUTES:
            if first:
                attributes[LAUNCH_ATTRIBUTES[number]] = first
        elif any(raw[8:]):
            raise UnsupportedError(f"cudaLaunchAttribute:{number}", f"value {raw[8:].hex()}")
    image, name = _kernels[kernel]
    grid, block = tuple(given.grid), tuple(given.block)
    _host().launch_raw(RawLaunch(image, name, grid, block, cluster, given.dynamic_shared, attributes, arguments))


def _refuse(function: bytes) -> None:
    raise UnsupportedError(f"cuda:{function.decode()}", "the emulated device does not offer this call to host code")


@cache
def _connect(path: Path) -> Shim:
    """Loads the library and sets the callbacks; cached because both must stay alive as long as the process."""
    loaded = ctypes.CDLL(str(path))
    functions: dict[str, Callable[..., None]] = {
        "load": _load,
        "kernel": _kernel,
        "unload": _unload,
        "device_attribute": _device_attribute,
        "kernel_attribute": _kernel_attribute,
        "set_kernel_attribute": _set_kernel_attribute,
        "launch": _launch,
        "refuse": _refuse,
    }
    callbacks = _Callbacks(*(kind(_keeping(functions[name])) for name, kind in _Callbacks._fields_))
    loaded.equiv_shim_set(ctypes.byref(callbacks))
    count = ctypes.c_uint64()
    loaded.equiv_shim_symbols.restype = ctypes.POINTER(_Symbol)
    table = loaded.equiv_shim_symbols(ctypes.byref(count))
    symbols = {one.name.decode(): one.function for one in table[: count.value]}
    return Shim(path, symbols, (loaded, callbacks))
