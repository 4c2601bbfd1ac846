"""A real GPU as a place to replay launch records: the CUDA driver through `cuda.bindings`, no compiler and no torch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from equiv.emulator.record import LaunchRecord
    from equiv.emulator.store import Image

    Bytes = npt.NDArray[np.uint8]

ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
"""Compute capability -> what is compiled for it. Anything else is refused by its number."""


class CudaGpu:
    """One GPU. Addresses are device addresses; every call is complete when it returns."""

    def __init__(self, index: int) -> None:
        self._driver = _driver()
        driver = self._driver
        self._check("cuInit", driver.cuInit(0))
        count = self._check("cuDeviceGetCount", driver.cuDeviceGetCount())
        if not 0 <= index < count:
            raise UnsupportedError("gpu", f"cuda:{index} asked for, {count} present")
        self._device = self._check("cuDeviceGet", driver.cuDeviceGet(index))
        self.name = f"cuda:{index}"
        attribute = driver.CUdevice_attribute
        major, minor = (
            self._check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, self._device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.arch = ARCHITECTURES.get((major, minor), f"capability {major}.{minor}")
        context = self._check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self._device))
        self._check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
        self._kernels: dict[tuple[str, str], Any] = {}

    def allocate(self, name: str, nbytes: int, *, writable: bool) -> int:  # noqa: ARG002  a GPU cannot protect memory
        """Zeroed memory; its address."""
        address = int(self._check(f"cuMemAlloc of {nbytes} bytes", self._driver.cuMemAlloc(nbytes)))
        self._check("cuMemsetD8", self._driver.cuMemsetD8(address, 0, nbytes))
        return address

    def free(self, address: int) -> None:
        """Gives memory back."""
        self._check("cuMemFree", self._driver.cuMemFree(address))

    def clear(self, address: int, nbytes: int) -> None:
        """Zeroes memory."""
        self._check("cuMemsetD8", self._driver.cuMemsetD8(address, 0, nbytes))

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes to the GPU."""
        source = np.frombuffer(data, dtype=np.uint8)
        self._check("cuMemcpyHtoD", self._driver.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes))

    def read(self, address: int, into: Bytes) -> None:
        """Copies bytes from the GPU into a contiguous array."""
        self._check("cuMemcpyDtoH", self._driver.cuMemcpyDtoH(into.ctypes.data, address, into.nbytes))

    def launch(self, record: LaunchRecord, image: Image, params: bytes) -> None:
        """Runs the recorded launch with another parameter block, and waits for it.

        Raises:
            DeviceError: the driver refused it or the kernel failed; the context is unusable after a failed kernel.
        """
        driver = self._driver
        kernel = self._kernel(image, record)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = record.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = record.block
        config.sharedMemBytes = record.dynamic_shared
        config.hStream = driver.CUstream(0)
        config.attrs = attributes = self._attributes(record)
        config.numAttrs = len(attributes)
        block = ctypes.create_string_buffer(params, len(params))
        size = ctypes.c_size_t(len(params))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END: the whole block at once, no list of sizes is needed.
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(block), 2, ctypes.addressof(size), 0)
        function = driver.CUfunction(int(kernel))
        self._check(
            record.kernel, driver.cuLaunchKernelEx(config, function, 0, ctypes.addressof(extra) if params else 0)
        )
        self._check(f"{record.kernel} (running)", driver.cuCtxSynchronize())

    def _kernel(self, image: Image, record: LaunchRecord) -> Any:  # noqa: ANN401
        driver = self._driver
        key = (image.digest, record.kernel)
        if key not in self._kernels:
            library = self._check("cuLibraryLoadData", driver.cuLibraryLoadData(image.cubin, [], [], 0, [], [], 0))
            kernel = self._check("cuLibraryGetKernel", driver.cuLibraryGetKernel(library, record.kernel.encode()))
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._check("cuKernelSetAttribute", driver.cuKernelSetAttribute(attribute, 1, kernel, self._device))
            self._kernels[key] = kernel
        kernel = self._kernels[key]
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._check(
            f"cuKernelSetAttribute of {record.dynamic_shared} bytes of dynamic shared memory",
            driver.cuKernelSetAttribute(attribute, record.dynamic_shared, kernel, self._device),
        )
        return kernel

    def _attributes(self, record: LaunchRecord) -> list[Any]:
        driver = self._driver
        identity = driver.CUlaunchAttributeID
        attributes = []
        if record.cluster != (1, 1, 1):
            one = driver.CUlaunchAttribute()
            one.id = identity.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            one.value.clusterDim.x, one.value.clusterDim.y, one.value.clusterDim.z = record.cluster
            attributes.append(one)
        for name, value in record.attributes.items():
            one = driver.CUlaunchAttribute()
            if name == "programmatic_serialization":
                one.id = identity.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                one.value.programmaticStreamSerializationAllowed = value
            elif name == "cooperative":
                one.id = identity.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
                one.value.cooperative = value
            elif name == "priority":
                one.id = identity.CU_LAUNCH_ATTRIBUTE_PRIORITY
                one.value.priority = value
            else:
                raise UnsupportedError(f"launch-attribute:{name}", record.kernel)
            attributes.append(one)
        return attributes

    def _check(self, what: str, result: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """The value of a driver call's (error, value...) tuple."""
        error, *values = result
        if int(error) != 0:
            raise DeviceError(f"{what}: {error.name} ({int(error)})")
        return values[0] if values else None


def _driver() -> Any:  # noqa: ANN401  untyped module
    """`cuda.bindings.driver`, with a GPU behind it.

    Raises:
        UnsupportedError: the package, the driver library or the GPU is missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UnsupportedError("package:cuda-bindings", str(error)) from error
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # the driver library cannot be loaded
        raise UnsupportedError("gpu", str(error)) from error
    if int(code) != 0:
        raise UnsupportedError("gpu", f"cuInit: {code.name}")
    return driver
