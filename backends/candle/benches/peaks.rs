//! The machine's peaks; see the function that it calls.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    text_embeddings_backend_candle::benchmarks::machine::print_peaks()
}
