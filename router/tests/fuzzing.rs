//! The functions of the fuzz targets on changed seeds, with stable Rust.
#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a failed test should stop here, and say with what"
)]

use std::path::Path;

#[expect(unreachable_pub, reason = "elsewhere it is a library")]
#[path = "../../fuzz/src/lib.rs"]
mod bodies;
#[expect(unreachable_pub, reason = "it has several users")]
#[path = "../../fuzz/src/seeded.rs"]
mod seeded;

fn run(name: &str, count: usize, target: impl Fn(&[u8])) {
    seeded::run(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), name, count, target);
}

#[test]
fn templates() {
    run("template", 150, bodies::template);
}

#[test]
fn tokenizers() {
    run("tokenizer", 150, bodies::tokenizer);
}

#[test]
fn folders() {
    run("folder", 200, bodies::folder);
}

#[test]
fn weights() {
    run("weights", 200, bodies::weights);
}

#[test]
fn onnx_files() {
    run("onnx", 3000, bodies::onnx);
}

#[test]
fn pickles() {
    run("pickle", 2000, bodies::pickle);
}

#[test]
fn gguf_files() {
    run("gguf", 400, bodies::gguf);
}

#[test]
fn configurations() {
    run("configuration", 3000, bodies::configuration);
}

#[test]
fn truncation() {
    run("truncation", 300, bodies::truncation);
}

#[test]
fn forests() {
    run("forest", 3000, bodies::forest);
}
