/* The CUDA surface that host code compiled by CuTe DSL calls, handed to Python.
 *
 * The compiled host function links against a runtime library with a small C interface (spec/ptx.md 1.3). This file exports the
 * same symbols; each call goes to a callback set by equiv/emulator/cute_shim.py. A callback returns a cudaError_t; host code
 * gives it back to its caller at once, where the Python side raises the exception that it kept. Without callbacks every call
 * answers cudaErrorInitializationError. */
#include <stddef.h>
#include <stdint.h>

enum { OK = 0, NOT_INITIALIZED = 3 };

struct launch_config { /* cudaLaunchConfig_t */
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t dynamic_shared;
    void *stream;
    void *attributes;
    uint32_t attribute_count;
};

struct callbacks {
    int (*load)(const void *data, uint64_t *library);
    int (*kernel)(uint64_t library, const char *name, uint64_t *kernel);
    int (*unload)(uint64_t library);
    int (*device_attribute)(int attribute, int *value);
    int (*kernel_attribute)(uint64_t kernel, int attribute, int *value);
    int (*set_kernel_attribute)(uint64_t kernel, int attribute, int value);
    int (*launch)(uint64_t kernel, const struct launch_config *config, void **arguments);
    int (*refuse)(const char *function);
};

static struct callbacks active;

void equiv_shim_set(const struct callbacks *given) { active = *given; }

#define CALL(name, ...) (active.name ? active.name(__VA_ARGS__) : NOT_INITIALIZED)
#define HANDLE(pointer) ((uint64_t)(uintptr_t)(pointer))

int _cudaLibraryLoadData(void **library, const void *data, void *jit_options, void *jit_values, int jit_count,
                         void *options, void *values, int count) {
    (void)jit_options, (void)jit_values, (void)options, (void)values;
    if (jit_count || count) return CALL(refuse, "cudaLibraryLoadData with options");
    uint64_t handle = 0;
    int error = CALL(load, data, &handle);
    *library = (void *)(uintptr_t)handle;
    return error;
}

int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    uint64_t handle = 0;
    int error = CALL(kernel, HANDLE(library), name, &handle);
    *kernel = (void *)(uintptr_t)handle;
    return error;
}

int _cudaLibraryUnload(void *library) { return CALL(unload, HANDLE(library)); }

int _cudaGetDevice(int *device) { return *device = 0, OK; }
int _cudaGetDeviceCount(int *count) { return *count = 1, OK; }
int _cudaSetDevice(int device) { return device == 0 ? OK : CALL(refuse, "cudaSetDevice of another device"); }
int _cuDeviceGet(int *device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? OK : CALL(refuse, "cuDeviceGet of another device");
}

int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    return CALL(device_attribute, attribute, value);
}

int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)device;
    return CALL(kernel_attribute, HANDLE(kernel), attribute, value);
}

int _cudaFuncSetAttribute(void *kernel, int attribute, int value) {
    return CALL(set_kernel_attribute, HANDLE(kernel), attribute, value);
}

int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
    (void)device;
    return CALL(set_kernel_attribute, HANDLE(kernel), attribute, value);
}

int _cudaLaunchKernelEx(const struct launch_config *config, void *kernel, void **arguments) {
    return CALL(launch, HANDLE(kernel), config, arguments);
}

int _cudaLaunchKernel(void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                      uint32_t block_z, void **arguments, uint64_t dynamic_shared, void *stream) {
    struct launch_config config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_shared, stream, NULL, 0};
    return CALL(launch, HANDLE(kernel), &config, arguments);
}

/* Launches are complete when they return, so there is nothing to wait for. */
int _cudaDeviceSynchronize(void) { return OK; }
int _cudaStreamSynchronize(void *stream) { return (void)stream, OK; }

/* Known names of the interface that nothing here implements: refused by name instead of reaching a real driver. */
#define REFUSED(name) \
    int _##name(void) { return CALL(refuse, #name); }
REFUSED(cuLibraryGetGlobal)
REFUSED(cuLibraryGetKernel)
REFUSED(cuLibraryGetKernelCount)
REFUSED(cuLibraryGetManaged)
REFUSED(cuLibraryGetModule)
REFUSED(cuLibraryGetUnifiedFunction)
REFUSED(cuLibraryLoadData)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLibraryUnload)
REFUSED(cuTensorMapEncodeTiled)
REFUSED(cudaEventCreate)
REFUSED(cudaEventDestroy)
REFUSED(cudaEventElapsedTime)
REFUSED(cudaEventRecord)
REFUSED(cudaFree)
REFUSED(cudaFreeAsync)
REFUSED(cudaFreeHost)
REFUSED(cudaGetDeviceProperties)
REFUSED(cudaGraphDestroy)
REFUSED(cudaGraphExecDestroy)
REFUSED(cudaGraphInstantiate)
REFUSED(cudaGraphLaunch)
REFUSED(cudaLibraryGetGlobal)
REFUSED(cudaLibraryGetKernelCount)
REFUSED(cudaLibraryGetManaged)
REFUSED(cudaLibraryGetUnifiedFunction)
REFUSED(cudaLibraryLoadFromFile)
REFUSED(cudaMalloc)
REFUSED(cudaMallocAsync)
REFUSED(cudaMallocHost)
REFUSED(cudaMallocManaged)
REFUSED(cudaMemcpy)
REFUSED(cudaMemcpyAsync)
REFUSED(cudaMemset)
REFUSED(cudaMemsetAsync)
REFUSED(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cudaProfilerStart)
REFUSED(cudaProfilerStop)
REFUSED(cudaStreamAddCallback)
REFUSED(cudaStreamBeginCapture)
REFUSED(cudaStreamCreate)
REFUSED(cudaStreamDestroy)
REFUSED(cudaStreamEndCapture)
REFUSED(cudaStreamWaitEvent)
