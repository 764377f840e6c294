#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| text_embeddings_router::fuzz_request(data));
