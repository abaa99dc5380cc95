/* Two GPUs where there is one: the second is another context on the same GPU, which runs the work of both by turns of some milliseconds.
 * So what two GPUs do together can be tested with one, though not how fast they are, nor with NCCL, which wants a GPU for each rank.
 * This is libcuda.so, in front of the real driver by the name of libcuda_real.so. */
#include <dlfcn.h>
#include <stddef.h>

typedef int Result;
typedef int Device;
typedef void* Context;

static void* real(const char* name) {
    static void* library;
    if (!library) library = dlopen("libcuda_real.so", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}
#define REAL(name, ...) ((Result(*)(__VA_ARGS__))real(#name))

static Context twin;
static int retained;
static Device of(Device device) { return device == 1 ? 0 : device; }

Result cuDeviceGetCount(int* count) {
    *count = 2;
    return 0;
}
Result cuDeviceGet(Device* device, int ordinal) {
    Result result = REAL(cuDeviceGet, Device*, int)(device, of(ordinal));
    if (!result) *device = ordinal;
    return result;
}
Result cuDeviceGetName(char* name, int len, Device device) { return REAL(cuDeviceGetName, char*, int, Device)(name, len, of(device)); }
Result cuDeviceGetAttribute(int* value, int attribute, Device device) { return REAL(cuDeviceGetAttribute, int*, int, Device)(value, attribute, of(device)); }
Result cuDeviceTotalMem_v2(size_t* bytes, Device device) { return REAL(cuDeviceTotalMem_v2, size_t*, Device)(bytes, of(device)); }
Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
    if (device != 1) return REAL(cuDevicePrimaryCtxRetain, Context*, Device)(context, device);
    Result result = 0;
    if (!twin) {
        Context popped;
        result = REAL(cuCtxCreate_v2, Context*, unsigned, Device)(&twin, 0, 0);
        if (!result) result = REAL(cuCtxPopCurrent_v2, Context*)(&popped);
    }
    if (!result) retained++;
    *context = twin;
    return result;
}
Result cuDevicePrimaryCtxRelease_v2(Device device) {
    if (device != 1) return REAL(cuDevicePrimaryCtxRelease_v2, Device)(device);
    if (--retained) return 0;
    Context gone = twin;
    twin = NULL;
    return REAL(cuCtxDestroy_v2, Context)(gone);
}
Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
    if (device != 1) return REAL(cuDevicePrimaryCtxGetState, Device, unsigned*, int*)(device, flags, active);
    *flags = 0;
    *active = retained > 0;
    return 0;
}
Result cuCtxGetDevice(Device* device) {
    Context current = NULL;
    Result result = REAL(cuCtxGetDevice, Device*)(device);
    if (!result && !REAL(cuCtxGetCurrent, Context*)(&current) && current == twin) *device = 1;
    return result;
}
Result cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
    (void)device, (void)peer;
    *can = 1;
    return 0;
}
/* Each context reaches all memory of the GPU. */
Result cuCtxEnablePeerAccess(Context peer, unsigned flags) {
    (void)peer, (void)flags;
    return 0;
}

/* Where an allocation is, and what may reach it: a kind and a device. */
typedef struct {
    int type, id;
} Location;
typedef struct {
    int type, handles;
    Location location;
    void* security;
    unsigned char rest[8];
} Properties;
typedef struct {
    Location location;
    int flags;
} Access;
typedef unsigned long long Address;

Result cuMemCreate(Address* handle, size_t bytes, const Properties* properties, Address flags) {
    Properties its = *properties;
    its.location.id = of(its.location.id);
    return REAL(cuMemCreate, Address*, size_t, const Properties*, Address)(handle, bytes, &its, flags);
}
Result cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int option) {
    Properties its = *properties;
    its.location.id = of(its.location.id);
    return REAL(cuMemGetAllocationGranularity, size_t*, const Properties*, int)(bytes, &its, option);
}
Result cuMemSetAccess(Address address, size_t bytes, const Access* access, size_t count) {
    for (size_t i = 0; i < count; i++) {
        Access its = access[i];
        its.location.id = of(its.location.id);
        Result result = REAL(cuMemSetAccess, Address, size_t, const Access*, size_t)(address, bytes, &its, 1);
        if (result) return result;
    }
    return 0;
}
