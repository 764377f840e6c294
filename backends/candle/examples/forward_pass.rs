//! A forward pass of a small model over a fixed batch, on one thread. `scripts/instruction_counts.py` counts
//! its instructions.
//!
//! Input: a model folder with one `model.safetensors`, a `dtype` and an instruction set. Output: nothing,
//! unless something fails. What must hold: the same instructions run in [`counted`] each time, whatever else
//! the machine does.

use std::{error::Error, fs, path::Path};
use text_embeddings_backend_candle::load;
use text_embeddings_backend_core::{
    AnswerTokens, Backend, BackendError, Batch, BatchBuilder, DType, Head, LoadOptions, Packing, Text, Wanted,
};

/// The part that is counted. It is a function of its own, because the counter finds it by its name.
#[inline(never)]
fn counted(backend: &mut dyn Backend, batch: &Batch) -> Result<(), BackendError> {
    backend.predict(batch).map(|_| ())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, dtype, instruction_set] = &arguments[..] else {
        return Err("usage: forward_pass MODEL_FOLDER DTYPE INSTRUCTION_SET".into());
    };
    let folder = Path::new(folder);
    let dtype = DType::ALL.into_iter().find(|known| known.to_string() == *dtype).ok_or("unknown dtype")?;
    let config: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let vocabulary = config["vocab_size"].as_u64().ok_or("config.json: no vocab_size")?;
    let mut loaded = load(&LoadOptions {
        dtype: Some(dtype),
        instruction_set: Some(instruction_set.clone()),
        ..LoadOptions::new(
            config,
            vec![folder.join("model.safetensors").into()],
            Head::answers(AnswerTokens::difference(1, Some(2))),
        )
    })?;
    let batch = batch(loaded.backend.packing(), u32::try_from(vocabulary)?);
    // The first pass fills buffers that later passes reuse.
    loaded.backend.predict(&batch)?;
    counted(loaded.backend.as_mut(), &batch)?;
    Ok(())
}

/// Six texts of odd lengths that have 61 tokens in common.
fn batch(packing: Packing, vocabulary: u32) -> Batch {
    let mut state = 7_u32;
    let mut ids = |count: usize| -> Vec<u32> {
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % vocabulary
        };
        (0..count).map(next).collect()
    };
    let common = ids(61);
    let mut builder = BatchBuilder::new(packing);
    for length in [1, 30, 45, 64, 77, 131] {
        builder.push(&Text::new([&common[..], &ids(length)].concat(), Wanted::WHOLE));
    }
    builder.build()
}
