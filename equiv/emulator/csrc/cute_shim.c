/* The CUDA surface that host code compiled by CuTe DSL calls, handed to Python.
 *
 * The compiled host function calls a runtime library with a small C interface (spec/ptx.md 1.3). This file implements the
 * same functions; each call goes to a callback set by equiv/emulator/cute_shim.py. A callback returns a cudaError_t; host code
 * gives it back to its caller at once, where the Python side raises the exception that it kept. Without callbacks every call
 * answers cudaErrorInitializationError.
 *
 * None of the functions is exported under its own name: of two libraries with the same names in one process the one loaded
 * first would serve both, so that GPU functions and emulated ones could not live side by side. `equiv_shim_symbols` lists
 * them, and each emulated function is linked to them one by one. */
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

static int _cudaLibraryLoadData(void **library, const void *data, void *jit_options, void *jit_values, int jit_count,
                                void *options, void *values, int count) {
    (void)jit_options, (void)jit_values, (void)options, (void)values;
    if (jit_count || count) return CALL(refuse, "cudaLibraryLoadData with options");
    uint64_t handle = 0;
    int error = CALL(load, data, &handle);
    *library = (void *)(uintptr_t)handle;
    return error;
}

static int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    uint64_t handle = 0;
    int error = CALL(kernel, HANDLE(library), name, &handle);
    *kernel = (void *)(uintptr_t)handle;
    return error;
}

static int _cudaLibraryUnload(void *library) { return CALL(unload, HANDLE(library)); }

static int _cudaGetDevice(int *device) { return *device = 0, OK; }
static int _cudaGetDeviceCount(int *count) { return *count = 1, OK; }
static int _cudaSetDevice(int device) { return device == 0 ? OK : CALL(refuse, "cudaSetDevice of another device"); }
static int _cuDeviceGet(int *device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? OK : CALL(refuse, "cuDeviceGet of another device");
}

static int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    return CALL(device_attribute, attribute, value);
}

static int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)device;
    return CALL(kernel_attribute, HANDLE(kernel), attribute, value);
}

static int _cudaFuncSetAttribute(void *kernel, int attribute, int value) {
    return CALL(set_kernel_attribute, HANDLE(kernel), attribute, value);
}

static int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
    (void)device;
    return CALL(set_kernel_attribute, HANDLE(kernel), attribute, value);
}

static int _cudaLaunchKernelEx(const struct launch_config *config, void *kernel, void **arguments) {
    return CALL(launch, HANDLE(kernel), config, arguments);
}

static int _cudaLaunchKernel(void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x,
                             uint32_t block_y, uint32_t block_z, void **arguments, uint64_t dynamic_shared, void *stream) {
    struct launch_config config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_shared, stream, NULL, 0};
    return CALL(launch, HANDLE(kernel), &config, arguments);
}

/* Launches are complete when they return, so there is nothing to wait for. */
static int _cudaDeviceSynchronize(void) { return OK; }
static int _cudaStreamSynchronize(void *stream) { return (void)stream, OK; }

/* Known names of the interface that nothing here implements: refused by name instead of reaching a real driver. */
#define REFUSED(X) \
    X(_cuLibraryGetGlobal) \
    X(_cuLibraryGetKernel) \
    X(_cuLibraryGetKernelCount) \
    X(_cuLibraryGetManaged) \
    X(_cuLibraryGetModule) \
    X(_cuLibraryGetUnifiedFunction) \
    X(_cuLibraryLoadData) \
    X(_cuLibraryLoadFromFile) \
    X(_cuLibraryUnload) \
    X(_cuTensorMapEncodeTiled) \
    X(_cudaEventCreate) \
    X(_cudaEventDestroy) \
    X(_cudaEventElapsedTime) \
    X(_cudaEventRecord) \
    X(_cudaFree) \
    X(_cudaFreeAsync) \
    X(_cudaFreeHost) \
    X(_cudaGetDeviceProperties) \
    X(_cudaGraphDestroy) \
    X(_cudaGraphExecDestroy) \
    X(_cudaGraphInstantiate) \
    X(_cudaGraphLaunch) \
    X(_cudaLibraryGetGlobal) \
    X(_cudaLibraryGetKernelCount) \
    X(_cudaLibraryGetManaged) \
    X(_cudaLibraryGetUnifiedFunction) \
    X(_cudaLibraryLoadFromFile) \
    X(_cudaMalloc) \
    X(_cudaMallocAsync) \
    X(_cudaMallocHost) \
    X(_cudaMallocManaged) \
    X(_cudaMemcpy) \
    X(_cudaMemcpyAsync) \
    X(_cudaMemset) \
    X(_cudaMemsetAsync) \
    X(_cudaOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(_cudaProfilerStart) \
    X(_cudaProfilerStop) \
    X(_cudaStreamAddCallback) \
    X(_cudaStreamBeginCapture) \
    X(_cudaStreamCreate) \
    X(_cudaStreamDestroy) \
    X(_cudaStreamEndCapture) \
    X(_cudaStreamWaitEvent) \
    X(cuda_dialect_init_library_once) \
    X(cuda_dialect_unload_library_once)

#define REFUSE(name) \
    static int name(void) { return CALL(refuse, #name); }
REFUSED(REFUSE)

struct symbol {
    const char *name;
    int (*function)(void);
};

#define ROW(name) {#name, (int (*)(void))(void *)name},
static const struct symbol symbols[] = {
    ROW(_cudaLibraryLoadData)
    ROW(_cudaLibraryGetKernel)
    ROW(_cudaLibraryUnload)
    ROW(_cudaGetDevice)
    ROW(_cudaGetDeviceCount)
    ROW(_cudaSetDevice)
    ROW(_cuDeviceGet)
    ROW(_cudaDeviceGetAttribute)
    ROW(_cuKernelGetAttribute)
    ROW(_cudaFuncSetAttribute)
    ROW(_cudaKernelSetAttributeForDevice)
    ROW(_cudaLaunchKernelEx)
    ROW(_cudaLaunchKernel)
    ROW(_cudaDeviceSynchronize)
    ROW(_cudaStreamSynchronize)
    REFUSED(ROW)
};

const struct symbol *equiv_shim_symbols(uint64_t *count) {
    *count = sizeof symbols / sizeof *symbols;
    return symbols;
}
