//! The time of each operation in a forward pass; see the module that it calls.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    text_embeddings_backend_candle::benchmarks::roofline::run()
}
