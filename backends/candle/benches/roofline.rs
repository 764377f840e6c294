//! Where the time of a forward pass goes; see the module it calls.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    text_embeddings_backend_candle::benchmarks::roofline::run()
}
