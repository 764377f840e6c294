#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use text_embeddings_backend_core::{AnswerTokens, BatchBuilder, Packing, SparseValue, Text};

fn embedding(pooling: Pooling) -> Head {
    Head::embedding(pooling, Vec::new())
}

/// Texts of random ids. `wanted` gives the wanted outputs for a text's index.
fn batch(random: &mut StdRng, texts: usize, wanted: impl Fn(usize) -> Wanted) -> Batch {
    let mut builder = BatchBuilder::new(Packing::SEPARATE);
    for text in 0..texts {
        let ids: Vec<u32> = (0..random.random_range(1..20)).map(|_| random.random_range(0..9)).collect();
        let marks = if text % 3 == 0 { vec![ids.len() - 1] } else { Vec::new() };
        builder.push(&Text { marks, ..Text::new(ids, wanted(text)) });
    }
    builder.build()
}

/// A value for each cell by the token's row in the batch. Padding cells are NaN, because nothing may read
/// them.
fn cells(batch: &Batch, group: &Padded, width: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut values = Vec::new();
    for &text in &group.texts {
        let rows: Vec<usize> = batch.rows_of(text).collect();
        for cell in 0..group.width {
            let row = rows.get(cell);
            values.extend((0..width).map(|column| row.map_or(f32::NAN, |&row| value(row, column))));
        }
    }
    values
}

fn read(head: &GraphHead, batch: &Batch, width: usize, value: impl Fn(usize, usize) -> f32) -> Vec<Output> {
    let mut outputs = vec![Output::default(); batch.leaves().len()];
    for group in Padded::groups(batch, 0, false) {
        let values = cells(batch, &group, width, &value);
        head.read(batch, &group, &OutputValues { values: &values, width }, &mut outputs).unwrap();
    }
    outputs
}

/// A number for a row and a column. Neighbouring cells never share it.
fn state(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 7) % 101) as f32 - 50.0
}

#[test]
fn vectors_are_those_of_the_texts_own_tokens() {
    let mut random = StdRng::seed_from_u64(1);
    for round in 0..60 {
        let width = [1, 5, 8][round % 3];
        let wanted = |text: usize| {
            if text.is_multiple_of(2) { Wanted { tokens: true, ..Wanted::WHOLE } } else { Wanted::WHOLE }
        };
        let batch = batch(&mut random, round % 9, wanted);
        for pooling in [Pooling::First, Pooling::Mean, Pooling::Last] {
            let head = GraphHead::load(&embedding(pooling), Meaning::States, Some(width)).unwrap();
            head.refuse_missing(&batch).unwrap();
            for (text, output) in read(&head, &batch, width, state).into_iter().enumerate() {
                let rows: Vec<usize> = batch.rows_of(text).collect();
                for column in 0..width {
                    let expected = match pooling {
                        Pooling::First => state(rows[0], column),
                        Pooling::Last => state(rows[rows.len() - 1], column),
                        _ => rows.iter().map(|&row| state(row, column)).sum::<f32>() / rows.len() as f32,
                    };
                    assert!((output.whole[column] - expected).abs() < 1e-4, "{pooling:?}, text {text}");
                }
                let marked = if batch.wanted()[text].tokens { batch.marked_rows(text) } else { Vec::new() };
                let expected: Vec<f32> =
                    marked.iter().flat_map(|&row| (0..width).map(move |column| state(row, column))).collect();
                assert_eq!(output.tokens.values, expected);
                assert_eq!(output.tokens.width, if marked.is_empty() { 0 } else { width });
            }
        }
    }
}

#[test]
fn logits_become_answers_or_sparse_weights() {
    let mut random = StdRng::seed_from_u64(2);
    let vocabulary = 11;
    let whole = batch(&mut random, 12, |_| Wanted::WHOLE);
    for false_id in [None, Some(3)] {
        let head = Head::answers(AnswerTokens::difference(9, false_id));
        let head = GraphHead::load(&head, Meaning::Logits, Some(vocabulary)).unwrap();
        for (text, output) in read(&head, &whole, vocabulary, state).into_iter().enumerate() {
            let last = whole.rows_of(text).last().unwrap();
            let expected = state(last, 9) - false_id.map_or(0.0, |id| state(last, id as usize));
            assert_eq!(output.whole, [expected]);
        }
    }
    let sparse = batch(&mut random, 12, |_| Wanted::SPARSE);
    let head = GraphHead::load(&Head::SPLADE, Meaning::Logits, None).unwrap();
    for (text, output) in read(&head, &sparse, vocabulary, state).into_iter().enumerate() {
        let rows: Vec<usize> = sparse.rows_of(text).collect();
        let largest = |entry| rows.iter().map(|&row| state(row, entry)).fold(f32::MIN, f32::max);
        let expected: Vec<SparseValue> = (0..vocabulary)
            .filter(|&entry| largest(entry) > 0.0)
            .map(|entry| SparseValue { index: entry as u32, value: largest(entry).ln_1p() })
            .collect();
        assert_eq!(output.sparse, expected, "text {text}");
    }
    // NaN is reported, not left out.
    let broken = read(&head, &sparse, vocabulary, |_, column| if column == 4 { f32::NAN } else { -1.0 });
    assert!(broken.iter().all(Output::has_nan));
}

#[test]
fn what_the_graph_does_not_give_is_refused() {
    let mut random = StdRng::seed_from_u64(3);
    let labels = Head::classification(3);
    let message = GraphHead::load(&labels, Meaning::Labels, Some(2)).err().unwrap().to_string();
    assert!(message.contains("gives 2 scores, but config.json names 3 labels"), "{message}");
    let loaded = |head: &Head, meaning, width| GraphHead::load(head, meaning, width).unwrap();
    let rows = [
        (loaded(&labels, Meaning::Labels, None), Wanted::TOKENS, "a vector of each token is wanted"),
        (
            loaded(&embedding(Pooling::Mean), Meaning::Vector, None),
            Wanted::TOKENS,
            "a vector of each token is wanted",
        ),
        (
            loaded(&embedding(Pooling::Mean), Meaning::States, Some(4)),
            Wanted::SPARSE,
            "sparse weights are wanted",
        ),
        (loaded(&Head::SPLADE, Meaning::Logits, None), Wanted::WHOLE, "a dense vector is wanted"),
    ];
    for (head, wanted, part) in rows {
        let message = head.refuse_missing(&batch(&mut random, 2, |_| wanted)).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    let answers = Head::answers(AnswerTokens::difference(5, None));
    let rows = [
        (loaded(&labels, Meaning::Labels, None), 2, "gives 2 instead of 3 labels"),
        (
            loaded(&embedding(Pooling::Mean), Meaning::States, Some(4)),
            5,
            "gives 5 instead of 4 values of a state",
        ),
        (loaded(&answers, Meaning::Logits, None), 5, "gives 5 logits, and none of token 5"),
        (loaded(&Head::SPLADE, Meaning::Logits, None), 0, "rows without values"),
    ];
    for (head, width, part) in rows {
        let message = head.check_width(width).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}
