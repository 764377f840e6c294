//! Products in the tile registers of AMX. Each instruction adds to a matrix of 16 × 16 sums.
//!
//! Input: a block of rows and a panel of columns in the layout of `pack`, which tiles are loaded from: 16
//! words of up to 16 rows, and 16 words of 16 columns. Output: the sums of up to [`ROWS`] × [`COLUMNS`]. What
//! must hold: no other code configures tile registers on a thread that calls [`multiply_bf16`]. The C ABI
//! does not promise this: ONNX Runtime configures them on its caller's thread and does not restore them. That
//! is why heads of ONNX models are computed by the plain loops of `backends/host`. Linux saves them when it
//! switches threads.
//!
//! The instructions are written as assembly, because stable Rust has no functions for them yet. The bfloat16
//! instruction flushes subnormal values to zero, and adds the even and the odd values of 16 words separately
//! before it adds both to a sum.

use super::layout::{COLUMNS, Origin, WORDS};
use std::{
    arch::{
        asm,
        x86_64::{__cpuid_count, _xgetbv},
    },
    cell::Cell,
    sync::LazyLock,
};

/// The number of rows, and of columns, of a tile of sums.
const TILE: usize = 16;
/// The rows of two tiles. Each loaded column is used for both.
pub(super) const ROWS: usize = 2 * TILE;
/// The bytes of a tile's row: the largest possible number.
const ROW_BYTES: u16 = 64;
/// The number of the tile registers' state component in XSAVE.
const TILE_DATA: u64 = 18;

const _: () = assert!(COLUMNS == 2 * TILE && WORDS * size_of::<u32>() == ROW_BYTES as usize);

/// Whether the CPU multiplies bytes and bfloat16 in tiles, and the system permits it for this process.
pub(super) fn usable() -> bool {
    static USABLE: LazyLock<bool> = LazyLock::new(|| {
        let (bf16, tile, int8) = (1 << 22, 1 << 24, 1 << 25);
        let needed = bf16 | tile | int8;
        // The component of the data, and before it the one of the configuration.
        let saved = 0b11 << (TILE_DATA - 1);
        // Every CPU with AVX-512 has leaf 7 of `cpuid`.
        is_x86_feature_detected!("avx512f")
            && __cpuid_count(7, 0).edx & needed == needed
            // SAFETY: `avx512f` is only detected with the help of `xgetbv`, so the CPU has it.
            && unsafe { saved_state() } & saved == saved
            && permitted()
    });
    *USABLE
}

/// The state components that the system saves when it switches threads.
#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: register 0 exists on every CPU with the instruction.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for permission to use the memory that tile registers take in each thread. Without it, their
/// first use ends the process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const REQUEST_PERMISSION: libc::c_ulong = 0x1023;
    // SAFETY: the call takes only numbers, and only changes this process's permissions.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

/// Not tried on other systems.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the tile registers, in the layout that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The registers for the second 16 rows: two with their sums, and one with the rows.
const OF_SECOND_ROWS: [usize; 3] = [2, 3, 5];
/// The registers for columns.
const OF_COLUMNS: [usize; 2] = [6, 7];

impl Configuration {
    /// The configuration for blocks of `rows` rows, at most [`ROWS`]. Unneeded registers have no shape.
    fn new(rows: usize) -> Self {
        let mut new = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for register in 0..8 {
            let rows = match register {
                _ if OF_COLUMNS.contains(&register) => WORDS,
                _ if OF_SECOND_ROWS.contains(&register) => rows.saturating_sub(TILE),
                _ => rows.min(TILE),
            };
            new.rows[register] = rows as u8;
            new.row_bytes[register] = if rows > 0 { ROW_BYTES } else { 0 };
        }
        new
    }
}

thread_local! {
    /// The number of rows for which this thread's registers are configured; 0 before the first configuration.
    static CONFIGURED: Cell<usize> = const { Cell::new(0) };
}

/// Configures this thread's registers for blocks of `rows` rows, unless they are already. It takes longer
/// than the products of a chunk, and all blocks of a product but the last have the same height.
///
/// # Safety
///
/// [`usable`] is true; `rows` is from 1 to [`ROWS`].
#[inline(always)]
unsafe fn configure(rows: usize) {
    CONFIGURED.with(|configured| {
        if configured.replace(rows) != rows {
            let configuration = Configuration::new(rows);
            // SAFETY: the caller guarantees the instructions. The configuration is valid (palette 1, reserved
            // bytes zero, at most 16 rows of 64 bytes, no bytes for registers without rows), and no other
            // code needs the registers' former content.
            unsafe {
                asm!(
                    "ldtilecfg [{}]", in(reg) &raw const configuration,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    });
}

/// A tile's body with the arguments `(rows, chunks, a, b, start, sums)`.
///
/// # Safety
///
/// [`usable`] is true; `rows` is from 1 to [`ROWS`]; `a` holds `chunks` chunks of `rows` rows, `b` as many of
/// a panel; `sums` has memory for the sums; `rows` rows can be read from `start` on.
pub(super) type AmxFunction = unsafe fn(usize, usize, *const u32, *const u32, Origin, *mut f32);

/// Defines a function that writes the sums of one tile, [`COLUMNS`] for each row, to `to`, by the instruction
/// `$multiply`.
macro_rules! product {
    ($name:ident, $multiply:literal) => {
        /// # Safety
        ///
        /// As [`AmxFunction`].
        pub(super) unsafe fn $name(
            rows: usize,
            chunks: usize,
            a: *const u32,
            b: *const u32,
            Origin { first: start, stride }: Origin,
            to: *mut f32,
        ) {
            // SAFETY: the caller guarantees the memory. Registers 0 and 1 hold sums, 2 and 3 the sums of the
            // second rows, 4 and 5 rows, 6 and 7 columns. Their shapes limit loads and stores to `rows` rows:
            // 0, 1 and 4 have `min(rows, 16)`, and 2, 3 and 5, which are only used above 16, have `rows -
            // 16`. Without a stride, each load reads the same 64 bytes. The code writes memory and flags, so
            // the options `nomem` and `preserves_flags` do not apply. It does not use the stack (`nostack`).
            unsafe {
                configure(rows);
                asm!(
                    "tileloadd tmm0, [{start} + {start_line}]",
                    "tileloadd tmm1, [{start} + {start_line} + 64]",
                    "cmp {rows}, 16",
                    "jbe 2f",
                    "tileloadd tmm2, [{second_start} + {start_line}]",
                    "tileloadd tmm3, [{second_start} + {start_line} + 64]",
                    "2:",
                    "test {chunks}, {chunks}",
                    "jz 5f",
                    "3:",
                    "tileloadd tmm6, [{b} + {b_line}]",
                    "tileloadd tmm7, [{b} + {b_line} + 64]",
                    "tileloadd tmm4, [{a} + {a_line}]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "cmp {rows}, 16",
                    "jbe 4f",
                    "tileloadd tmm5, [{a} + {a_line} + 16 * 64]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "4:",
                    "add {a}, {a_chunk}",
                    "add {b}, 16 * 128",
                    "dec {chunks}",
                    "jnz 3b",
                    "5:",
                    "tilestored [{to} + {b_line}], tmm0",
                    "tilestored [{to} + {b_line} + 64], tmm1",
                    "cmp {rows}, 16",
                    "jbe 6f",
                    "tilestored [{to} + {b_line} + 16 * 128], tmm2",
                    "tilestored [{to} + {b_line} + 16 * 128 + 64], tmm3",
                    "6:",
                    rows = in(reg) rows,
                    chunks = inout(reg) chunks => _,
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    start = in(reg) start,
                    second_start = in(reg) start.wrapping_add(TILE * stride),
                    start_line = in(reg) stride * size_of::<f32>(),
                    to = in(reg) to,
                    a_chunk = in(reg) rows * WORDS * size_of::<u32>(),
                    a_line = in(reg) WORDS * size_of::<u32>(),
                    // A line of columns is as long as a line of sums.
                    b_line = in(reg) COLUMNS * size_of::<u32>(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

product!(multiply_bf16, "tdpbf16ps");
product!(multiply_bytes, "tdpbusd");

/// Defines a function that runs steps of twelve products `$multiply`, on registers that it does not load.
macro_rules! chains {
    ($name:ident, $multiply:literal) => {
        /// # Safety
        ///
        /// [`usable`] is true; there is at least one step.
        pub(super) unsafe fn $name(steps: usize) {
            // SAFETY: the caller guarantees the instructions; all registers have a shape.
            unsafe {
                configure(ROWS);
                asm!(
                    "2:",
                    ".rept 3",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    ".endr",
                    "dec {steps}",
                    "jnz 2b",
                    steps = inout(reg) steps => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, nomem),
                );
            }
        }
    };
}

chains!(bf16_chains, "tdpbf16ps");
chains!(int8_chains, "tdpbusd");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_laid_out_as_the_instruction_reads_them() {
        for (rows, first, second) in [(1, 1, 0), (16, 16, 0), (17, 16, 1), (32, 16, 16)] {
            // SAFETY: the structure has exactly 64 bytes, and all of them are initialised.
            let bytes: [u8; 64] = unsafe { std::mem::transmute(Configuration::new(rows)) };
            let mut expected = [0; 64];
            expected[0] = 1;
            for (register, rows) in
                [first, first, second, second, first, second, 16, 16].into_iter().enumerate()
            {
                expected[16 + 2 * register] = if rows > 0 { 64 } else { 0 };
                expected[48 + register] = rows;
            }
            assert_eq!(bytes, expected, "{rows} rows");
        }
    }
}
