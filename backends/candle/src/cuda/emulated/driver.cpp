// A strict stand-in for libcuda and the libraries above it, made of the emulated kernels: for tests of the code
// that drives a real GPU.
//
// Input: the calls of cudarc, candle and candle-flash-attn. Output: what CUDA's documentation says. What must
// hold: a call that the documentation forbids fails, or loses the device; it never passes silently. A kernel
// runs while it is launched, but its errors show at the next call, as on a device.
#include "emulated.cpp"

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <sstream>

#include "memory.h"

namespace {

// A failure that a test requested: of the `left`-th next call of a function.
struct Planned {
    std::string function;
    unsigned left;
    int code;
    bool is_sticky;
};

std::mutex one_call_at_a_time;
std::map<std::string, unsigned> calls;
std::map<std::string, uint64_t> bytes_of;
std::vector<Planned> planned;
int capability[2] = {8, 0}, driver_version = 13000;
bool is_initialized = false;
thread_local bool has_context = false;
// Work that this thread's stream records instead of doing it; absent outside of a capture.
typedef std::vector<std::function<int()>> Graph;
thread_local std::unique_ptr<Graph> recorded;
// The runtime's error of this thread, until it is read.
thread_local int runtime_error = SUCCESS;

int planned_failure(const char* function) {
    ++calls[function];
    for (size_t i = 0; i < planned.size(); ++i) {
        if (planned[i].function != function || --planned[i].left > 0) continue;
        const Planned found = planned[i];
        planned.erase(planned.begin() + i);
        if (found.is_sticky) fault = found.code;
        return found.code;
    }
    return SUCCESS;
}

#define EXPORTED extern "C" __global__
// A call that works without a context, even on a lost device.
#define ENTER                                                   \
    const std::lock_guard<std::mutex> lock(one_call_at_a_time); \
    if (const int code = planned_failure(__func__)) return code;
// A call that needs a device.
#define ENTER_DEVICE                                                                \
    ENTER                                                                           \
    if (fault != SUCCESS) return fault;                                             \
    if (!is_initialized) return fail(NOT_INITIALIZED, "%s before cuInit", __func__);
// A call that needs a context in this thread.
#define ENTER_CONTEXT \
    ENTER_DEVICE      \
    if (!has_context) return fail(INVALID_CONTEXT, "%s in a thread without a context", __func__);
// A call that a graph cannot contain.
#define ENTER_OUTSIDE \
    ENTER_CONTEXT     \
    if (recorded) return fail(CAPTURE_UNSUPPORTED, "%s during a capture", __func__);

struct Module {
    KernelTable table;
};
struct Function {
    KernelTable table;
    const Kernel* kernel;
};

sigjmp_buf interrupted;
void interrupt(int signal) { siglongjmp(interrupted, signal); }

// Runs `work`, which reads and writes the device's memory; loses the device if it touches anything else.
template <class Work>
void on_device(const char* name, Work work) {
    if (is_dry) return;
    const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    struct sigaction before[4], action = {};
    action.sa_handler = interrupt;
    for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &action, &before[i]);
    const int signal = sigsetjmp(interrupted, 1);
    if (signal == 0) {
        work();
    } else {
        const int code = signal == SIGTRAP ? ASSERT : signal == SIGILL ? MISALIGNED_ADDRESS : ILLEGAL_ADDRESS;
        lose_device(code, "%s: %s", name, strsignal(signal));
    }
    for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
}

// Does work of a stream, or records it.
template <class Work>
int now_or_later(Work work) {
    if (!recorded) return work();
    recorded->push_back(work);
    return SUCCESS;
}

// The alignment of what a word of a signature points to.
size_t alignment(char letter) {
    if (letter == 'b' || letter == 'h') return 2;
    if (letter == 'i' || letter == 'u' || letter == 'f') return 4;
    return letter == 'c' ? 1 : letter - '0';
}

bool are_pointers_right(const Kernel& kernel, void** arguments, Stream stream) {
    int position = 0;
    std::istringstream words(kernel.signature);
    for (std::string word; words >> word;) {
        const int argument = position++;
        if (word[0] != '*') continue;
        const Address address = *static_cast<Address*>(arguments[argument]);
        if (address == 0) continue;
        if (address % alignment(word[1]) != 0) {
            lose_device(MISALIGNED_ADDRESS, "%s: argument %d is misaligned", kernel.name, argument);
            return false;
        }
        if (use(kernel.name, address, 0, stream) == nullptr) {
            fault = ILLEGAL_ADDRESS;
            return false;
        }
    }
    return true;
}

}  // namespace

#include "libraries.h"

// Device and context.

EXPORTED int cuInit(unsigned) {
    ENTER
    is_initialized = true;
    return capability[0] == 0 ? NO_DEVICE : SUCCESS;
}
EXPORTED int cuDriverGetVersion(int* version) {
    ENTER
    *version = driver_version;
    return SUCCESS;
}
EXPORTED int cuGetErrorName(int code, const char** name) {
    *name = "named by cudarc";
    return code == SUCCESS ? SUCCESS : INVALID_VALUE;
}
EXPORTED int cuGetErrorString(int, const char** text) {
    *text = finding;
    return SUCCESS;
}
EXPORTED int cuDeviceGet(int* device, int ordinal) {
    ENTER_DEVICE
    *device = 0;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}
EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER_DEVICE
    constexpr int MAJOR = 75, MINOR = 76, HAS_POOLS = 115;
    if (attribute != MAJOR && attribute != MINOR && attribute != HAS_POOLS) {
        return fail(INVALID_VALUE, "the attribute %d is not emulated", attribute);
    }
    *value = attribute == HAS_POOLS ? 1 : capability[attribute - MAJOR];
    return SUCCESS;
}
EXPORTED int cuDevicePrimaryCtxRetain(void** context, int) {
    ENTER_DEVICE
    *context = &allocations;
    return SUCCESS;
}
EXPORTED int cuDevicePrimaryCtxRelease_v2(int) {
    ENTER_DEVICE
    return SUCCESS;
}
EXPORTED int cuCtxGetCurrent(void** context) {
    ENTER_DEVICE
    *context = has_context ? &allocations : nullptr;
    return SUCCESS;
}
EXPORTED int cuCtxSetCurrent(void* context) {
    ENTER_DEVICE
    has_context = context != nullptr;
    return SUCCESS;
}

// Streams and events. An event is the number of the last operation before it.

struct Event {
    Stream stream;
    uint64_t last;
};

EXPORTED int cuStreamSynchronize(Stream stream) {
    ENTER_OUTSIDE
    wait_for(stream);
    return SUCCESS;
}
EXPORTED int cuCtxSynchronize() {
    ENTER_CONTEXT
    for (auto& [_, last] : completed) last = now;
    for (auto& [_, allocation] : allocations) completed[allocation.user] = now;
    return SUCCESS;
}
EXPORTED int cuEventCreate(Event** event, unsigned) {
    ENTER_CONTEXT
    *event = new Event{};
    return SUCCESS;
}
EXPORTED int cuEventRecord(Event* event, Stream stream) {
    ENTER_CONTEXT
    *event = {own_stream(stream), now};
    return SUCCESS;
}
EXPORTED int cuStreamWaitEvent(Stream, Event* event, unsigned) {
    ENTER_CONTEXT
    completed[event->stream] = max(completed[event->stream], event->last);
    return SUCCESS;
}
EXPORTED int cuEventDestroy_v2(Event* event) {
    ENTER_CONTEXT
    delete event;
    return SUCCESS;
}

// Graphs: what a stream records, and does at each launch.

EXPORTED int cuStreamBeginCapture_v2(Stream, int) {
    ENTER_OUTSIDE
    recorded = std::make_unique<Graph>();
    return SUCCESS;
}
EXPORTED int cuStreamEndCapture(Stream, Graph** graph) {
    // A capture that fails ends, too.
    std::unique_ptr<Graph> ended = std::move(recorded);
    ENTER_CONTEXT
    if (!ended) return fail(ILLEGAL_STATE, "the end of a capture that did not begin");
    *graph = ended.release();
    return SUCCESS;
}
EXPORTED int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
    ENTER_CONTEXT
    *made = new Graph(*graph);
    return SUCCESS;
}
EXPORTED int cuGraphLaunch(Graph* graph, Stream) {
    ENTER_OUTSIDE
    for (const auto& work : *graph) {
        if (const int code = work()) return code;
    }
    return SUCCESS;
}
EXPORTED int cuGraphDestroy(Graph* graph) {
    ENTER_DEVICE
    delete graph;
    return SUCCESS;
}
EXPORTED int cuGraphExecDestroy(Graph* graph) {
    ENTER_DEVICE
    delete graph;
    return SUCCESS;
}

// Memory.

EXPORTED int cuMemAllocAsync(Address* address, size_t bytes, Stream stream) {
    ENTER_OUTSIDE
    bytes_of[__func__] += bytes;
    return allocate(address, bytes, stream);
}
EXPORTED int cuMemFreeAsync(Address address, Stream stream) {
    ENTER_OUTSIDE
    return release(address, stream);
}
EXPORTED int cuDeviceGetDefaultMemPool(void** pool, int) {
    ENTER_DEVICE
    *pool = &free_blocks;
    return SUCCESS;
}
EXPORTED int cuMemPoolSetAttribute(void* pool, int attribute, uint64_t* value) {
    ENTER_DEVICE
    constexpr int RELEASE_THRESHOLD = 4;
    if (pool != &free_blocks || attribute != RELEASE_THRESHOLD) {
        return fail(INVALID_VALUE, "an unknown pool or attribute");
    }
    threshold = *value;
    return SUCCESS;
}
EXPORTED int cuMemPoolTrimTo(void* pool, size_t kept) {
    ENTER_DEVICE
    if (pool != &free_blocks) return fail(INVALID_VALUE, "an unknown pool");
    trim(kept);
    return SUCCESS;
}
EXPORTED int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
    ENTER_CONTEXT
    return now_or_later([=] {
        if (use("a memset", to, bytes, stream) == nullptr) return INVALID_VALUE;
        memset(reinterpret_cast<void*>(to), value, bytes);
        return SUCCESS;
    });
}
EXPORTED int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
    ENTER_OUTSIDE
    bytes_of[__func__] += bytes;
    if (is_on_device(from)) return fail(INVALID_VALUE, "a copy to the device from the device");
    if (use("a copy to the device", to, bytes, stream) == nullptr) return INVALID_VALUE;
    memcpy(reinterpret_cast<void*>(to), from, bytes);
    return SUCCESS;
}
EXPORTED int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
    ENTER_OUTSIDE
    bytes_of[__func__] += bytes;
    if (is_on_device(to)) return fail(INVALID_VALUE, "a copy to main memory onto the device");
    if (use("a copy to main memory", from, bytes, stream) == nullptr) return INVALID_VALUE;
    memcpy(to, reinterpret_cast<const void*>(from), bytes);
    // The memory is not pinned, so the call waits for the copy.
    wait_for(stream);
    return SUCCESS;
}
EXPORTED int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) {
    ENTER_OUTSIDE
    if (use("a copy's source", from, bytes, stream) == nullptr) return INVALID_VALUE;
    if (use("a copy's destination", to, bytes, stream) == nullptr) return INVALID_VALUE;
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return SUCCESS;
}

// Modules and launches. The PTX of `nvcc-check.sh` has the name of its source; the library of that name, next to
// this one, has its kernels.

EXPORTED int cuModuleLoadData(Module** module, const char* ptx) {
    ENTER_CONTEXT
    const char* const comment = strstr(ptx, "// ");
    if (strncmp(ptx, ".version ", 9) != 0 || comment == nullptr) return fail(INVALID_PTX, "a module that is not PTX");
    const std::string name(comment + 3, strcspn(comment + 3, "\n"));
    if (name == "kernels") {
        *module = new Module{own_kernels()};
        return SUCCESS;
    }
    Dl_info self;
    dladdr(&fault, &self);
    const std::string path = self.dli_fname;
    void* const library = dlopen((path.substr(0, path.rfind('/') + 1) + name + ".so").c_str(), RTLD_NOW);
    if (library == nullptr) return fail(INVALID_PTX, "%s", dlerror());
    *module = new Module{*static_cast<const KernelTable*>(dlsym(library, "kernel_table"))};
    return SUCCESS;
}
EXPORTED int cuModuleUnload(Module*) {
    ENTER_CONTEXT
    return SUCCESS;
}
EXPORTED int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    ENTER_CONTEXT
    // The same function each time: functions are never freed.
    static std::map<std::pair<const Kernel*, std::string>, Function> functions;
    const KernelTable& table = module->table;
    for (const Kernel* kernel = table.first; kernel < table.first + table.count; ++kernel) {
        if (strcmp(kernel->name, name) != 0) continue;
        *function = &(functions[{table.first, name}] = {table, kernel});
        return SUCCESS;
    }
    return fail(NOT_FOUND, "there is no kernel %s", name);
}
EXPORTED int cuLaunchKernel(Function* function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                            unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                            Stream stream, void** arguments, void** extra) {
    ENTER_CONTEXT
    const char* const name = function->kernel->name;
    const uint64_t threads = uint64_t(threads_x) * threads_y * threads_z;
    const bool is_grid = blocks_x - 1 < 0x7fffffff && blocks_y - 1 < 65535 && blocks_z - 1 < 65535;
    if (!is_grid || threads == 0 || threads > MOST_THREADS || threads_z > 64 || shared_bytes > 48 * 1024 || extra) {
        return fail(INVALID_VALUE, "%s: blocks %ux%ux%u of threads %ux%ux%u", name, blocks_x, blocks_y, blocks_z,
                    threads_x, threads_y, threads_z);
    }
    // The arguments are copied now, as the driver does.
    std::vector<uint64_t> words;
    std::istringstream signature(function->kernel->signature);
    for (std::string word; signature >> word;) {
        words.push_back(0);
        const size_t bytes = word[0] == '*' ? sizeof(Address) : alignment(word[0]);
        memcpy(&words.back(), arguments[words.size() - 1], bytes);
    }
    return now_or_later([=]() mutable {
        ++calls[name];
        std::vector<void*> addresses;
        for (uint64_t& word : words) addresses.push_back(&word);
        if (!are_pointers_right(*function->kernel, addresses.data(), stream)) return SUCCESS;
        on_device(name, [&] {
            const Index blocks{blocks_x, blocks_y, blocks_z}, shape{threads_x, threads_y, threads_z};
            if (!run_grid(function->table, *function->kernel, blocks, shape, addresses.data())) {
                lose_device(LAUNCH_FAILED, "%s: threads wait for others that never come", name);
            }
        });
        return SUCCESS;
    });
}

// What candle links, but the server never calls.
#define NOT_EMULATED(name) \
    EXPORTED int name() { return fail(801, "%s is not emulated", #name); }
NOT_EMULATED(cuCtxDestroy_v2)
NOT_EMULATED(cuMemAlloc_v2)
NOT_EMULATED(cuMemFree_v2)
NOT_EMULATED(cuMemcpyPeerAsync)
NOT_EMULATED(cuModuleLoad)
NOT_EMULATED(cuStreamDestroy_v2)
NOT_EMULATED(cuStreamIsCapturing)
NOT_EMULATED(cublasDgemmStridedBatched)

// For tests.

// A device of this compute capability without faults, with `bytes` more memory than the pool has now; 0: plenty.
EXPORTED void emulated_reset(size_t bytes, int major, int minor, int version) {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    fault = runtime_error = SUCCESS;
    finding[0] = '\0';
    calls.clear();
    bytes_of.clear();
    is_dry = false;
    planned.clear();
    capacity = bytes == 0 ? DEFAULT_BYTES : reserved + bytes;
    capability[0] = major;
    capability[1] = minor;
    driver_version = version;
}
// Lets the `count`-th next call of a function, or a launch of a kernel of this name, return `code`.
EXPORTED void emulated_fail(const char* function, unsigned count, int code, bool is_sticky) {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    planned.push_back({function, count, code, is_sticky});
}
EXPORTED unsigned emulated_calls(const char* function) {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    return calls[function];
}
// The bytes of all calls of an allocation or a copy.
EXPORTED uint64_t emulated_bytes(const char* function) {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    return bytes_of[function];
}
// From now on nothing is computed, until the next reset.
EXPORTED void emulated_compute_nothing() { is_dry = true; }
EXPORTED const char* emulated_finding() { return finding; }
EXPORTED unsigned emulated_allocations() { return allocations.size(); }
