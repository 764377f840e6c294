//! Products in the tile registers of AMX: a matrix of 16 × 16 sums for each instruction.
//!
//! Input: a block of rows and a panel of columns as `pack` lays them out, which is how tiles are loaded: 16 words of up to
//! 16 rows, and 16 words of 16 columns. Output: the sums of up to [`ROWS`] × [`COLUMNS`]. What must hold: no other code
//! configures tile registers on a thread that calls [`multiply`]. The C ABI does not promise this: ONNX Runtime configures
//! them on the thread that calls it and does not restore them, which is why [`HostModules`](crate::HostModules) computes in
//! float32, without AMX. Linux keeps them when it switches threads.
//!
//! The instructions are written out, because Rust's stable library has none for them yet. Those of bfloat16 take values
//! below the smallest normal number for zero, and add up even and odd values of 16 words before they add them to a sum.

use super::{
    pack::Format,
    tile::{COLUMNS, WORDS},
};
use std::{
    arch::{
        asm,
        x86_64::{__cpuid_count, _xgetbv},
    },
    cell::Cell,
    sync::LazyLock,
};

/// Rows and columns of a tile of sums.
const TILE: usize = 16;
/// Rows of two tiles: each value of a column that is loaded meets both.
pub(super) const ROWS: usize = 2 * TILE;
/// Bytes of a tile's row: the most there are.
const ROW_BYTES: u16 = 64;
/// The state component of tile registers, in the numbering of XSAVE.
const TILE_DATA: u64 = 18;

const _: () = assert!(COLUMNS == 2 * TILE && WORDS * size_of::<u32>() == ROW_BYTES as usize);

/// Whether the CPU multiplies bytes and bfloat16 in tiles, and the system lets this process.
pub(super) fn usable() -> bool {
    static USABLE: LazyLock<bool> = LazyLock::new(|| {
        let (bf16, tile, int8) = (1 << 22, 1 << 24, 1 << 25);
        let needed = bf16 | tile | int8;
        // The data and, before it, the configuration.
        let saved = 0b11 << (TILE_DATA - 1);
        // What has AVX-512 has leaf 7 of `cpuid`.
        is_x86_feature_detected!("avx512f")
            && __cpuid_count(7, 0).edx & needed == needed
            // SAFETY: `avx512f` is only detected by what `xgetbv` says.
            && unsafe { saved_state() } & saved == saved
            && permitted()
    });
    *USABLE
}

/// The state components that the system saves when it switches threads.
#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: register 0 is there wherever the instruction is.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for the memory that tile registers take in each thread; without its leave, their first use ends the process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const REQUEST_PERMISSION: libc::c_ulong = 0x1023;
    // SAFETY: the call takes numbers only, and changes nothing but what this process may do.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

/// Elsewhere nobody has tried.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The registers that hold something of the second 16 rows: their sums, and the rows themselves.
const OF_SECOND_ROWS: [usize; 3] = [2, 3, 5];
/// The registers that hold columns.
const OF_COLUMNS: [usize; 2] = [6, 7];

impl Configuration {
    /// For blocks of `rows` rows, at most [`ROWS`]. Registers that these do not need have no shape.
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
    /// For how many rows this thread's registers are configured; 0 before they are.
    static CONFIGURED: Cell<usize> = const { Cell::new(0) };
}

/// Configures this thread's registers for blocks of `rows` rows, unless they are: that takes longer than the products of a
/// chunk, and the blocks of a product are equally high but for the last.
///
/// # Safety
///
/// [`usable`]; `rows` is from 1 to [`ROWS`].
#[inline(always)]
unsafe fn configure(rows: usize) {
    CONFIGURED.with(|configured| {
        if configured.replace(rows) != rows {
            let configuration = Configuration::new(rows);
            // SAFETY: the caller vouches for the instructions; the configuration is a valid one (palette 1, reserved bytes
            // zero, at most 16 rows of 64 bytes, no bytes where there are no rows), and nothing else needs what was in the
            // registers.
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

/// Defines a function that multiplies with the instruction `$multiply`.
macro_rules! product {
    ($name:ident, $multiply:literal) => {
        /// # Safety
        ///
        /// As of [`multiply`], for registers configured for `rows` rows.
        unsafe fn $name(
            rows: usize,
            chunks: usize,
            a: *const u32,
            b: *const u32,
            (start, stride): (*const f32, usize),
            to: *mut f32,
        ) {
            // SAFETY: the caller vouches for the memory. Sums are in registers 0 and 1, those of the second rows in 2 and 3,
            // rows in 4 and 5, columns in 6 and 7. Their shapes keep loads and stores to `rows` rows: 0, 1 and 4 have
            // `min(rows, 16)`, and 2, 3 and 5, which are used only above 16, have `rows - 16`. Without a stride each load reads
            // the same 64 bytes. Memory and flags are written, so neither is an option; nothing is pushed.
            unsafe {
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
                    // A line of columns is as long as one of sums.
                    b_line = in(reg) COLUMNS * size_of::<u32>(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

product!(bf16, "tdpbf16ps");
product!(int8, "tdpbusd");

/// The sums of one tile, [`COLUMNS`] for each row, to `to`. Both operands are of `format`, bytes or bfloat16.
///
/// # Safety
///
/// [`usable`]; `rows` is from 1 to [`ROWS`]; `a` holds `chunks` chunks of `rows` rows, `b` as many of a panel, `to` has
/// room for the sums, and `start`, a place and the values from one row's to the next one's, holds what they start from.
pub(super) unsafe fn multiply(
    format: Format,
    (rows, chunks): (usize, usize),
    (a, b): (*const u32, *const u32),
    start: (*const f32, usize),
    to: *mut f32,
) {
    debug_assert!(format != Format::F32);
    // SAFETY: passed on to the caller.
    unsafe {
        configure(rows);
        match format {
            Format::Int8 => int8(rows, chunks, a, b, start, to),
            _ => bf16(rows, chunks, a, b, start, to),
        }
    }
}

/// Defines a function that runs a number of steps of twelve products `$multiply`, on registers that it does not load.
#[cfg(feature = "benchmarks")]
macro_rules! chains {
    ($name:ident, $multiply:literal) => {
        /// # Safety
        ///
        /// [`usable`]; there is a step.
        pub(super) unsafe fn $name(steps: usize) {
            // SAFETY: the caller vouches for the instructions; all registers have a shape.
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

#[cfg(feature = "benchmarks")]
chains!(bf16_chains, "tdpbf16ps");
#[cfg(feature = "benchmarks")]
chains!(int8_chains, "tdpbusd");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_laid_out_as_the_instruction_reads_them() {
        for (rows, first, second) in [(1, 1, 0), (16, 16, 0), (17, 16, 1), (32, 16, 16)] {
            // SAFETY: the structure is exactly 64 bytes, all of them written.
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
