// Runs the kernels of kernels.cu on the CPU.
//
// Input: a kernel's name, the shape of its launch, and the addresses of its arguments, in the driver's form.
// What must hold: the launch fails unless all threads of a warp take part in each shuffle, and all threads of
// a block in each barrier.
#include "emulated.h"

#include "../kernels.cu"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "registry.h"

Index threadIdx, blockIdx, blockDim, gridDim;

extern char __start_emulated_shared[], __stop_emulated_shared[];

namespace {

constexpr size_t STACK_BYTES = 128 * 1024;

enum State { NEW, READY, WAITS_FOR_WARP, WAITS_FOR_BLOCK, DONE };

struct Thread {
    State state;
    // The slot of its lane, out of two, that the next shuffle writes: other threads may still read the
    // previous slot.
    int slot;
    // Where it waits.
    jmp_buf point;
};

// A stack runs one thread after another, until one has to wait.
struct Stack {
    ucontext_t start;
    // Where it waits for a thread.
    jmp_buf point;
    std::vector<char> bytes = std::vector<char>(STACK_BYTES);
};

struct Shuffled {
    uint64_t values[2][WARP];
};

std::mutex one_launch_at_a_time;
Thread threads[MOST_THREADS];
std::vector<Stack*> idle_stacks;
Shuffled shuffled[MOST_THREADS / WARP];
jmp_buf scheduler;
// The running thread, and the end of its warp.
unsigned running, end_of_warp;
void (*run_thread)(void** arguments);
// The arguments of the current launch.
void** arguments;

// What the threads of a launch do between their own instructions, without the checks of those.
#define INNER __attribute__((no_sanitize("undefined")))

INNER void run_next(unsigned thread) {
    running = thread;
    if (blockDim.y == 1 && blockDim.z == 1) {
        threadIdx.x = thread;
        return;
    }
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

INNER void wait(State state) {
    Thread& thread = threads[running];
    thread.state = state;
    if (_setjmp(thread.point) == 0) _longjmp(scheduler, 1);
}

// The stack that a thread starts on.
Stack* next_stack;

INNER void run_for_ever() {
    Stack& stack = *next_stack;
    for (;;) {
        run_thread(arguments);
        threads[running].state = DONE;
        if (running + 1 < end_of_warp && threads[running + 1].state == NEW) {
            run_next(running + 1);
            continue;
        }
        idle_stacks.push_back(&stack);
        if (_setjmp(stack.point) == 0) _longjmp(scheduler, 1);
    }
}

INNER void resume(unsigned thread) {
    run_next(thread);
    if (_setjmp(scheduler) != 0) return;
    if (threads[thread].state == READY) _longjmp(threads[thread].point, 1);
    if (!idle_stacks.empty()) {
        Stack* const stack = idle_stacks.back();
        idle_stacks.pop_back();
        _longjmp(stack->point, 1);
    }
    next_stack = new Stack;
    getcontext(&next_stack->start);
    next_stack->start.uc_stack.ss_sp = next_stack->bytes.data();
    next_stack->start.uc_stack.ss_size = next_stack->bytes.size();
    makecontext(&next_stack->start, run_for_ever, 0);
    setcontext(&next_stack->start);
}

INNER bool are_all(unsigned first, unsigned end, State state) {
    for (unsigned thread = first; thread < end; ++thread) {
        if (threads[thread].state != state) return false;
    }
    return true;
}

void set_all(unsigned first, unsigned end, State state) {
    for (unsigned thread = first; thread < end; ++thread) threads[thread].state = state;
}

// Runs a block; returns whether all its threads reached their end. In every other block the last warp goes
// first, so that a missing barrier shows up, whichever warp would have to wait.
INNER bool run_block(unsigned count, bool is_backwards) {
    const unsigned warps = (count + WARP - 1) / WARP;
    for (unsigned thread = 0; thread < count; ++thread) {
        threads[thread].state = NEW;
        threads[thread].slot = 0;
    }
    for (;;) {
        for (unsigned warp = 0; warp < warps; ++warp) {
            const unsigned first = (is_backwards ? warps - 1 - warp : warp) * WARP;
            end_of_warp = min(first + WARP, count);
            do {
                for (unsigned thread = first; thread < end_of_warp; ++thread) {
                    if (threads[thread].state == NEW || threads[thread].state == READY) resume(thread);
                }
                if (end_of_warp - first < WARP || !are_all(first, end_of_warp, WAITS_FOR_WARP)) break;
                set_all(first, end_of_warp, READY);
            } while (true);
        }
        if (are_all(0, count, DONE)) return true;
        if (!are_all(0, count, WAITS_FOR_BLOCK)) return false;
        set_all(0, count, READY);
    }
}

#define LISTED_OF_16_BITS(name) LISTED(name##_bf16), LISTED(name##_f16)
#define LISTED_OF_ALL(name) LISTED_OF_16_BITS(name), LISTED(name##_f32)

const Kernel KERNELS[] = {
    LISTED_OF_16_BITS(norm),
    LISTED_OF_16_BITS(norm_columns),
    LISTED_OF_16_BITS(gather_turned),
    LISTED_OF_16_BITS(activate),
    LISTED_OF_16_BITS(gate),
    LISTED_OF_16_BITS(not_finite),
    LISTED_OF_ALL(add_norm),
    LISTED_OF_ALL(add_bias),
    LISTED_OF_ALL(embed),
    LISTED(gather_rows),
    LISTED(copy_layers),
    LISTED(mean_rows),
};

const Kernel* find(const char* name) {
    for (const Kernel& kernel : KERNELS) {
        if (strcmp(kernel.name, name) == 0) return &kernel;
    }
    return nullptr;
}

}  // namespace

void __syncthreads() { wait(WAITS_FOR_BLOCK); }

INNER uint64_t exchange_bits(unsigned mask, uint64_t bits, int lanes) {
    const unsigned lane = running % WARP;
    Thread& thread = threads[running];
    uint64_t* const values = shuffled[running / WARP].values[thread.slot];
    thread.slot = 1 - thread.slot;
    values[lane] = bits;
    // Masks with fewer lanes are not emulated: such threads never meet, so the launch fails.
    wait(mask == ALL_LANES ? WAITS_FOR_WARP : WAITS_FOR_BLOCK);
    return values[lane ^ lanes];
}

float BfloatFormat::widen(unsigned short bits) { return with_bits_of<float>(static_cast<unsigned>(bits) << 16); }

unsigned short BfloatFormat::round(float value) {
    const unsigned bits = with_bits_of<unsigned>(value);
    if (isnan(value)) return bits >> 16 | 0x40;
    // Adds half of the last place, minus one bit if that place is even, so that a tie rounds to even.
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float HalfFormat::widen(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? ldexpf(fraction, -24)
                                       : ldexpf(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

unsigned short HalfFormat::round(float value) {
    const unsigned short sign = signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (isnan(value)) return sign | 0x7e00;
    // Values of at least half a last place above the largest number become infinite.
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent);
    // Zero and numbers below 2^-14 use the last place of 2^-14.
    if (size < ldexpf(1, -14)) exponent = -13;
    const int places = static_cast<int>(nearbyintf(ldexpf(size, 11 - exponent)));
    // A number that was rounded up to the next power of two carries into the exponent.
    return sign | (places + ((exponent + 13) << 10));
}

// The types of a kernel's arguments, such as "*b f i" for (__nv_bfloat16*, float, int); null if there is no
// such kernel.
extern "C" __global__ const char* signature(const char* name) {
    const Kernel* const kernel = find(name);
    return kernel == nullptr ? nullptr : kernel->signature.c_str();
}

// The kernels of kernels.cu.
KernelTable own_kernels() {
    return {KERNELS, sizeof(KERNELS) / sizeof(KERNELS[0]), __start_emulated_shared,
            static_cast<size_t>(__stop_emulated_shared - __start_emulated_shared)};
}

// Runs a kernel; returns whether all threads reached their end. If not, some waited for each other in vain.
bool run_grid(const KernelTable& table, const Kernel& kernel, Index blocks, Index shape, void** given) {
    const unsigned count = shape.x * shape.y * shape.z;
    run_thread = kernel.run;
    arguments = given;
    gridDim = blocks;
    blockDim = shape;
    threadIdx = {0, 0, 0};
    for (unsigned block = 0; block < blocks.x * blocks.y * blocks.z; ++block) {
        blockIdx = {block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y};
        memset(table.shared, 0xff, table.shared_bytes);
        // Threads that wait in vain keep their stacks.
        if (!run_block(count, block % 2 == 1)) return false;
    }
    return true;
}

// Returns 0 if the kernel ran, 1 if no kernel has this name or the shape is wrong, 2 if threads waited for
// each other in vain.
extern "C" __global__ int launch(const char* name, unsigned blocks, unsigned threads, void** given) {
    const std::lock_guard<std::mutex> lock(one_launch_at_a_time);
    const Kernel* const kernel = find(name);
    if (kernel == nullptr || blocks == 0 || threads == 0 || threads % WARP != 0 || threads > MOST_THREADS) return 1;
    return run_grid(own_kernels(), *kernel, {blocks, 1, 1}, {threads, 1, 1}, given) ? 0 : 2;
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
