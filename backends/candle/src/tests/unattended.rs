//! Tests of tokens to which no token attends: on every implementation of attention they see the text's other
//! tokens only, and change no other state. `integration_tests/test_late_interaction.py` holds their values.

use super::*;

fn options(name: &str) -> LoadOptions {
    let folder = fixtures().join("late").join(name);
    LoadOptions {
        dtype: Some(DType::Float32),
        threads: 2,
        ..LoadOptions::new(
            json(&format!("late/{name}/config.json")),
            vec![folder.join("model.safetensors").into()],
            Head { whole: None, tokens: Some(TokenHead::Modules(Vec::new())), sparse: None },
        )
    }
}

fn states(backend: &mut dyn Backend, texts: &[Text]) -> Vec<Vec<f32>> {
    let mut builder = BatchBuilder::new(backend.packing());
    for text in texts {
        builder.push(text);
    }
    let outputs = backend.predict(&builder.build()).unwrap().texts;
    outputs.into_iter().map(|output| output.tokens.values).collect()
}

#[test]
fn unattended_tokens_see_the_text_and_nothing_sees_them() {
    const WIDTH: usize = 24;
    for name in ["colbert-pylate", "colbert-stanford", "colbert-lfm2"] {
        let options = options(name);
        let mut backends: Vec<(String, Box<dyn Backend>)> = InstructionSet::available()
            .into_iter()
            .map(|set| {
                let operations = CpuOperations::start(2, set, DType::Float32).unwrap();
                (set.to_string(), load_on(operations, &options).unwrap())
            })
            .collect();
        backends.push(("candle".to_owned(), load_on(candle(), &options).unwrap()));
        let mut rng = StdRng::seed_from_u64(90);
        for own in [1, 3, 15, 16, 17, 40] {
            let ids: Vec<u32> = (0..own).map(|_| rng.random_range(5..90)).collect();
            let filled = |added: usize| {
                let ids = ids.iter().copied().chain(std::iter::repeat_n(4, added)).collect::<Vec<u32>>();
                Text { unattended: added, ..Text::new(ids, Wanted::TOKENS) }
            };
            let mut first: Option<Vec<f32>> = None;
            for (place, backend) in &mut backends {
                let what = format!("{name} {place} {own}");
                let found = states(backend.as_mut(), &[filled(0), filled(1), filled(20)]);
                assert_close(&found[2][..own * WIDTH], &found[0], 2e-5, &what);
                assert_close(&found[2][..(own + 1) * WIDTH], &found[1], 2e-5, &what);
                // The same token at two positions has two states. With rotary positions, a single key has all
                // of the attention, wherever the query is.
                let [one, two] = [own, own + 1].map(|row| &found[2][row * WIDTH..][..WIDTH]);
                let differ = one.iter().zip(two).any(|(one, two)| (one - two).abs() > 1e-3);
                assert_eq!(differ, own > 1 || name != "colbert-lfm2", "{what}");
                let attended = Text { unattended: 0, ..filled(20) };
                assert_ne!(states(backend.as_mut(), &[attended])[0], found[2], "{what}");
                match &first {
                    Some(first) => assert_close(&found[2], first, 1e-4, &what),
                    None => first = Some(found[2].clone()),
                }
            }
        }
    }
}
