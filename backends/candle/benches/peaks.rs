//! What the machine can do at most; see the function it calls.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    text_embeddings_backend_candle::benchmarks::machine::print_peaks()
}
