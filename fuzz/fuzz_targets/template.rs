#![no_main]

libfuzzer_sys::fuzz_target!(
    // libFuzzer's hook ends the process at each panic, also at those that the server's threads survive.
    // A panic without a handler still ends it.
    init: drop(std::panic::take_hook()),
    |data: &[u8]| text_embeddings_fuzz::template(data)
);
