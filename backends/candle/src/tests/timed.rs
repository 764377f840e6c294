//! The timed operations do not change any answer, and their counts follow from the shapes.

use super::{random_model::*, *};
use crate::cpu::timed::{ATTENTION, Log};

#[test]
fn a_clock_changes_nothing_and_counts_what_a_forward_pass_must_do() {
    let mut rng = StdRng::seed_from_u64(41);
    let model = RandomModel::new(42, "model.", candle_core::DType::BF16);
    let options = model.options(Head::answers(AnswerTokens::difference(1, Some(2))));
    let size = |name: &str| model.config[name].as_u64().unwrap() as usize;
    let head = size("head_dim");
    let (queries, keys) = (size("num_attention_heads") * head, size("num_key_value_heads") * head);
    let rest = queries * HIDDEN + queries * HIDDEN + 3 * size("intermediate_size") * HIDDEN;
    for dtype in [DType::Float32, DType::BFloat16, DType::Int8] {
        let start = || CpuOperations::start(2, InstructionSet::best(), dtype).unwrap();
        let log = Log::default();
        let mut timed = load_on(start().timed(log.clone()), &options).unwrap();
        let mut plain = load_on(start(), &options).unwrap();
        for _ in 0..20 {
            let texts: Vec<Vec<u32>> = (0..rng.random_range(1..5))
                .map(|_| (0..rng.random_range(1..40)).map(|_| rng.random_range(0..3)).collect())
                .collect();
            log.lock().unwrap().clear();
            let answers = predict(&mut *timed, batch(BatchBuilder::new(Packing::SHARED), &texts));
            assert_eq!(answers, predict(&mut *plain, batch(BatchBuilder::new(Packing::SHARED), &texts)));
            let beginnings = |from: usize, text: &[u32]| -> Vec<Vec<u32>> {
                (from..=text.len()).map(|length| text[..length].to_vec()).collect()
            };
            let mut all: Vec<_> = texts.iter().flat_map(|text| beginnings(1, text)).collect();
            let mut last: Vec<_> = texts.iter().flat_map(|text| beginnings(text.len(), text)).collect();
            for rows in [&mut all, &mut last] {
                rows.sort();
                rows.dedup();
            }
            let log = log.lock().unwrap();
            let sum = |is_counted: &dyn Fn(&str) -> bool| -> usize {
                log.iter().filter(|(kind, _)| is_counted(kind.name)).map(|(_, cost)| cost.operations).sum()
            };
            let products = all.len() * (2 * HIDDEN * keys + rest) + all.len() * 2 * HIDDEN * keys;
            assert_eq!(sum(&|name| name.contains("product")), 2 * (products + last.len() * rest));
            let seen = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).sum::<usize>();
            assert_eq!(sum(&|name| name == ATTENTION), 4 * queries * (seen(&all) + seen(&last)));
            assert!(log.iter().all(|(_, cost)| cost.calls == 1 && cost.bytes > 0 && cost.seconds >= 0.0));
        }
    }
}
