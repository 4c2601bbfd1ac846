"""CuTe DSL on an emulated device: ordinary `cute.compile` and `@cute.jit` calls compile for it and launch on it.

Inside `active` the DSL object compiles for the device's architecture and links host code to the shim (`cute_shim`)
instead of its own runtime library; every compiled function comes back as a subclass that loads through the shim and
raises the device's own exceptions. A function that was compiled outside, for a GPU, keeps the runtime it was linked to
and is refused inside: it would run on the GPU, or fail for want of one.

The compiler writes its PTX and cubin to a private folder, from where they go to the image store: for explicit and
implicit compilations alike, without asking the user for options. Everything is put back when the block ends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.abc
import importlib.util
import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from equiv.emulator import cute_shim
from equiv.emulator.scope import replaced
from equiv.emulator.store import Image, shared_store
from equiv.errors import DeviceError, UnsupportedError
from equiv.packages import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

TOP = "cutlass"
PACKAGE = "nvidia-cutlass-dsl"
VERSIONS = ("4.8.",)
"""Versions whose internals this module was checked against, by prefix."""

DLPACK_CPU, DLPACK_CUDA = 1, 2


class Target(cute_shim.Host, Protocol):
    """What the device has to offer."""

    name: str
    arch: str


def installed() -> bool:
    """Is CuTe DSL there at all? Found out without importing anything of it."""
    if TOP in sys.modules:
        return True
    spec = importlib.util.find_spec(TOP)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return any(Path(folder, "cute").is_dir() for folder in folders)


class _OnImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls `then` once, when the package `cutlass` has been imported; until that it is the first finder."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then
        self.stock: importlib.abc.Loader | None = None
        self.asking = False

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The package's own spec, with this object as its loader."""
        if fullname != TOP or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            self.stock, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the package's own loader does."""
        assert self.stock is not None
        return self.stock.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Imports the package, then calls `then`."""
        assert self.stock is not None
        assert module.__spec__ is not None
        self.remove()
        module.__spec__.loader = module.__loader__ = self.stock
        self.stock.exec_module(module)
        self.then()

    def remove(self) -> None:
        """Stops listening."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


@contextmanager
def active(device: Target) -> Iterator[None]:
    """CuTe DSL compiles for `device` and launches on it inside the block.

    Who never imports it pays nothing: unless it has been imported before, that is when it is prepared.

    Raises:
        UnsupportedError: the installed version is not one of `VERSIONS`.
    """
    with ExitStack() as stack:
        if TOP in sys.modules:
            stack.enter_context(_prepared(device))
        else:
            listener = _OnImport(lambda: stack.enter_context(_prepared(device)))
            sys.meta_path.insert(0, listener)
            stack.callback(listener.remove)
        yield


@contextmanager
def _prepared(device: Target) -> Iterator[None]:
    internals = _internals()
    environment = internals.dsl.envar
    with ExitStack() as stack:
        shim = stack.enter_context(cute_shim.answering(device))
        # The shim exports nothing that host code calls; its name among the libraries, which are part of the key of the
        # DSL's cache in memory, keeps emulated functions and those of a GPU apart there.
        shipped = environment.shared_libs or ""
        libraries = os.pathsep.join(
            [str(shim.path), *(one for one in shipped.split(os.pathsep) if one and one != str(shim.path))]
        )
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="equiv-cute-"))
        # The file cache would give back functions whose PTX was never seen here.
        for name, value in (("_arch", device.arch), ("shared_libs", libraries), ("disable_file_caching", True)):
            stack.enter_context(replaced(environment, name, value))
        stack.enter_context(replaced(internals.cuda_helpers, "get_device_attribute", _attributes(device)))
        stack.enter_context(replaced(internals.tensor, "load_dltensor", _as_global(internals.tensor.load_dltensor)))
        stack.enter_context(replaced(internals.dsl.compiler_provider, "jit", _linking(internals, shim)))
        stack.enter_context(replaced(internals.stock_function, "to", _refusing(device)))
        stack.enter_context(replaced(internals.stock_executor, "run_compiled_program", _refusing(device)))
        stack.enter_context(replaced(internals.backend, "compile", _compile(internals, device, Path(scratch))))
        yield


@cache
def _internals() -> SimpleNamespace:
    """The parts of CuTe DSL that `active` replaces for a while, and the subclasses of its function and executor."""
    found = version(PACKAGE)
    if not found.startswith(VERSIONS):
        raise UnsupportedError(
            f"package:{PACKAGE}", f"version {found} is installed; emulated devices know {', '.join(VERSIONS)}x"
        )
    from cutlass.base_dsl.common import DSLCudaRuntimeError
    from cutlass.base_dsl.compile_backend import LegacyCompilerBackend
    from cutlass.base_dsl.compiler import Compiler, KeepCUBIN, KeepPTX
    from cutlass.base_dsl.jit_executor import JitExecutor
    from cutlass.base_dsl.runtime import cuda as cuda_helpers
    from cutlass.cute.runtime import _Tensor
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    # `active` puts refusals into their places.
    run, to = JitExecutor.run_compiled_program, CudaDialectJitCompiledFunction.to

    class EmulatedExecutor(JitExecutor):  # type: ignore[misc]  # untyped base
        """Raises what the device raised, instead of the CUDA error that host code returned for it."""

        def run_compiled_program(self, exe_args: list[Any]) -> int | None:
            cute_shim.take_error()
            try:
                result: int | None = run(self, exe_args)
            except DSLCudaRuntimeError:
                error = cute_shim.take_error()
                if error is None:
                    raise
                raise error from None
            return result

    class EmulatedFunction(CudaDialectJitCompiledFunction):  # type: ignore[misc]  # untyped base
        """Loads through the shim, and so never unloads through a real driver."""

        num_devices = 1

        def _load_cuda_library(self) -> list[Any]:
            cute_shim.take_error()
            loading = None
            try:
                super()._load_cuda_library()
            except Exception as error:
                loading = cute_shim.take_error()
                if loading is None:
                    raise
                raise loading from error
            loading = cute_shim.take_error()  # host code does not pass on every error of its loader
            if loading is not None:
                raise loading
            # The handle is the shim's; kept here, it would be given to cudaLibraryUnload of the real runtime.
            return []

        def to(self, device: int | None = None) -> Any:  # noqa: ANN401
            executor = to(self, device)
            executor.__class__ = EmulatedExecutor
            return executor

    return SimpleNamespace(
        version=found,
        dsl=CuTeDSL._get_dsl(),  # noqa: SLF001  the one DSL object; there is no public way to its settings
        cuda_helpers=cuda_helpers,
        backend=LegacyCompilerBackend,
        options=(KeepPTX, KeepCUBIN),
        function=EmulatedFunction,
        stock_function=CudaDialectJitCompiledFunction,
        stock_executor=JitExecutor,
        jit=Compiler.jit,
        tensor=_Tensor,
    )


def _linking(internals: SimpleNamespace, shim: cute_shim.Shim) -> Callable[..., Any]:
    """A replacement of the compiler's `jit` that gives the names of the runtime another meaning in one engine."""
    provider = internals.dsl.compiler_provider

    def jit(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        engine = internals.jit(provider, *arguments, **named)
        # A symbol that the engine itself defines hides those of all libraries, whichever was loaded first.
        for name, address in shim.symbols.items():
            engine.raw_register_runtime(name, ctypes.c_void_p(address))
        return engine

    return jit


def _refusing(device: Target) -> Callable[..., Any]:
    """In place of what loads and runs a function that was linked to the real runtime."""

    def refuse(function: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        name = getattr(function, "function_name", "a CuTe function")
        raise DeviceError(
            f"{name} was compiled for a GPU, outside every `device.active()` block, and called inside a block of "
            f"{device.name}; compile it inside the block"
        )

    return refuse


def _as_global(stock: Callable[[Any], None]) -> Callable[[Any], None]:
    """A replacement of `_Tensor.load_dltensor` after which a tensor of the CPU is one in global memory.

    The DSL reads the state space of a tensor's elements off its DLPack capsule: generic for the CPU, global for a GPU.
    Kernels must be compiled as for a GPU, and some (`cp.async`) cannot be compiled for generic addresses at all.
    """

    def load(tensor: Any) -> None:  # noqa: ANN401
        stock(tensor)
        api = ctypes.pythonapi
        for name in (b"dltensor", b"used_dltensor"):
            if api.PyCapsule_IsValid(ctypes.py_object(tensor._dlpack_data), ctypes.c_char_p(name)):  # noqa: SLF001
                get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
                    ("PyCapsule_GetPointer", api)
                )
                # struct DLTensor {void *data; struct {int32_t device_type, device_id;} device; ...}
                kind = ctypes.c_int32.from_address(get(tensor._dlpack_data, name) + 8)  # noqa: SLF001
                if kind.value == DLPACK_CPU:
                    kind.value = DLPACK_CUDA

    return load


def _attributes(device: Target) -> Callable[[Any, int], int]:
    def get_device_attribute(attribute: Any, device_id: int = 0) -> int:  # noqa: ANN401, ARG001
        number = int(attribute)
        if number not in device.device_attributes:
            raise UnsupportedError(f"CUdevice_attribute:{attribute.name}", f"not known of {device.name}")
        return device.device_attributes[number]

    return get_device_attribute


def _compile(internals: SimpleNamespace, device: Target, scratch: Path) -> Callable[[Any, Any], Any]:
    """A replacement of `LegacyCompilerBackend.compile` that keeps the image and returns an `EmulatedFunction`."""
    stock = internals.backend.compile

    def compile(backend: Any, context: Any) -> Any:  # noqa: A001, ANN401
        if context.func_type is not internals.stock_function:
            raise UnsupportedError("cute:tvm-ffi", f"{context.function_name} is compiled for TVM FFI")
        settings = backend._dsl.compile_options  # noqa: SLF001
        arch = settings.gpu_arch or backend._dsl.envar.arch  # noqa: SLF001
        if arch != device.arch:
            raise UnsupportedError(f"arch:{arch}", f"{context.function_name} is compiled for it inside {device.name}")
        context = dataclasses.replace(context, func_type=internals.function)
        with ExitStack() as stack:
            paths = []
            for option, kind in zip(internals.options, ("ptx", "cubin"), strict=True):
                kept, full = settings.options[option], f"full_{kind}_path"
                if kept.value:  # by the user's wish, who wants the file to stay where it is
                    paths.append(Path(getattr(kept, full)))
                    continue
                base = scratch / "module"
                paths.append(base.with_name(f"module.{arch}.{kind}"))
                for name, value in (("_value", True), ("dump_path", str(base)), (full, str(paths[-1]))):
                    stack.enter_context(replaced(kept, name, value))
            for path in paths:
                path.unlink(missing_ok=True)
            function = stock(backend, context)
            if all(path.exists() for path in paths):
                _keep(internals, arch, paths[0], paths[1])
        return function

    return compile


def _keep(internals: SimpleNamespace, arch: str, ptx: Path, cubin: Path) -> None:
    text = ptx.read_text().rstrip("\0")
    shared_store().put(Image(cubin.read_bytes(), text, arch, {PACKAGE: internals.version}))
