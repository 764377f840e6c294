// The memory of the emulated GPU, the order of its streams, and its faults.
//
// What must hold: an address is given out once. Memory that is not written holds bytes of 0xff, which is NaN in
// every type. The 16 bytes that contain an allocation's end are followed by a page that must not be touched, and
// freed memory must not be touched either. Two streams may share memory only if the first one was waited for.
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <set>

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    ASSERT = 710,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
};

typedef uint64_t Address;
typedef uint64_t Stream;

namespace {

constexpr size_t PAGE = 4096, ARENA_BYTES = size_t(1) << 42, DEFAULT_BYTES = size_t(1) << 33;
constexpr Stream PER_THREAD = 2;

// The error after which the device computes nothing more. Every call returns it.
int fault = SUCCESS;
// What went wrong last, for tests.
char finding[400] = "";

int fail(int code, const char* format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(finding, sizeof(finding), format, values);
    va_end(values);
    fprintf(stderr, "emulated GPU: %s\n", finding);
    return code;
}

// The same for errors that a device reports later, and for mistakes that it would not report at all.
template <class... A>
int lose_device(int code, const char* format, A... values) {
    return fault = fail(code, format, values...);
}

struct Allocation {
    size_t bytes;
    // The part of the pool that it takes.
    size_t block;
    // The first page, and the number of accessible bytes from there on.
    char* pages;
    size_t mapped;
    Stream user;
    uint64_t used;
};

// While it is set, nothing is computed: for counts of passes at real sizes.
bool is_dry = false;

char* arena = nullptr;
size_t arena_used = 0;
std::map<Address, Allocation> allocations;
// The pool: its size, the sizes of its free blocks, and the size that it keeps when a stream was waited for.
size_t capacity = DEFAULT_BYTES, reserved = 0;
uint64_t threshold = 0;
std::multiset<size_t> free_blocks;
// The number of the last operation, and the last one of each stream that was waited for.
uint64_t now = 0;
std::map<Stream, uint64_t> completed;

// Each thread has its own stream behind the name PER_THREAD.
Stream own_stream(Stream stream) {
    return stream == PER_THREAD ? (Stream(1) << 63 | syscall(SYS_gettid)) : stream;
}

void trim(size_t kept) {
    while (!free_blocks.empty() && reserved > kept) {
        reserved -= *free_blocks.begin();
        free_blocks.erase(free_blocks.begin());
    }
}

void wait_for(Stream stream) {
    completed[own_stream(stream)] = now;
    trim(threshold);
}

// Takes a block of the pool: a free one of this size to twice this size, or a new one. A free block is neither
// split nor joined with others, so this pool is more fragmented than a real one.
size_t take_block(size_t bytes) {
    const size_t wanted = (bytes + 511) / 512 * 512;
    const auto block = free_blocks.lower_bound(wanted);
    if (block != free_blocks.end() && *block <= 2 * wanted) {
        const size_t size = *block;
        free_blocks.erase(block);
        return size;
    }
    if (reserved + wanted > capacity) return 0;
    reserved += wanted;
    return wanted;
}

int allocate(Address* address, size_t bytes, Stream stream) {
    if (bytes == 0) return fail(INVALID_VALUE, "an allocation of no bytes");
    const size_t block = take_block(bytes);
    if (block == 0) return OUT_OF_MEMORY;
    if (arena == nullptr) {
        void* all = mmap(nullptr, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) return fail(OUT_OF_MEMORY, "the system reserves no addresses");
        arena = static_cast<char*>(all);
    }
    const size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    char* const pages = arena + arena_used + PAGE;
    arena_used += mapped + 2 * PAGE;
    if (arena_used > ARENA_BYTES || mprotect(pages, mapped, PROT_READ | PROT_WRITE) != 0) {
        return fail(OUT_OF_MEMORY, "the system gives no memory");
    }
    memset(pages, 0xff, mapped);
    char* const first = pages + mapped - (bytes + 15) / 16 * 16;
    // Answers of nothing are zeros, because NaN would be refused.
    if (is_dry) memset(first, 0, bytes);
    *address = reinterpret_cast<Address>(first);
    allocations[*address] = {bytes, block, pages, mapped, own_stream(stream), ++now};
    return SUCCESS;
}

bool is_untouched(const char* first, const char* end) {
    for (; first < end; ++first) {
        if (*first != '\xff') return false;
    }
    return true;
}

// The allocation that holds these bytes, used in this stream from now on. If there is none, or if another
// stream may still use it, that is written to `finding`, and the result is null.
Allocation* use(const char* what, Address address, size_t bytes, Stream stream) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin() || (--next, address + bytes > next->first + next->second.bytes)) {
        fail(ILLEGAL_ADDRESS, "%s: %zu bytes at %lx are not in an allocation", what, bytes, address);
        return nullptr;
    }
    Allocation& found = next->second;
    const Stream user = own_stream(stream);
    if (found.user != user && found.used > completed[found.user]) {
        fail(ILLEGAL_ADDRESS, "%s: memory that another stream may still use", what);
        return nullptr;
    }
    found.user = user;
    found.used = ++now;
    return &found;
}

int release(Address address, Stream stream) {
    Allocation* const found = use("a free", address, 0, stream);
    if (found == nullptr) return INVALID_VALUE;
    if (allocations.find(address) == allocations.end()) {
        return fail(INVALID_VALUE, "a free of %lx, which is not the start of an allocation", address);
    }
    const char* const first = reinterpret_cast<const char*>(address);
    if (!is_untouched(found->pages, first) || !is_untouched(first + found->bytes, found->pages + found->mapped)) {
        return lose_device(ILLEGAL_ADDRESS, "bytes next to an allocation of %zu bytes were written", found->bytes);
    }
    madvise(found->pages, found->mapped, MADV_DONTNEED);
    mprotect(found->pages, found->mapped, PROT_NONE);
    free_blocks.insert(found->block);
    allocations.erase(address);
    return SUCCESS;
}

bool is_on_device(const void* address) {
    const char* const byte = static_cast<const char*>(address);
    return arena != nullptr && byte >= arena && byte < arena + ARENA_BYTES;
}

}  // namespace
