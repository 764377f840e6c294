//! The program, which the library is.

use std::process::ExitCode;

fn main() -> ExitCode {
    text_embeddings_router::main()
}
