//! Tests of heads: their answers follow from the hidden states as defined, whatever else is in the batch.

use super::{random_model::*, *};
use candle_core::DType;
use serde_json::Value;
use text_embeddings_backend_host::{LastStep, Steps, WholeOutput};

/// A text and its wanted outputs.
type Case = (Vec<u32>, Wanted);

pub(super) fn embedding(pooling: Pooling, dense: Vec<DenseModule>) -> Head {
    Head::embedding(pooling, dense.into_iter().map(HeadModule::Dense).collect())
}

/// The expected rating, if these tokens stand for 0, 1 and so on.
fn ratings(ids: &[u32]) -> AnswerTokens {
    let tokens = ids.iter().enumerate().map(|(rating, &id)| AnswerToken { id, weight: rating as f32 });
    AnswerTokens { tokens: tokens.collect(), rule: AnswerRule::ExpectedWeight }
}

pub(super) fn on_cpu(options: &LoadOptions, threads: usize, set: InstructionSet) -> Box<dyn Backend> {
    load_on(CpuOperations::start(threads, set, crate::DType::Float32).unwrap(), options).unwrap()
}

fn on_candle(options: &LoadOptions) -> Box<dyn Backend> {
    load_on(candle(), options).unwrap()
}

fn answer<'a>(
    backend: &mut dyn Backend,
    mut builder: BatchBuilder,
    texts: impl IntoIterator<Item = &'a Case>,
) -> Vec<Vec<f32>> {
    texts.into_iter().for_each(|(ids, wanted)| builder.push(&Text::new(&ids[..], *wanted)));
    let predictions = backend.predict(&builder.build()).unwrap();
    predictions.texts.into_iter().map(|text| [text.whole, text.tokens.values].concat()).collect()
}

fn whole(backend: &mut dyn Backend, ids: &[u32]) -> Vec<f32> {
    answer(backend, BatchBuilder::new(Packing::SHARED), [&(ids.to_vec(), Wanted::WHOLE)]).remove(0)
}

/// Texts of different and equal lengths, with forks, prefixes of other texts, and duplicates. Some want the
/// vectors of their tokens.
fn texts(rng: &mut StdRng, tokens_wanted: bool) -> Vec<Case> {
    let mut ids = |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..97)).collect() };
    let trunk = ids(41);
    let mut texts: Vec<Vec<u32>> = [1, 2, 5, 16, 33, 33, 33, 300].map(&mut ids).to_vec();
    texts.extend([1, 2, 31, 40].map(|shared| [&trunk[..shared], &ids(7)].concat()));
    texts.extend([1, 20, 41, 41].map(|len| trunk[..len].to_vec()));
    texts.extend(texts.clone());
    texts.shuffle(rng);
    let wanted = |_| if tokens_wanted && rng.random_bool(0.4) { Wanted::TOKENS } else { Wanted::WHOLE };
    let wanted: Vec<Wanted> = (0..texts.len()).map(wanted).collect();
    texts.into_iter().zip(wanted).collect()
}

/// A model for each kind of head, with a name for messages.
fn heads() -> Vec<(&'static str, LoadOptions, RandomModel)> {
    let mut all = Vec::new();
    let mut add = |name, seed, prefix, dtype, make: &dyn Fn(&mut RandomModel) -> Head| {
        let mut model = RandomModel::new(seed, prefix, dtype);
        let head = make(&mut model);
        all.push((name, model.options(head), model));
    };
    let pool = |pool| move |_: &mut RandomModel| embedding(pool, Vec::new());
    add("answers", 30, "model.", DType::F32, &|_| Head::answers(AnswerTokens::difference(5, Some(96))));
    add("one answer", 31, "", DType::BF16, &|_| Head::answers(AnswerTokens::difference(0, None)));
    add("ratings", 37, "", DType::F32, &|_| Head::answers(ratings(&[3, 90, 41])));
    for (name, labels) in [("one label", 1), ("three labels", 3)] {
        add(name, 32, "model.", DType::F16, &|model| {
            model.add_score(labels);
            Head::classification(labels)
        });
    }
    add("cls", 33, "", DType::F32, &pool(Pooling::First));
    add("mean", 34, "model.", DType::BF16, &pool(Pooling::Mean));
    add("last token", 35, "", DType::F32, &pool(Pooling::Last));
    for (name, pool) in [("mean, dense", Pooling::Mean), ("last token, dense", Pooling::Last)] {
        add(name, 36, "", DType::F32, &|model| {
            let first = model.dense("2_Dense", (HIDDEN, 75), true, Activation::Tanh).0;
            let second = model.dense("3_Dense", (75, 7), false, Activation::Identity).0;
            embedding(pool, vec![first, second])
        });
    }
    all
}

/// An answer alone on candle's operations equals the answer in any batch, order and split, with or without
/// prefix sharing, on any number of threads, with every instruction set.
#[test]
fn an_answer_does_not_depend_on_company_order_sharing_threads_or_device() {
    let mut rng = StdRng::seed_from_u64(23);
    for (name, options, _model) in heads() {
        let texts = texts(&mut rng, options.head.outputs().tokens);
        let mut candle = on_candle(&options);
        let alone: Vec<Vec<f32>> = texts
            .iter()
            .map(|text| answer(candle.as_mut(), BatchBuilder::new(Packing::SHARED), [text]).remove(0))
            .collect();
        let mut backends = vec![("candle".to_owned(), candle)];
        for set in InstructionSet::available() {
            for threads in [1, 2, 5] {
                backends.push((format!("{set}, {threads} threads"), on_cpu(&options, threads, set)));
            }
        }
        for (backend_name, backend) in &mut backends {
            let mut check = |builder: BatchBuilder, order: &[usize], what: &str| {
                let got = answer(backend.as_mut(), builder, order.iter().map(|&i| &texts[i]));
                for (got, &text) in got.iter().zip(order) {
                    let what = format!("{name}, {backend_name}, {what}, {:?}", texts[text]);
                    assert_close(got, &alone[text], 2e-5, &what);
                }
                assert_eq!(got.len(), order.len());
            };
            let mut order: Vec<usize> = (0..texts.len()).collect();
            check(BatchBuilder::new(Packing::SHARED), &order, "shared");
            check(BatchBuilder::new(Packing::SEPARATE), &order, "unshared");
            order.shuffle(&mut rng);
            for part in order.chunks(rng.random_range(1..12)) {
                check(BatchBuilder::new(Packing::SHARED), part, "in parts");
            }
        }
    }
}

/// The states of single tokens come from the trunk, which other tests compare with transformers. This test
/// recomputes the heads' results in double precision.
#[test]
fn every_head_follows_from_the_states_of_the_tokens() {
    let mut model = RandomModel::new(40, "model.", DType::F32);
    let modules = [
        model.dense("2_Dense", (HIDDEN, 51), true, Activation::Tanh),
        model.dense("3_Dense", (51, 9), false, Activation::Identity),
        model.dense("4_Dense", (9, 9), true, Activation::Identity),
    ];
    let dense: Vec<DenseModule> = modules.iter().map(|(module, ..)| module.clone()).collect();
    let set = InstructionSet::best();
    let heads = [Pooling::First, Pooling::Mean, Pooling::Last].map(|pool| {
        let load = |dense: &[DenseModule]| on_cpu(&model.options(embedding(pool, dense.to_vec())), 2, set);
        (pool, load(&[]), load(&dense))
    });
    let score = model.add_score(3);
    let mut classifier = on_cpu(&model.options(Head::classification(3)), 2, set);
    let mut rng = StdRng::seed_from_u64(41);
    let texts: Vec<Vec<u32>> = texts(&mut rng, false).into_iter().map(|(ids, _)| ids).collect();
    for (pool, mut plain, mut with_dense) in heads {
        for ids in &texts {
            let wanted = [(ids.clone(), Wanted::TOKENS), (ids.clone(), Wanted::WHOLE)];
            let mut got = answer(plain.as_mut(), BatchBuilder::new(Packing::SHARED), &wanted);
            let (vector, states) = (got.pop().unwrap(), got.pop().unwrap());
            assert_eq!(states.len(), ids.len() * HIDDEN);
            let states: Vec<Vec<f64>> =
                states.chunks(HIDDEN).map(|state| state.iter().map(|&x| f64::from(x)).collect()).collect();
            let mut expected: Vec<f64> = match pool {
                Pooling::First => states[0].clone(),
                Pooling::Last => states[ids.len() - 1].clone(),
                _ => (0..HIDDEN)
                    .map(|i| states.iter().map(|state| state[i]).sum::<f64>() / ids.len() as f64)
                    .collect(),
            };
            assert_close(&vector, &single(&expected), 1e-6, &format!("{pool:?}"));
            let scores = whole(classifier.as_mut(), ids);
            assert_close(&scores, &product(&score.concat(), states.last().unwrap()), 2e-5, "scores");
            for (module, weight, bias) in &modules {
                let sums =
                    product(weight, &expected).into_iter().zip(bias).map(|(sum, bias)| f64::from(sum + bias));
                let tanh = module.activation == Activation::Tanh;
                expected = sums.map(|sum| if tanh { sum.tanh() } else { sum }).collect();
            }
            let vector = whole(with_dense.as_mut(), ids);
            assert_close(&vector, &single(&expected), 1e-5, &format!("{pool:?}, dense"));
            let tokens =
                answer(with_dense.as_mut(), BatchBuilder::new(Packing::SHARED), &wanted[..1]).remove(0);
            let expected: Vec<f64> = states.concat();
            assert_close(&tokens, &single(&expected), 1e-6, "dense modules leave the tokens alone");
        }
    }
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// `weight · x`.
fn product(weight: &[f32], x: &[f64]) -> Vec<f32> {
    let row = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>() as f32;
    weight.chunks(x.len()).map(row).collect()
}

#[test]
fn a_conversion_to_one_label_scores_as_the_causal_model() {
    let (yes, no) = (17, 60);
    let mut rng = StdRng::seed_from_u64(42);
    let mut check = |causal: &LoadOptions, converted: &LoadOptions, what: &str| {
        let texts = texts(&mut rng, false);
        let mut scores = [causal, converted].map(|options| {
            let mut backend = on_cpu(options, 2, InstructionSet::best());
            answer(backend.as_mut(), BatchBuilder::new(Packing::SHARED), &texts)
        });
        scores[0].iter_mut().for_each(|score| assert_eq!(score.len(), 1));
        assert_eq!(scores[0], scores[1], "{what}");
        assert_ne!(scores[0][0], scores[0][1]);
    };
    let answers = Head::answers(AnswerTokens::difference(yes, Some(no)));
    for dtype in [DType::F32, DType::BF16] {
        let mut model = RandomModel::new(43, "model.", dtype);
        model.config["tie_word_embeddings"] = false.into();
        let output = model.values(VOCABULARY * HIDDEN, 0.0);
        model.add("lm_head.weight", &output, &[VOCABULARY, HIDDEN]);
        let causal = model.options(answers.clone());
        let row = |id: u32| &output[id as usize * HIDDEN..][..HIDDEN];
        let difference: Vec<f32> = row(yes).iter().zip(row(no)).map(|(yes, no)| yes - no).collect();
        // The output embedding stays in the checkpoint and is not used.
        model.add("score.weight", &difference, &[1, HIDDEN]);
        check(&causal, &model.options(Head::classification(1)), &format!("{dtype:?}"));
    }
}

/// safetensors' `save_model` stores tied tensors under the first of their names in the alphabet.
#[test]
fn a_tied_model_may_store_the_output_embedding_only() {
    let mut model = RandomModel::new(44, "model.", DType::F32);
    let answers = Head::answers(AnswerTokens::difference(7, Some(3)));
    let mut whole = on_cpu(&model.options(answers.clone()), 2, InstructionSet::best());
    let mut tensors = candle_core::safetensors::load(&model.weights[0], &Device::Cpu).unwrap();
    let words = tensors.remove("model.embed_tokens.weight").unwrap();
    tensors.insert("lm_head.weight".to_owned(), words);
    let path = model.weights[0].with_file_name("renamed.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    model.weights = vec![path];
    let mut renamed = on_cpu(&model.options(answers), 2, InstructionSet::best());
    let texts = texts(&mut StdRng::seed_from_u64(45), false);
    let [whole, renamed] = [&mut whole, &mut renamed]
        .map(|backend| answer(backend.as_mut(), BatchBuilder::new(Packing::SHARED), &texts));
    assert_eq!(whole, renamed);
}

#[test]
fn answers_of_many_tokens_follow_from_their_logits() {
    let mut model = RandomModel::new(48, "model.", DType::F32);
    model.config["tie_word_embeddings"] = false.into();
    let output = model.values(VOCABULARY * HIDDEN, 0.0);
    model.add("lm_head.weight", &output, &[VOCABULARY, HIDDEN]);
    let ids: Vec<u32> = (20..30).rev().collect();
    let expected = ratings(&ids);
    let weights = [0.5, -1.0, 0.25];
    let tokens = ids.iter().zip(weights).map(|(&id, weight)| AnswerToken { id, weight });
    let sum = AnswerTokens { tokens: tokens.collect(), rule: AnswerRule::WeightedLogits };
    let [mut states, mut expected, mut sum] =
        [embedding(Pooling::Last, Vec::new()), Head::answers(expected), Head::answers(sum)]
            .map(|head| on_cpu(&model.options(head), 2, InstructionSet::best()));
    for (ids_of_text, _) in texts(&mut StdRng::seed_from_u64(49), false) {
        let state: Vec<f64> = whole(states.as_mut(), &ids_of_text).into_iter().map(f64::from).collect();
        let logits: Vec<f64> = ids
            .iter()
            .map(|&id| {
                let row = &output[id as usize * HIDDEN..][..HIDDEN];
                row.iter().zip(&state).map(|(&w, x)| f64::from(w) * x).sum()
            })
            .collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let rating: f64 = logits.iter().zip(0..).map(|(x, i)| x.exp() / total * f64::from(i)).sum();
        assert_close(&whole(expected.as_mut(), &ids_of_text), &single(&[rating]), 2e-5, "expected");
        let weighted: f64 = logits.iter().zip(weights).map(|(x, weight)| x * f64::from(weight)).sum();
        assert_close(&whole(sum.as_mut(), &ids_of_text), &single(&[weighted]), 2e-5, "sum");
    }
    let message = refusal(|_| Head::answers(ratings(&[7, 7])));
    assert!(message.contains("does not tell the answers apart"), "{message}");
}

/// Gemma 2 bounds the logit of each token before two of them are subtracted. The fixture's bound is
/// 2.
#[test]
fn logits_are_bounded_before_they_are_subtracted() {
    let folder = fixtures().join("deciders/gemma2-instruct");
    let load_with = |head: Head, bound: Value| {
        let mut config = json("deciders/gemma2-instruct/config.json");
        config["final_logit_softcapping"] = bound;
        let options = LoadOptions::new(config, vec![folder.join("model.safetensors").into()], head);
        on_cpu(&options, 1, InstructionSet::best())
    };
    let ids = [3, 14, 15, 9, 2, 6];
    let logits = |bound: Value| whole(load_with(Head::label_logits(vec![7, 40]), bound).as_mut(), &ids);
    let difference = |bound: Value| {
        whole(load_with(Head::answers(AnswerTokens::difference(7, Some(40))), bound).as_mut(), &ids)[0]
    };
    let (plain, bounded) = (logits(Value::Null), logits(2.0.into()));
    for (plain, bounded) in plain.iter().zip(&bounded) {
        assert!((2.0 * (plain / 2.0).tanh() - bounded).abs() < 1e-6, "{bounded} of {plain}");
    }
    assert!((plain[0] - plain[1] - difference(Value::Null)).abs() < 1e-5);
    assert!((bounded[0] - bounded[1] - difference(2.0.into())).abs() < 1e-6);
    assert!((plain[0] - plain[1] - bounded[0] + bounded[1]).abs() > 1e-3, "{plain:?} {bounded:?}");
}

#[test]
fn names_with_and_without_the_prefix_are_the_same_model() {
    let head = embedding(Pooling::Last, Vec::new());
    let vectors = ["", "model."].map(|prefix| {
        let model = RandomModel::new(44, prefix, DType::F32);
        whole(on_cpu(&model.options(head.clone()), 1, InstructionSet::best()).as_mut(), &[1, 2, 3])
    });
    assert_eq!(vectors[0], vectors[1]);
}

#[test]
fn vectors_of_tokens_are_refused_by_a_model_that_scores() {
    let mut model = RandomModel::new(45, "", DType::F32);
    model.add_score(2);
    let mut backend = on_cpu(&model.options(Head::classification(2)), 1, InstructionSet::best());
    let mut builder = BatchBuilder::new(Packing::SHARED);
    builder.push(&Text::new([1, 2], Wanted::TOKENS));
    let error = backend.predict(&builder.build()).unwrap_err().to_string();
    assert_eq!(error, "inference failed: this model's head does not give vectors of tokens");
    assert_eq!(whole(backend.as_mut(), &[1, 2]).len(), 2);
}

/// The reason why the model does not load; empty if it loads.
fn refusal(change: impl FnOnce(&mut RandomModel) -> Head) -> String {
    let mut model = RandomModel::new(46, "model.", DType::F32);
    let head = change(&mut model);
    load(&model.options(head)).err().map(|error| error.to_string()).unwrap_or_default()
}

fn pooled(dense: Vec<DenseModule>) -> Head {
    embedding(Pooling::Mean, dense)
}

#[test]
fn heads_that_are_not_there_or_not_right_are_refused_by_name() {
    let classes = |labels, shape: [usize; 2], factor: f32| {
        refusal(|model| {
            let values: Vec<f32> = model.values(shape.iter().product(), 0.0);
            let values: Vec<f32> = values.into_iter().map(|value| value * factor).collect();
            model.add("score.weight", &values, &shape);
            Head::classification(labels)
        })
    };
    let with_tensor = |name: &'static str, shape: &'static [usize], head: Head| {
        refusal(|model| {
            model.add_score(2);
            let values = model.values(shape.iter().product(), 0.0);
            model.add(name, &values, shape);
            head
        })
    };
    for (message, wanted) in [
        (classes(2, [2, HIDDEN], 1.0), ""),
        (classes(2, [3, HIDDEN], 1.0), "`score.weight`"),
        (classes(1, [2, HIDDEN], 1.0), "asks for [1, 44]"),
        (classes(2, [2, 43], 1.0), "has shape [2, 43]"),
        (classes(2, [2, HIDDEN], 0.0), "all zeros"),
        (classes(2, [2, HIDDEN], f32::NAN), "tensor `score.weight`"),
        (refusal(|_| Head::classification(2)), "no tensor `score.weight`"),
        (with_tensor("scores.bias", &[2], Head::classification(2)), "tensor `scores.bias`"),
        (with_tensor("lm_head.weight", &[VOCABULARY, HIDDEN], Head::classification(2)), ""),
        (
            with_tensor(
                "lm_head.weight",
                &[VOCABULARY, HIDDEN],
                Head::answers(AnswerTokens::difference(7, Some(3))),
            ),
            "has another `lm_head.weight`",
        ),
        // The head for another use of the model is ignored.
        (with_tensor("lm_head.weight", &[VOCABULARY, HIDDEN], pooled(vec![])), ""),
        (with_tensor("other.weight", &[VOCABULARY, HIDDEN], pooled(vec![])), "tensor `other.weight`"),
        (
            refusal(|model| {
                model.add("lm_head.weight", &vec![0.5; VOCABULARY * HIDDEN], &[VOCABULARY, HIDDEN]);
                pooled(vec![])
            }),
            "",
        ),
    ] {
        assert!(
            message.contains(wanted) && message.is_empty() == wanted.is_empty(),
            "{message:?}: {wanted:?}"
        );
    }
}

#[test]
fn dense_modules_that_do_not_fit_are_refused_by_file() {
    let dense = |change: fn(&mut DenseModule)| {
        refusal(|model| {
            let first = model.dense("2_Dense", (HIDDEN, 20), true, Activation::Tanh).0;
            let mut second = model.dense("3_Dense", (20, 8), false, Activation::Identity).0;
            change(&mut second);
            pooled(vec![first, second])
        })
    };
    let remove = |module: &DenseModule| fs::remove_file(module.weights.path()).unwrap();
    assert_eq!(dense(|_| ()), "");
    for (message, wanted) in [
        (
            dense(|module| module.in_features = 21),
            ["3_Dense", "takes vectors of 21 values, but what comes before it gives 20"],
        ),
        (dense(|module| module.out_features = 9), ["3_Dense", "`linear.weight`"]),
        (dense(|module| module.out_features = 0), ["3_Dense", "must be positive"]),
        (dense(|module| module.bias = true), ["no tensor `linear.bias`", "incomplete"]),
        (
            refusal(|model| {
                let mut module = model.dense("2_Dense", (HIDDEN, 20), true, Activation::Tanh).0;
                module.bias = false;
                pooled(vec![module])
            }),
            ["2_Dense", "`linear.bias`"],
        ),
        (
            refusal(|model| pooled(vec![model.dense("2_Dense", (HIDDEN + 1, 20), true, Activation::Tanh).0])),
            ["2_Dense", "takes vectors of 45 values, but what comes before it gives 44"],
        ),
        (
            refusal(|model| {
                let module = model.dense("2_Dense", (HIDDEN, 20), true, Activation::Tanh).0;
                remove(&module);
                pooled(vec![module])
            }),
            ["2_Dense", "cannot read"],
        ),
        (
            refusal(|model| {
                let module = model.dense("2_Dense", (HIDDEN, 2), false, Activation::Tanh).0;
                let weight = ("linear.weight".to_owned(), vec![f32::NAN; HIDDEN * 2], vec![2, HIDDEN]);
                model.write("2_Dense/model.safetensors", &[weight], DType::F32);
                pooled(vec![module])
            }),
            ["2_Dense", "`linear.weight`"],
        ),
    ] {
        assert!(wanted.iter().all(|part| message.contains(part)), "{message:?} does not say {wanted:?}");
    }
}

#[test]
fn only_rows_that_an_answer_needs_are_asked_for() {
    let mut builder = BatchBuilder::new(Packing::SHARED);
    for (ids, wanted) in [
        (&[1, 2, 3, 4][..], Wanted::WHOLE),
        (&[1, 2, 5], Wanted::TOKENS),
        (&[6, 7, 8], Wanted::WHOLE),
        (&[6, 7, 8], Wanted::WHOLE),
        (&[9, 9], Wanted::WHOLE),
    ] {
        builder.push(&Text::new(ids, wanted));
    }
    // Rows: 1 2 | 3 4 | 5 | 6 7 8 | 9 9.
    let batch = builder.build();
    let rows = |pooling| whole_head(pooling, true).needed_rows(&batch);
    assert_eq!(rows(Pooling::First), [0, 1, 4, 5, 8]);
    assert_eq!(rows(Pooling::Last), [0, 1, 3, 4, 7, 9]);
    assert_eq!(rows(Pooling::Mean), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(refuse_missing(whole_head(Pooling::Last, true).outputs(), &batch).is_ok());
    assert!(refuse_missing(whole_head(Pooling::Last, false).outputs(), &batch).is_err());
    let mut builder = BatchBuilder::new(Packing::SHARED);
    for ids in [&[1, 2, 9][..], &[1, 2, 9, 9], &[9, 9], &[9, 3], &[9, 3, 9, 4], &[1]] {
        builder.push(&Text::new(ids, Wanted::WHOLE));
    }
    let batch = builder.build();
    let rows = |pooling| whole_head(pooling, false).needed_rows(&batch);
    let ids: Vec<u32> = rows(Pooling::LastExcept(9)).iter().map(|&row| batch.token_ids()[row]).collect();
    assert_eq!(ids, [1, 2, 9, 3, 4], "9 counts only where it is all");
    assert_eq!(rows(Pooling::LastExcept(7)), rows(Pooling::Last));
}

/// A head that pools states, and may give the states of tokens, too.
fn whole_head(pooling: Pooling, gives_tokens: bool) -> DeviceHead<TensorOperations> {
    let whole = WholeOutput { pooling, steps: Steps::none(1), pools_last: false, last: LastStep::None };
    DeviceHead::<TensorOperations> {
        whole: Some(whole),
        tokens: gives_tokens.then(|| Steps::none(1)),
        sparse: None,
    }
}
