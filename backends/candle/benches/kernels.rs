//! The speed of each kernel; see the module that it calls.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    text_embeddings_backend_candle::benchmarks::run()
}
