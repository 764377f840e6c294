// The kernels of one of candle's files, SOURCE, as a library of its own. NAMES is a file that lists them.
#include <float.h>

#include "registry.h"
#include SOURCE

extern char __start_emulated_shared[] __attribute__((weak)), __stop_emulated_shared[] __attribute__((weak));

static const Kernel KERNELS[] = {
#include NAMES
};

extern "C" __global__ const KernelTable kernel_table;
const KernelTable kernel_table = {KERNELS, sizeof(KERNELS) / sizeof(KERNELS[0]), __start_emulated_shared,
                                  static_cast<size_t>(__stop_emulated_shared - __start_emulated_shared)};
