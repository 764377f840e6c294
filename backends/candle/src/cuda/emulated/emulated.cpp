// Runs the kernels of kernels.cu on the CPU.
//
// Input: a kernel's name, the shape of its launch, and the addresses of its arguments, in the driver's form.
// What must hold: the launch fails unless all threads of a warp take part in each shuffle, and all threads of
// a block in each barrier.
#include "../kernels.cu"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;

extern char __start_emulated_shared[], __stop_emulated_shared[];

namespace {

constexpr size_t STACK_BYTES = 128 * 1024;

enum State { READY, WAITS_FOR_WARP, WAITS_FOR_BLOCK, DONE };

struct Fiber {
    State state = READY;
    bool has_started = false;
    // The slot of its lane, out of two, that the next shuffle writes: other threads may still read the
    // previous slot.
    int slot = 0;
    ucontext_t start;
    jmp_buf point;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
};

struct Shuffled {
    float values[2][WARP];
};

std::mutex one_launch_at_a_time;
std::vector<Fiber*> fibers;
Shuffled shuffled[MOST_THREADS / WARP];
jmp_buf scheduler;
Fiber* running;
void (*run_thread)();

void end(Fiber& fiber, State state) {
    fiber.state = state;
    if (_setjmp(fiber.point) == 0) _longjmp(scheduler, 1);
}

void run_for_ever() {
    for (;;) {
        run_thread();
        end(*running, DONE);
    }
}

void resume(unsigned thread) {
    Fiber& fiber = *fibers[thread];
    running = &fiber;
    threadIdx.x = thread;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.has_started) _longjmp(fiber.point, 1);
    fiber.has_started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.start, run_for_ever, 0);
    setcontext(&fiber.start);
}

bool are_all(unsigned first, unsigned end, State state) {
    for (unsigned thread = first; thread < end; ++thread) {
        if (fibers[thread]->state != state) return false;
    }
    return true;
}

void make_ready(unsigned first, unsigned end) {
    for (unsigned thread = first; thread < end; ++thread) fibers[thread]->state = READY;
}

// Runs a block; returns whether all its threads reached their end. In every other block the last warp goes
// first, so that a missing barrier shows up, whichever warp would have to wait.
bool run_block(unsigned threads, bool is_backwards) {
    memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
    make_ready(0, threads);
    for (;;) {
        for (unsigned warp = 0; warp < threads; warp += WARP) {
            const unsigned first = is_backwards ? threads - WARP - warp : warp;
            do {
                for (unsigned thread = first; thread < first + WARP; ++thread) {
                    if (fibers[thread]->state == READY) resume(thread);
                }
                if (!are_all(first, first + WARP, WAITS_FOR_WARP)) break;
                make_ready(first, first + WARP);
            } while (true);
        }
        if (are_all(0, threads, DONE)) return true;
        if (!are_all(0, threads, WAITS_FOR_BLOCK)) return false;
        make_ready(0, threads);
    }
}

// The arguments of the current launch.
void** arguments;

template <class... A, size_t... I>
void call(void (*kernel)(A...), std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

template <class... A>
void call(void (*kernel)(A...)) {
    call(kernel, std::index_sequence_for<A...>{});
}

const char* letter(int) { return "i"; }
const char* letter(unsigned) { return "u"; }
const char* letter(long long) { return "l"; }
const char* letter(float) { return "f"; }
const char* letter(char) { return "c"; }
const char* letter(__nv_bfloat16) { return "b"; }
const char* letter(__half) { return "h"; }
template <class T>
std::string word(T) {
    return letter(T{});
}
template <class T>
std::string word(T*) {
    return std::string("*") + letter(T{});
}

template <class... A>
std::string signature_of(void (*)(A...)) {
    std::string words;
    ((words += words.empty() ? word(A{}) : " " + word(A{})), ...);
    return words;
}

struct Kernel {
    const char* name;
    void (*run)();
    std::string signature;
};

#define LISTED(name) \
    Kernel { #name, [] { call(name); }, signature_of(name) }
#define LISTED_OF_16_BITS(name) LISTED(name##_bf16), LISTED(name##_f16)
#define LISTED_OF_ALL(name) LISTED_OF_16_BITS(name), LISTED(name##_f32)

const Kernel KERNELS[] = {
    LISTED_OF_16_BITS(norm),
    LISTED_OF_16_BITS(norm_columns),
    LISTED_OF_16_BITS(turn_heads),
    LISTED_OF_16_BITS(activate),
    LISTED_OF_16_BITS(gate),
    LISTED_OF_16_BITS(not_finite),
    LISTED_OF_ALL(add_norm),
    LISTED_OF_ALL(add_bias),
    LISTED_OF_ALL(embed),
    LISTED(gather_rows),
    LISTED(mean_rows),
};

const Kernel* find(const char* name) {
    for (const Kernel& kernel : KERNELS) {
        if (strcmp(kernel.name, name) == 0) return &kernel;
    }
    return nullptr;
}

}  // namespace

void __syncthreads() { end(*running, WAITS_FOR_BLOCK); }

float __shfl_xor_sync(unsigned mask, float value, int lanes) {
    Fiber& fiber = *running;
    const unsigned lane = threadIdx.x % WARP;
    float* const values = shuffled[threadIdx.x / WARP].values[fiber.slot];
    fiber.slot = 1 - fiber.slot;
    values[lane] = value;
    // Masks with fewer lanes are not emulated: such threads never meet, so the launch fails.
    end(fiber, mask == ALL_LANES ? WAITS_FOR_WARP : WAITS_FOR_BLOCK);
    return values[lane ^ lanes];
}

float __bfloat162float(__nv_bfloat16 value) {
    const unsigned bits = static_cast<unsigned>(value.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

__nv_bfloat16 __float2bfloat16_rn(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) return {static_cast<unsigned short>(bits >> 16 | 0x40)};
    // Adds half of the last place, minus one bit if that place is even, so that a tie rounds to even.
    return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

float __half2float(__half value) {
    const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
    const float size = exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? ldexpf(fraction, -24)
                                       : ldexpf(1024 + fraction, exponent - 25);
    return value.bits & 0x8000 ? -size : size;
}

__half __float2half_rn(float value) {
    const unsigned short sign = signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (isnan(value)) return {static_cast<unsigned short>(sign | 0x7e00)};
    // Values of at least half a last place above the largest number become infinite.
    if (size >= 65520.0f) return {static_cast<unsigned short>(sign | 0x7c00)};
    int exponent;
    frexpf(size, &exponent);
    // Zero and numbers below 2^-14 use the last place of 2^-14.
    if (size < ldexpf(1, -14)) exponent = -13;
    const int places = static_cast<int>(nearbyintf(ldexpf(size, 11 - exponent)));
    // A number that was rounded up to the next power of two carries into the exponent.
    return {static_cast<unsigned short>(sign | (places + ((exponent + 13) << 10)))};
}

// The types of a kernel's arguments, such as "*b f i" for (__nv_bfloat16*, float, int); null if there is no
// such kernel.
extern "C" __global__ const char* signature(const char* name) {
    const Kernel* const kernel = find(name);
    return kernel == nullptr ? nullptr : kernel->signature.c_str();
}

// Returns 0 if the kernel ran, 1 if no kernel has this name or the shape is wrong, 2 if threads waited for
// each other in vain.
extern "C" __global__ int launch(const char* name, unsigned blocks, unsigned threads, void** given) {
    const std::lock_guard<std::mutex> lock(one_launch_at_a_time);
    const Kernel* const kernel = find(name);
    if (kernel == nullptr || blocks == 0 || threads == 0 || threads % WARP != 0 || threads > MOST_THREADS) return 1;
    while (fibers.size() < threads) fibers.push_back(new Fiber);
    run_thread = kernel->run;
    arguments = given;
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        if (!run_block(threads, block % 2 == 1)) {
            // Waiting fibers still have stack frames of this launch. The next launch gets new fibers.
            fibers.clear();
            return 2;
        }
    }
    return 0;
}

// Memory whose end, rounded up to 16 bytes, is followed by a page that must not be touched. Another such page
// comes before its first page. Reading or writing there ends the process. Null if there is no memory.
extern "C" __global__ char* reserve(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    char* const all = static_cast<char*>(
        mmap(nullptr, (pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (all == MAP_FAILED) return nullptr;
    if (mprotect(all + page, pages * page, PROT_READ | PROT_WRITE) != 0) return nullptr;
    memset(all + page, 0xff, pages * page);
    return all + page + pages * page - (bytes + 15) / 16 * 16;
}

// Frees memory that `reserve` returned for the same number of bytes.
extern "C" __global__ void release(char* memory, size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    munmap(memory + (bytes + 15) / 16 * 16 - (pages + 1) * page, (pages + 2) * page);
}
