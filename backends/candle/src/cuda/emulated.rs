//! The kernels of `kernels.cu`, compiled for the CPU by the machine's C++ compiler: for tests without a GPU.
//!
//! Input: a kernel's name, blocks, threads, arguments. Output: the memory that the arguments point to. What
//! must hold: each launch has the arguments of its kernel, in number and kind. Undefined behaviour in a
//! kernel, such as a misaligned wide access, ends the test's process with an illegal instruction.
#![expect(unsafe_code, reason = "kernels are C functions")]
#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a failed test should stop here, and one that is skipped should say so"
)]

use super::accelerator::Word;
use crate::tests::crate_folder;
use libloading::Library;
use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    io::ErrorKind,
    process::Command,
    sync::OnceLock,
};

/// Undefined behaviour traps, because no runtime library is linked that could report it.
const FLAGS: [&str; 12] = [
    "-std=c++17",
    "-O2",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE",
    "-Wno-unknown-pragmas",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
    "-Wl,-Bsymbolic",
];

/// The compiled kernels.
pub(crate) struct Kernels {
    launch: unsafe extern "C" fn(*const c_char, c_uint, c_uint, *mut *mut c_void) -> c_int,
    signature: unsafe extern "C" fn(*const c_char) -> *const c_char,
    reserve: unsafe extern "C" fn(usize) -> *mut u8,
    release: unsafe extern "C" fn(*mut u8, usize),
    /// Contains the functions above.
    _library: Library,
}

/// The kernels, compiled at the first call; `None`, with a message, on a machine without a C++ compiler.
pub(crate) fn kernels() -> Option<&'static Kernels> {
    static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
    KERNELS.get_or_init(compile).as_ref()
}

fn compile() -> Option<Kernels> {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("kernels.so");
    let sources = crate_folder().join("src/cuda/emulated");
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut command = Command::new(&compiler);
    command.args(FLAGS).arg("-I").arg(&sources).arg(sources.join("emulated.cpp")).arg("-o").arg(&library);
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: needs a C++ compiler: c++ or the one that CXX names");
            return None;
        }
        Err(error) => panic!("{compiler}: {error}"),
        Ok(output) => {
            assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    // SAFETY: loading the library runs only constructors of empty vectors; the functions have these types in
    // `emulated.cpp`, and the library lives as long as they do.
    unsafe {
        let library = Library::new(&library).unwrap();
        let launch = *library.get(b"launch\0").unwrap();
        let signature = *library.get(b"signature\0").unwrap();
        let reserve = *library.get(b"reserve\0").unwrap();
        let release = *library.get(b"release\0").unwrap();
        Some(Kernels { launch, signature, reserve, release, _library: library })
    }
}

/// Bytes that begin at a multiple of 16. After them and up to 15 more bytes comes memory that must not be
/// touched.
pub(crate) struct Guarded {
    release: unsafe extern "C" fn(*mut u8, usize),
    first: *mut u8,
    count: usize,
}

impl Guarded {
    /// Memory with these bytes.
    pub(crate) fn new(kernels: &Kernels, bytes: &[u8]) -> Self {
        // SAFETY: `reserve` takes any number, and its memory has room for as many bytes.
        let first = unsafe {
            let first = (kernels.reserve)(bytes.len());
            assert!(!first.is_null(), "no memory of {} bytes", bytes.len());
            first.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            first
        };
        Self { release: kernels.release, first, count: bytes.len() }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has as many bytes, and no kernel runs while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `reserve` returned this memory for the same number of bytes, nothing else refers to it, and
        // the library is never unloaded.
        unsafe { (self.release)(self.first, self.count) };
    }
}

impl Kernels {
    /// The types of a kernel's arguments, as `emulated.cpp` spells them: `["*b", "f", "i"]`.
    pub(crate) fn signature(&self, name: &str) -> Vec<&str> {
        let c_name = CString::new(name).unwrap();
        // SAFETY: the name is a C string, and the answer is a C string that lives as long as the library.
        let words = unsafe {
            let words = (self.signature)(c_name.as_ptr());
            assert!(!words.is_null(), "there is no kernel {name}");
            CStr::from_ptr(words)
        };
        words.to_str().unwrap().split(' ').collect()
    }

    /// Runs a kernel.
    pub(crate) fn launch(&self, name: &str, blocks: usize, threads: usize, words: &[Word]) {
        let signature = self.signature(name);
        assert_eq!(signature.len(), words.len(), "{name} takes {signature:?}, not {words:?}");
        for (position, (wanted, word)) in signature.iter().zip(words).enumerate() {
            let fits = match word {
                Word::Address(_) => wanted.starts_with('*'),
                Word::Int(_) => *wanted == "i",
                Word::Float(_) => *wanted == "f",
            };
            assert!(fits, "argument {position} of {name} is {wanted}, not {word:?}");
        }
        let mut pointers: Vec<*mut c_void> = words.iter().map(Word::value_pointer).collect();
        let c_name = CString::new(name).unwrap();
        // SAFETY: the arguments have the kernel's kinds and are only read; the caller guarantees the memory
        // that they point to.
        let result = unsafe {
            (self.launch)(c_name.as_ptr(), blocks as c_uint, threads as c_uint, pointers.as_mut_ptr())
        };
        match result {
            0 => {}
            1 => panic!("{name}: {blocks} blocks of {threads} threads"),
            _ => panic!("{name}, {blocks} blocks of {threads} threads: some wait for others that never come"),
        }
    }
}
