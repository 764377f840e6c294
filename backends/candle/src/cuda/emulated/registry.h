// The list of the kernels that a library has, with the types of their arguments.
#pragma once

#include <string>
#include <utility>

#include "emulated.h"

struct Kernel {
    const char* name;
    // Runs one thread with arguments in the driver's form.
    void (*run)(void** arguments);
    // A word for each argument, such as "*b f i" for (__nv_bfloat16*, float, int).
    std::string signature;
};

// The kernels of one module, and the shared memory of their blocks.
struct KernelTable {
    const Kernel* first;
    size_t count;
    char* shared;
    size_t shared_bytes;
};

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(arguments[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>{});
}

// 'i' int, 'u' unsigned, 'f' float, 'c' char, 'b' bfloat16, 'h' float16; other types by their size.
template <class T>
std::string letter() {
    using U = std::remove_cv_t<T>;
    if (std::is_same_v<U, int>) return "i";
    if (std::is_same_v<U, unsigned>) return "u";
    if (std::is_same_v<U, float>) return "f";
    if (std::is_same_v<U, char>) return "c";
    if (std::is_same_v<U, __nv_bfloat16>) return "b";
    if (std::is_same_v<U, __half>) return "h";
    return std::to_string(sizeof(U));
}
template <class T>
std::string word() {
    if constexpr (std::is_pointer_v<T>) return "*" + letter<std::remove_pointer_t<T>>();
    return letter<T>();
}
template <class... A>
std::string signature_of(void (*)(A...)) {
    std::string words;
    ((words += (words.empty() ? "" : " ") + word<A>()), ...);
    return words;
}

#define LISTED(name) Kernel{#name, [](void** arguments) { call(name, arguments); }, signature_of(name)}
