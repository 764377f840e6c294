//! Every model: a [`Plan`] with its weights, and the forward pass up to the last hidden states.
//!
//! Input: a packed batch. Output: the hidden states, after the final norm, of the requested rows; in the last
//! layer, only these rows have queries, an output projection and an MLP. `heads.rs` computes the head. What
//! must hold: keys and values of every layer go through [`Pass::exchange`].

mod attention;
mod convolution;
mod delta;
mod experts;
mod input_gate;
mod layer;
mod layer_parts;
mod short_convolution;
mod token_rows;
mod weights;

use crate::{
    attention::{QuerySpan, Scoring, queries_at},
    bias::{DistanceBias, DistanceRule, alibi_slopes},
    load::{Checkpoint, LoadProgress},
    operations::{Lookup, Norm, Operations, Precision, Result, Rows},
    pass::Pass,
    plan::{KindsPlan, Plan, Position, RowIndex, View},
    rope::{Angles, RopeTables},
};
use convolution::Convolution;
use input_gate::InputGate;
use layer::{Layer, Stream};
use layer_parts::{LastRows, LayerRows};
use text_embeddings_backend_core::Batch;
use token_rows::TokenRows;
pub(crate) use weights::Weights;

/// A model with its weights.
pub(crate) struct Transformer<O: Operations> {
    tables: Vec<(O::Table, RowIndex)>,
    token_rows: TokenRows,
    scale: f32,
    embedding_norm: Option<Norm<O::Vector>>,
    projection: Option<O::Matrix>,
    views: Vec<LoadedView>,
    convolution: Option<Convolution<O>>,
    kinds: Option<KindTable<O>>,
    layers: Vec<Layer<O>>,
    /// The indices of the layers in the order in which they run.
    order: Vec<usize>,
    /// A third block of each layer, or none.
    input_gates: Vec<InputGate<O>>,
    norm: Option<Norm<O::Vector>>,
}

/// A table whose rows are added to the states before a layer.
struct KindTable<O: Operations> {
    table: O::Table,
    layer: usize,
}

/// A kind of attention, with its tables.
struct LoadedView {
    view: View,
    rope: Option<RopeTables>,
    bias: Option<DistanceBias>,
}

/// The rows of a layer's result.
struct Places {
    /// The rows as spans of the batch.
    spans: Vec<QuerySpan>,
    /// The rows' indices in the batch.
    rows: Vec<usize>,
    /// The rows' indices among the computed rows.
    computed: Vec<usize>,
}

impl Places {
    fn new<O: Operations>(pass: &Pass<'_, O::Kept>, rows: &[usize]) -> Self {
        Self {
            spans: queries_at(pass.batch(), rows),
            rows: rows.to_vec(),
            computed: rows.iter().map(|&row| pass.places()[row]).collect(),
        }
    }
}

/// For each row of a batch, its position and its text's length. A row that several texts share has the length
/// of the longest of them. Models whose angles depend on the length never share rows.
struct RowPositions {
    positions: Vec<usize>,
    lengths: Vec<usize>,
}

impl RowPositions {
    fn from_batch(batch: &Batch) -> Self {
        let mut lengths = vec![0; batch.token_ids().len()];
        for (text, tokens) in batch.text_lengths().enumerate() {
            batch.rows_of(text).for_each(|row| lengths[row] = tokens.max(lengths[row]));
        }
        Self { positions: batch.positions().collect(), lengths }
    }
}

impl<O: Operations> Transformer<O> {
    /// Takes the model's tensors out of `checkpoint`.
    pub(crate) fn load(plan: &Plan, checkpoint: &Checkpoint, operations: &mut O) -> Result<Self> {
        let mut weights = Weights { checkpoint, operations };
        let tables = plan.embeddings.tables.iter().map(|table| Ok((weights.table(table)?, table.index)));
        let tables = tables.collect::<Result<_>>()?;
        let token_rows = TokenRows::from_checkpoint(plan, checkpoint)?;
        let embedding_norm = weights.optional_norm(plan.embeddings.norm.as_ref())?;
        let projection = plan.embeddings.projection.as_ref();
        let projection = projection.map(|matrix| weights.matrix(matrix, Precision::High)).transpose()?;
        let views = plan.views.iter().map(|view| LoadedView::load_view(view, checkpoint));
        let views = views.collect::<Result<_>>()?;
        let convolution = plan.convolution.as_ref();
        let convolution = convolution
            .map(|convolution| Convolution::load(convolution, plan.hidden, &weights))
            .transpose()?;
        let kinds = plan.kinds.as_ref().map(|kinds| KindTable::load_rows(kinds, &weights)).transpose()?;
        let mut progress = LoadProgress::new(plan.layers.len());
        let mut layers = Vec::with_capacity(plan.layers.len());
        for (index, layer) in plan.layers.iter().enumerate() {
            layers.push(Layer::load(layer, index, &plan.views, &mut weights)?);
            progress.layer_loaded();
        }
        let order = plan.repeated.clone().unwrap_or_else(|| (0..layers.len()).collect());
        let input_gates = plan.input_gates.iter().map(|block| InputGate::load(block, &weights));
        let input_gates = input_gates.collect::<Result<_>>()?;
        let norm = weights.optional_norm(plan.final_norm.as_ref())?;
        let scale = plan.embeddings.scale;
        Ok(Self {
            tables,
            token_rows,
            scale,
            embedding_norm,
            projection,
            views,
            convolution,
            kinds,
            layers,
            order,
            input_gates,
            norm,
        })
    }

    /// Makes the tables of positions long enough for the texts of a batch.
    pub(crate) fn extend_positions(&mut self, batch: &Batch) {
        self.views.iter_mut().for_each(|view| view.extend_to(batch));
    }

    /// The hidden states, after the final norm, of some rows of the batch: `[rows, hidden]`. `rows` is
    /// ascending, has no repetition and is not empty; the pass must compute all of them, and
    /// [`Transformer::extend_positions`] must have seen its texts.
    pub(crate) fn forward(
        &self,
        operations: &mut O,
        pass: &mut Pass<'_, O::Kept>,
        rows: &[usize],
    ) -> Result<O::Tensor> {
        let positions = RowPositions::from_batch(pass.batch());
        // `pass` changes from layer to layer, but these two do not.
        let (batch, places) = (pass.batch(), pass.places().to_vec());
        let all = Places::new::<O>(pass, pass.computed());
        let all_angles: Vec<_> =
            self.views.iter().map(|view| view.row_angles(&positions, &all.rows)).collect();
        // The last layer computes fewer rows, unless all are requested.
        let ordered: Vec<&Layer<O>> = self.order.iter().map(|&index| &self.layers[index]).collect();
        let last = match ordered.last() {
            Some(layer) if rows.len() < all.rows.len() => {
                Some((layer.attention_view().map(|view| &self.views[view]), Places::new::<O>(pass, rows)))
            }
            _ => None,
        };
        let last_angles = last.as_ref().and_then(|(view, last)| (*view)?.row_angles(&positions, &last.rows));
        let all_rows = self.views.iter().zip(&all_angles).map(|(view, angles)| {
            operations.rows(view.prepared_rows(batch, &places, &all, angles.as_deref()))
        });
        let all_rows = all_rows.collect::<Result<Vec<_>>>()?;
        let last_rows = last.as_ref().and_then(|(view, last)| {
            Some(operations.rows((*view)?.prepared_rows(batch, &places, last, last_angles.as_deref())))
        });
        let last_rows = last_rows.transpose()?;
        let wanted = last.as_ref();
        let wanted = wanted.map(|(_, last)| LastRows { places: &last.computed, rows: last_rows.as_ref() });
        let hidden = self.embed_tokens(operations, pass, &positions)?; // [computed, hidden]
        let rows_of_first = if ordered.len() == 1 { rows } else { &all.rows };
        let convolution = self.convolution.as_ref();
        let mut convolved =
            convolution.map(|it| it.forward(operations, &hidden, pass, rows_of_first)).transpose()?;
        let embedded = if self.input_gates.is_empty() { None } else { Some(operations.copy(&hidden)?) };
        let mut stream = Stream { hidden, operand: None };
        for (index, layer) in ordered.iter().enumerate() {
            if let Some(kinds) = &self.kinds
                && kinds.layer == index
            {
                kinds.add_rows(operations, pass, &mut stream.hidden)?;
            }
            let is_last = index + 1 == ordered.len();
            let wanted = if is_last { wanted.as_ref() } else { None };
            let rows = LayerRows { all: &all_rows, wanted };
            // A layer whose result is added to a convolution gives no operand: the next layer takes the sum.
            let next = if convolved.is_some() { None } else { ordered.get(index + 1) };
            let next = next.and_then(|layer| layer.takes_stream());
            stream = layer.forward(operations, stream, pass, &rows, next)?;
            if let (Some(block), Some(embedded)) = (self.input_gates.get(index), &embedded) {
                let places = wanted.map(|wanted| wanted.places);
                block.change_stream(operations, &mut stream.hidden, embedded, places)?;
            }
            if let (Some(convolution), Some(convolved)) = (convolution, convolved.take()) {
                operations.add(&convolved, None, &mut stream.hidden)?;
                stream.hidden = operations.norm(&stream.hidden, &convolution.norm)?;
            }
        }
        let hidden = stream.hidden;
        match &self.norm {
            Some(norm) => operations.norm(&hidden, norm), // [rows, hidden]
            None if self.layers.is_empty() && rows.len() < all.rows.len() => operations.select(&hidden, rows),
            None => Ok(hidden),
        }
    }

    /// The first hidden states of the computed rows: `[computed, hidden]`.
    fn embed_tokens(
        &self,
        operations: &mut O,
        pass: &Pass<'_, O::Kept>,
        positions: &RowPositions,
    ) -> Result<O::Tensor> {
        let (batch, computed) = (pass.batch(), pass.computed());
        let types = batch.token_types();
        let mut ids = Vec::with_capacity(self.tables.len());
        for (_, index) in &self.tables {
            let rows = computed.iter().map(|&row| match *index {
                RowIndex::Token => self.token_rows.row_of(batch.token_ids()[row]),
                RowIndex::Position { offset } => (positions.positions[row] + offset) as u32,
                RowIndex::Type => types[row],
                RowIndex::First => 0,
            });
            ids.push(rows.collect::<Vec<u32>>());
        }
        let lookups: Vec<_> =
            self.tables.iter().zip(&ids).map(|((table, _), ids)| Lookup { table, ids }).collect();
        // [computed, width]
        let mut hidden = operations.embed(&lookups, self.scale, self.embedding_norm.as_ref())?;
        let tokens = computed.iter().map(|&row| batch.token_ids()[row]);
        hidden = self.token_rows.weigh_rows(operations, hidden, tokens)?;
        if let Some(projection) = &self.projection {
            let operand = operations.operand(&hidden, Precision::High)?;
            hidden = operations.linear(&operand, projection)?; // [computed, hidden]
        }
        Ok(hidden)
    }
}

impl<O: Operations> KindTable<O> {
    fn load_rows(plan: &KindsPlan, weights: &Weights<'_, O>) -> Result<Self> {
        Ok(Self { table: weights.table(&plan.table)?, layer: plan.layer })
    }

    /// Adds to each state the row of its text's kind.
    fn add_rows(&self, operations: &mut O, pass: &Pass<'_, O::Kept>, hidden: &mut O::Tensor) -> Result<()> {
        let kinds = pass.batch().row_kinds();
        let kinds: Vec<u32> = pass.computed().iter().map(|&row| kinds[row]).collect();
        let lookup = Lookup { table: &self.table, ids: &kinds };
        let rows = operations.embed(&[lookup], 1.0, None)?; // [computed, hidden]
        operations.add(&rows, None, hidden)
    }
}

impl LoadedView {
    fn load_view(view: &View, checkpoint: &Checkpoint) -> Result<Self> {
        let heads = view.heads;
        let mut loaded = Self { view: view.clone(), rope: None, bias: None };
        let rule = match &view.position {
            Position::None | Position::Disentangled => return Ok(loaded),
            Position::Rotary(rope) => {
                loaded.rope = Some(RopeTables::new(rope.clone()));
                return Ok(loaded);
            }
            Position::Alibi => DistanceRule::Alibi(alibi_slopes(heads.queries)),
            Position::Buckets { table, buckets } => {
                let table = checkpoint.tensor(table, &[buckets.count, heads.queries])?;
                let rows: Vec<Vec<f32>> = (0..buckets.count).map(|bucket| table.row(bucket)).collect();
                let values = (0..heads.queries).map(|head| rows.iter().map(|row| row[head]).collect());
                DistanceRule::Buckets { values: values.collect(), buckets: *buckets }
            }
        };
        loaded.bias = Some(DistanceBias::new(rule, view.divisor));
        Ok(loaded)
    }

    fn extend_to(&mut self, batch: &Batch) {
        if let Some(rope) = &mut self.rope {
            rope.extend_to(batch.text_lengths());
        }
        if let Some(bias) = &mut self.bias {
            bias.extend_to(batch.text_lengths().max().unwrap_or(0));
        }
    }

    /// The angles of some rows, if positions are rotary.
    fn row_angles(&self, positions: &RowPositions, rows: &[usize]) -> Option<Vec<Angles<'_>>> {
        let rope = self.rope.as_ref()?;
        let angles = rows.iter().map(|&row| rope.at(positions.positions[row], positions.lengths[row]));
        Some(angles.collect())
    }

    /// The rows `at`, prepared for operations. `places` gives, for each row of `batch`, its row in the keys
    /// and values.
    fn prepared_rows<'a>(
        &'a self,
        batch: &'a Batch,
        places: &'a [usize],
        at: &'a Places,
        angles: Option<&'a [Angles<'a>]>,
    ) -> Rows<'a> {
        let View { heads, mask, divisor, soft_cap, .. } = self.view;
        let disentangled = matches!(self.view.position, Position::Disentangled);
        let scoring = Scoring { mask, divisor, soft_cap, bias: self.bias.as_ref(), disentangled };
        Rows { batch, places, spans: &at.spans, angles, heads, scoring }
    }
}
