//! Everything that follows the last hidden states: scores, vectors, sparse weights.
//!
//! Input: the hidden states, after the final norm, of the rows that [`LoadedHead::rows`] names. Output: the
//! requested outputs of each text. What must hold: a row is computed once, even if several texts need it;
//! scores are summed in double precision from `f32` weights, so that a generative re-ranker and its
//! conversion to one label score the same.

mod splade;

use crate::{
    load::Checkpoint,
    modules::Steps,
    operations::{Operations, Result},
    plan::{Classification, Plan, Reads},
    pooling::Pooling,
    transformer::Weights,
};
use splade::Splade;
use std::borrow::Cow;
use text_embeddings_backend_core::{
    AnswerTokens, BackendError, Batch, DenseModule, Head, HeadModule, Output, Predictions, TokenVectors,
    Wanted, largest_weights, mean,
};

/// A head with its weights.
pub(crate) enum LoadedHead<O: Operations> {
    /// The pooled state goes through steps. Its product with each class's vector is that class's raw score. A
    /// generative re-ranker is a classifier of one class, whose vector is the difference of two tokens'
    /// vectors.
    Scores {
        /// How states are pooled.
        pooling: Pooling,
        /// The steps that the pooled state goes through.
        steps: Steps<O>,
        /// Whether the states go through the steps before they are pooled.
        pools_last: bool,
        /// The classes; if absent, the last step gives the raw scores.
        classes: Option<Classes>,
    },
    /// The pooled state goes through steps and becomes the text's vector.
    Vectors {
        /// How states are pooled.
        pooling: Pooling,
        /// The steps that the pooled state goes through: the model's own, then the repository's modules.
        steps: [Steps<O>; 2],
        /// The steps for each token's state, if vectors of tokens are requested.
        token_steps: Steps<O>,
        /// The steps from a token's state to its weight, if the model has such a head.
        lexical: Option<Steps<O>>,
        /// Whether a hyperbolic tangent and rounding turn values into whole numbers from -128 to 127
        /// (pplx-embed).
        quantised: bool,
    },
    /// Weights of vocabulary entries.
    Splade(Splade<O>),
}

/// The last matrix of a classification head.
pub(crate) struct Classes {
    vectors: Vec<Vec<f32>>,
    bias: Vec<f32>,
    divisor: f32,
}

impl Classes {
    /// The raw scores of a state.
    fn scores(&self, state: &[f32]) -> Vec<f32> {
        let dot = |class: &Vec<f32>| -> f64 {
            state.iter().zip(class).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let score = |(class, &bias)| ((dot(class) + f64::from(bias)) / f64::from(self.divisor)) as f32;
        self.vectors.iter().zip(&self.bias).map(score).collect()
    }
}

impl<O: Operations> LoadedHead<O> {
    /// Loads the head's tensors: from `checkpoint`, the model's own, or from the files of the head's modules.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the head or one of its tensors is missing or not supported, or if a tensor
    /// has the wrong shape or only zeros. The message names it.
    pub(crate) fn load(
        head: &Head,
        plan: &Plan,
        checkpoint: &Checkpoint,
        operations: &mut O,
    ) -> Result<Self> {
        let weights = Weights { checkpoint, operations };
        let none = |operations: &O| Steps::of_modules(&[], plan.hidden, operations);
        match head {
            Head::Answers(answers) => {
                let vectors = vec![answer_vector(*answers, checkpoint, plan)?];
                let classes = Some(Classes { vectors, bias: vec![0.0], divisor: 1.0 });
                Ok(Self::Scores {
                    pooling: Pooling::Last,
                    steps: none(weights.operations)?,
                    pools_last: false,
                    classes,
                })
            }
            Head::Classification { labels } => {
                let head = plan.classification.as_ref().ok_or_else(|| no_head("classification"))?;
                let pooling = match head.reads {
                    Reads::First => Pooling::First,
                    Reads::Mean | Reads::EachToken => Pooling::Mean,
                    Reads::Last => Pooling::Last,
                    Reads::LastUnpadded => plan.padding.map_or(Pooling::Last, Pooling::LastExcept),
                };
                let steps = Steps::of_plan(&head.steps, plan.hidden, &weights)?;
                let classes = Some(classes(head, *labels, checkpoint)?);
                Ok(Self::Scores { pooling, steps, pools_last: head.reads == Reads::EachToken, classes })
            }
            Head::Scores { pool, modules } => {
                let steps = Steps::of_modules(modules, plan.hidden, weights.operations)?;
                Ok(Self::Scores { pooling: Pooling::of(*pool)?, steps, pools_last: false, classes: None })
            }
            Head::Embedding { pool, modules, token_modules, lexical } => {
                let load =
                    |modules: &[HeadModule]| Steps::of_modules(modules, plan.hidden, weights.operations);
                let lexical =
                    lexical.as_ref().map(|module: &DenseModule| load(&[HeadModule::Dense(module.clone())]));
                let own = Steps::of_plan(&plan.vector_steps, plan.hidden, &weights)?;
                let modules = Steps::of_modules(modules, own.widths.1, weights.operations)?;
                Ok(Self::Vectors {
                    pooling: Pooling::of(*pool)?,
                    steps: [own, modules],
                    token_steps: load(token_modules)?,
                    lexical: lexical.transpose()?,
                    quantised: plan.quantised_vectors,
                })
            }
            Head::Marks => {
                if plan.projector.is_empty() {
                    return Err(no_head("listwise"));
                }
                let steps = [none(weights.operations)?, none(weights.operations)?];
                Ok(Self::Vectors {
                    pooling: Pooling::Last,
                    steps,
                    token_steps: Steps::of_plan(&plan.projector, plan.hidden, &weights)?,
                    lexical: None,
                    quantised: false,
                })
            }
            Head::Splade => {
                let head = plan.masked_lm.as_ref().ok_or_else(|| no_head("masked-language-model"))?;
                Splade::load(head, plan, &weights).map(Self::Splade)
            }
        }
    }

    /// The rows of the batch whose hidden states [`LoadedHead::predict`] needs: ascending, each once.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if a requested output is not one that the head gives.
    pub(crate) fn rows(&self, batch: &Batch) -> Result<Vec<usize>> {
        let mut rows = Vec::new();
        for text in 0..batch.leaves().len() {
            rows.extend(self.rows_of(batch, text)?);
        }
        rows.sort_unstable();
        rows.dedup();
        Ok(rows)
    }

    fn rows_of(&self, batch: &Batch, text: usize) -> Result<Vec<usize>> {
        let wanted = batch.wanted()[text];
        match self {
            Self::Splade(_) if wanted.whole => Err(not_given("dense vectors")),
            Self::Splade(_) | Self::Scores { .. } if wanted.tokens => Err(not_given("vectors of tokens")),
            Self::Splade(_) => Ok(batch.rows_of(text).collect()),
            Self::Vectors { lexical: Some(_), .. } if wanted.sparse => Ok(batch.rows_of(text).collect()),
            _ if wanted.sparse => Err(not_given("sparse weights")),
            Self::Vectors { pooling, .. } if wanted.tokens => {
                let mut rows = batch.marked_rows(text);
                rows.extend(wanted.whole.then(|| pooling.rows(batch, text)).into_iter().flatten());
                Ok(rows)
            }
            Self::Vectors { pooling, .. } | Self::Scores { pooling, .. } => Ok(pooling.rows(batch, text)),
        }
    }

    /// The requested outputs of each text. `hidden` holds the states of the batch's rows `rows`.
    pub(crate) fn predict(
        &self,
        operations: &mut O,
        hidden: &O::Tensor,
        rows: &[usize],
        batch: &Batch,
    ) -> Result<Predictions> {
        let texts = match self {
            Self::Scores { pooling, steps, pools_last, classes } => {
                let results = if *pools_last {
                    let values = operations.values(hidden)?;
                    let states = States { width: steps.widths.0, values: &values, rows };
                    states.stepped_and_pooled(operations, steps, (batch, *pooling))?
                } else {
                    let pooled = pooled(operations, hidden, steps.widths.0, &places(rows, batch, *pooling))?;
                    steps.run(operations, pooled)?
                };
                let results = results.chunks_exact(steps.widths.1);
                let score = |state: &[f32]| {
                    classes.as_ref().map_or_else(|| state.to_vec(), |classes| classes.scores(state))
                };
                results.map(|state| Output::whole(score(state))).collect()
            }
            Self::Vectors { .. } => self.vectors(operations, hidden, rows, batch)?,
            Self::Splade(splade) => splade.predict(operations, hidden, rows, batch)?,
        };
        Ok(Predictions { texts, ..Predictions::default() })
    }

    /// The outputs of an embedding model's texts.
    fn vectors(
        &self,
        operations: &mut O,
        hidden: &O::Tensor,
        rows: &[usize],
        batch: &Batch,
    ) -> Result<Vec<Output>> {
        let Self::Vectors { pooling, steps, token_steps, lexical, quantised } = self else {
            return Ok(Vec::new());
        };
        let [own, modules] = steps;
        let width = own.widths.0;
        let pooled = pooled(operations, hidden, width, &places(rows, batch, *pooling))?;
        let pooled = own.run(operations, pooled)?;
        let mut pooled = modules.run(operations, pooled)?;
        if *quantised {
            for value in &mut pooled {
                *value = quantise(*value);
            }
        }
        let mut pooled = pooled.chunks_exact(modules.widths.1);
        let wants_states = |wanted: &Wanted| wanted.tokens || wanted.sparse;
        let values = if batch.wanted().iter().any(wants_states) {
            operations.values(hidden)?
        } else {
            Cow::Borrowed(&[][..])
        };
        let states = States { width, values: &values, rows };
        let mut texts = Vec::with_capacity(batch.leaves().len());
        for (text, wanted) in batch.wanted().iter().enumerate() {
            let mut output = Output::default();
            if wanted.whole {
                output.whole = pooled.next().unwrap_or_default().to_vec();
            }
            if wanted.tokens {
                let values = token_steps.run(operations, states.of_rows(batch.marked_rows(text)))?;
                output.tokens = TokenVectors { values, width: token_steps.widths.1 };
            }
            if let Some(lexical) = lexical.as_ref().filter(|_| wanted.sparse) {
                let weights = lexical.run(operations, states.of_rows(batch.rows_of(text)))?;
                let ids = batch.rows_of(text).map(|row| batch.token_ids()[row]);
                output.sparse = largest_weights(ids.zip(weights));
            }
            texts.push(output);
        }
        Ok(texts)
    }
}

/// A value of pplx-embed's vectors: its hyperbolic tangent in steps of 1/127, as a whole number.
fn quantise(value: f32) -> f32 {
    (value.tanh() * 127.0).round_ties_even().clamp(-128.0, 127.0)
}

/// The index of the batch's row `row` in the ascending `rows`.
fn place(rows: &[usize], row: usize) -> usize {
    rows.partition_point(|&before| before < row)
}

/// The hidden states of some rows.
struct States<'a> {
    /// `[rows, width]`
    values: &'a [f32],
    width: usize,
    rows: &'a [usize],
}

impl States<'_> {
    fn of(&self, row: usize) -> &[f32] {
        &self.values[place(self.rows, row) * self.width..][..self.width]
    }

    /// The states of some rows, one after the other.
    fn of_rows(&self, rows: impl IntoIterator<Item = usize>) -> Vec<f32> {
        rows.into_iter().flat_map(|row| self.of(row)).copied().collect()
    }

    /// For each text whose scores are requested: the mean of the results of `steps` on the states to pool.
    fn stepped_and_pooled<O: Operations>(
        &self,
        operations: &mut O,
        steps: &Steps<O>,
        (batch, pooling): (&Batch, Pooling),
    ) -> Result<Vec<f32>> {
        let mut pooled = Vec::new();
        for (text, _) in batch.wanted().iter().enumerate().filter(|(_, wanted)| wanted.whole) {
            let states =
                pooling.rows(batch, text).into_iter().flat_map(|row| self.of(row)).copied().collect();
            let results = steps.run(operations, states)?;
            pooled.extend(mean(results.chunks_exact(steps.widths.1), steps.widths.1));
        }
        Ok(pooled)
    }
}

/// For each text whose scores or vector are requested, the indices of its pooled rows in the ascending
/// `rows`.
fn places(rows: &[usize], batch: &Batch, pooling: Pooling) -> Vec<Vec<usize>> {
    let texts = batch.wanted().iter().enumerate().filter(|(_, wanted)| wanted.whole);
    let places = |text| pooling.rows(batch, text).into_iter().map(|row| place(rows, row)).collect();
    texts.map(|(text, _)| places(text)).collect()
}

/// For each text, the mean of the states at these indices: `[texts, width]`.
fn pooled<O: Operations>(
    operations: &mut O,
    hidden: &O::Tensor,
    width: usize,
    texts: &[Vec<usize>],
) -> Result<Vec<f32>> {
    if texts.is_empty() { Ok(Vec::new()) } else { operations.means(hidden, width, texts) }
}

/// The error for a requested output that the head does not give.
fn not_given(outputs: &str) -> BackendError {
    BackendError::Inference(format!("this model's head does not give {outputs}"))
}

/// The error for a head that the architecture lacks.
fn no_head(kind: &str) -> BackendError {
    BackendError::Load(format!("this architecture has no {kind} head that this server knows"))
}

/// The true answer's row of the output embedding minus the false answer's row.
fn answer_vector(answers: AnswerTokens, checkpoint: &Checkpoint, plan: &Plan) -> Result<Vec<f32>> {
    let Plan { vocabulary, hidden, output_embedding, .. } = plan;
    for id in [Some(answers.true_id), answers.false_id].into_iter().flatten() {
        if id as usize >= *vocabulary {
            return Err(BackendError::Load(format!(
                "answer token {id} is outside the vocabulary of {vocabulary} in config.json"
            )));
        }
    }
    // Reads only these rows of a table that may have gigabytes.
    let row = |id: u32| {
        let row = id as usize..id as usize + 1;
        Ok::<_, BackendError>(checkpoint.tensor_rows(output_embedding, &[*vocabulary, *hidden], row)?.row(0))
    };
    let mut answer = row(answers.true_id)?;
    if let Some(id) = answers.false_id {
        answer.iter_mut().zip(row(id)?).for_each(|(yes, no)| *yes -= no);
    }
    if answer.iter().all(|&value| value == 0.0) {
        return Err(BackendError::Load(
            "the output embedding does not tell the two answers apart: every score would be 0.5; the \
             checkpoint's head is missing or empty: download it again"
                .to_owned(),
        ));
    }
    Ok(answer)
}

/// The classes of a classification head.
fn classes(head: &Classification, labels: usize, checkpoint: &Checkpoint) -> Result<Classes> {
    let Classification { logits, logits_bias, width, divisor, .. } = head;
    let name = format!("{logits}.weight");
    let weight = checkpoint.tensor(&name, &[labels, *width])?;
    let vectors: Vec<Vec<f32>> = (0..labels).map(|label| weight.row(label)).collect();
    if vectors.iter().flatten().all(|&value| value == 0.0) {
        return Err(BackendError::Load(format!(
            "the classification head `{name}` is all zeros: every text would get the same scores; download \
             the checkpoint again"
        )));
    }
    let bias = logits_bias.then(|| checkpoint.vector(&format!("{logits}.bias"), labels)).transpose()?;
    Ok(Classes { vectors, bias: bias.unwrap_or_else(|| vec![0.0; labels]), divisor: *divisor })
}
