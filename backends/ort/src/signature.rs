//! Decides how a graph is run, by the names and shapes of its inputs and outputs.
//!
//! Input: the [`Port`]s of a graph, and the head that the model's files describe. Output: a [`Signature`].
//! What must hold: an input that this server cannot fill and an output that it cannot read are refused by
//! name; an output is only read if its name or shape states its meaning.

use text_embeddings_backend_core::{Head, WholeHead};

/// The type of values of an input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Int64,
    Int32,
    Float32,
    Float16,
    Other,
}

/// An input or output of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) element: Element,
    /// The sizes of its dimensions. A negative size depends on the inputs.
    pub(crate) shape: Vec<i64>,
}

/// The values that an input gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    Ids,
    Mask,
    Types,
    Positions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The last hidden states of tokens: `[texts, tokens, hidden]`.
    States,
    /// The pooled vector of each text: `[texts, values]`.
    Vector,
    /// A raw score for each label: `[texts, labels]`.
    Labels,
    /// A logit for each token and entry of the vocabulary: `[texts, tokens, vocabulary]`.
    Logits,
}

/// An input that the server fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphInput {
    pub(crate) name: String,
    pub(crate) feed: Feed,
    /// Whether it takes 32-bit numbers.
    pub(crate) is_narrow: bool,
}

/// How to run a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) inputs: Vec<GraphInput>,
    /// The name of the output that is read.
    pub(crate) output: String,
    pub(crate) meaning: Meaning,
    /// The length of a row of that output, if the graph states it.
    pub(crate) width: Option<usize>,
    /// Whether each text must be run alone, because the graph has no mask or takes one text at a time.
    pub(crate) alone: bool,
}

const INPUTS: [(&str, Feed); 4] = [
    ("input_ids", Feed::Ids),
    ("attention_mask", Feed::Mask),
    ("token_type_ids", Feed::Types),
    ("position_ids", Feed::Positions),
];
/// Names of the last hidden states in exports of `optimum` and sentence-transformers.
const STATES: [&str; 2] = ["last_hidden_state", "token_embeddings"];
/// Names of an output with one vector per text.
const VECTORS: [&str; 4] = ["sentence_embedding", "pooler_output", "text_embeds", "embeddings"];
const LOGITS: &str = "logits";

impl Signature {
    /// The signature of a graph for a model with this head.
    pub(crate) fn new(inputs: &[Port], outputs: &[Port], head: &Head) -> Result<Self, String> {
        let filled = inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let has = |feed| inputs.iter().any(|port| INPUTS.contains(&(port.name.as_str(), feed)));
        if !has(Feed::Ids) {
            return Err(format!("it has no input `input_ids` (its inputs: {})", names(inputs)));
        }
        let takes_one = inputs.iter().any(|port| port.shape.first() == Some(&1));
        let (port, meaning) = output(outputs, head)?;
        if !matches!(port.element, Element::Float32 | Element::Float16) {
            return Err(format!("its output `{}` does not hold float32 or float16", port.name));
        }
        let width = port.shape.last().and_then(|&size| usize::try_from(size).ok()).filter(|&size| size > 0);
        Ok(Self {
            inputs: filled,
            output: port.name.clone(),
            meaning,
            width,
            alone: takes_one || !has(Feed::Mask),
        })
    }

    /// The output's dimensions without the last, for `texts` texts of `tokens` tokens.
    pub(crate) fn dimensions(&self, texts: usize, tokens: usize) -> Vec<usize> {
        match self.meaning {
            Meaning::States | Meaning::Logits => vec![texts, tokens],
            Meaning::Vector | Meaning::Labels => vec![texts],
        }
    }
}

/// The input of a port, or the reason why the server cannot fill it.
fn input(port: &Port) -> Result<GraphInput, String> {
    let Port { name, element, shape } = port;
    let Some(&(_, feed)) = INPUTS.iter().find(|(known, _)| known == name) else {
        let why = if name.starts_with("past_key_values") || name == "use_cache_branch" {
            ": it was exported to generate text; export it without its cache"
        } else {
            ""
        };
        let known = INPUTS.map(|(name, _)| name).join(", ");
        return Err(format!("its input `{name}` is not one that this server fills ({known}){why}"));
    };
    let is_narrow = match element {
        Element::Int64 => false,
        Element::Int32 => true,
        _ => return Err(format!("its input `{name}` does not take int64 or int32")),
    };
    match shape.as_slice() {
        [texts, tokens] if *tokens < 0 && (*texts < 0 || *texts == 1) => {
            Ok(GraphInput { name: name.clone(), feed, is_narrow })
        }
        _ => Err(format!(
            "its input `{name}` has the fixed shape {shape:?}: export it for any number of texts and tokens"
        )),
    }
}

fn output<'p>(outputs: &'p [Port], head: &Head) -> Result<(&'p Port, Meaning), String> {
    let first = |names: &[&str], rank| {
        names
            .iter()
            .find_map(|name| outputs.iter().find(|port| port.name == *name && port.shape.len() == rank))
    };
    // The shape of the only output identifies it, even under an unknown name.
    let only = |rank| match outputs {
        [port] if port.shape.len() == rank && port.name != LOGITS => Some(port),
        _ => None,
    };
    let (found, wanted) = match (&head.whole, &head.sparse) {
        (Some(WholeHead::Vector { .. }), _) => {
            let states = first(&STATES, 3).or_else(|| only(3));
            let found = states
                .map(|port| (port, Meaning::States))
                .or_else(|| first(&VECTORS, 2).or_else(|| only(2)).map(|port| (port, Meaning::Vector)));
            if let Some((port, Meaning::Vector)) = found
                && !head.files().is_empty()
            {
                return Err(format!(
                    "its only output is `{}`, which may or may not include the modules of modules.json: export it with \
                     `last_hidden_state`",
                    port.name
                ));
            }
            (found, "`last_hidden_state`, `token_embeddings` or `sentence_embedding`")
        }
        (Some(WholeHead::Scores { .. }), _) => {
            let states = first(&STATES, 3).or_else(|| only(3));
            (states.map(|port| (port, Meaning::States)), "`last_hidden_state`")
        }
        (Some(WholeHead::Classification { .. }), _) => {
            let labels = first(&[LOGITS], 2).or_else(|| only(2));
            (labels.map(|port| (port, Meaning::Labels)), "`logits` for each label")
        }
        (Some(WholeHead::Answers(_) | WholeHead::Labels(_)), _) | (None, Some(_)) => {
            (first(&[LOGITS], 3).map(|port| (port, Meaning::Logits)), "`logits` for each token")
        }
        (None, None) => {
            return Err(
                "re-rankers that read many documents in one prompt are not served from ONNX: choose `--backend candle`"
                    .to_owned(),
            );
        }
    };
    found.ok_or_else(|| format!("none of its outputs ({}) is {wanted}", names(outputs)))
}

fn names(ports: &[Port]) -> String {
    let names: Vec<String> = ports.iter().map(|port| format!("{} {:?}", port.name, port.shape)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::path::PathBuf;
    use text_embeddings_backend_core::{Activation, AnswerTokens, DenseModule, HeadModule, Pooling};

    fn port(name: &str, element: Element, shape: &[i64]) -> Port {
        Port { name: name.to_owned(), element, shape: shape.to_vec() }
    }

    fn ints(names: &[&str]) -> Vec<Port> {
        names.iter().map(|name| port(name, Element::Int64, &[-1, -1])).collect()
    }

    fn floats(outputs: &[(&str, &[i64])]) -> Vec<Port> {
        outputs.iter().map(|(name, shape)| port(name, Element::Float32, shape)).collect()
    }

    fn embedding(modules: Vec<HeadModule>) -> Head {
        Head::embedding(Pooling::Mean, modules)
    }

    fn dense() -> HeadModule {
        HeadModule::Dense(DenseModule {
            weights: PathBuf::new().into(),
            in_features: 8,
            out_features: 4,
            bias: false,
            activation: Activation::Identity,
        })
    }

    type Row<'a> = (Head, &'a [(&'a str, &'a [i64])], Result<(&'a str, Meaning, Option<usize>), &'a str>);

    #[test]
    fn the_output_is_the_one_that_the_head_needs() {
        let answers = Head::answers(AnswerTokens::difference(1, None));
        let (classes, scores) = (Head::classification(3), Head::scores(Pooling::First, vec![dense()]));
        let (states, vector) = (&[-1, -1, 8][..], &[-1, 8][..]);
        let table: [Row<'_>; 15] = [
            (
                embedding(vec![]),
                &[("last_hidden_state", states), ("pooler_output", vector)],
                Ok(("last_hidden_state", Meaning::States, Some(8))),
            ),
            (
                embedding(vec![dense()]),
                &[("sentence_embedding", vector), ("token_embeddings", states)],
                Ok(("token_embeddings", Meaning::States, Some(8))),
            ),
            (
                embedding(vec![]),
                &[("sentence_embedding", vector)],
                Ok(("sentence_embedding", Meaning::Vector, Some(8))),
            ),
            (
                embedding(vec![]),
                &[("pooler_output", &[-1, -1])],
                Ok(("pooler_output", Meaning::Vector, None)),
            ),
            (embedding(vec![]), &[("1234", states)], Ok(("1234", Meaning::States, Some(8)))),
            (
                embedding(vec![dense()]),
                &[("sentence_embedding", vector)],
                Err("its only output is `sentence_embedding`"),
            ),
            (
                embedding(vec![]),
                &[("logits", &[-1, 3])],
                Err("none of its outputs (logits [-1, 3]) is `last_hidden_state`"),
            ),
            (embedding(vec![]), &[("a", states), ("b", states)], Err("none of its outputs")),
            (classes.clone(), &[("logits", &[-1, 3])], Ok(("logits", Meaning::Labels, Some(3)))),
            (classes.clone(), &[("output", &[-1, -1])], Ok(("output", Meaning::Labels, None))),
            (classes, &[("logits", &[-1, -1, 3])], Err("is `logits` for each label")),
            (scores, &[("last_hidden_state", states)], Ok(("last_hidden_state", Meaning::States, Some(8)))),
            (answers, &[("logits", &[-1, -1, 99])], Ok(("logits", Meaning::Logits, Some(99)))),
            (Head::SPLADE, &[], Err("none of its outputs (none) is `logits` for each token")),
            (Head::PROJECTOR, &[("last_hidden_state", states)], Err("not served from ONNX")),
        ];
        for (index, (head, outputs, expected)) in table.into_iter().enumerate() {
            let found = Signature::new(&ints(&["input_ids", "attention_mask"]), &floats(outputs), &head);
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!((found.output.as_str(), found.meaning, found.width), expected, "row {index}");
                    assert!(!found.alone);
                }
                (Err(message), Err(part)) => assert!(message.contains(part), "row {index}: {message}"),
                (found, expected) => unreachable!("row {index}: {found:?} for {expected:?}"),
            }
        }
    }

    #[test]
    fn inputs_are_filled_or_refused_by_name() {
        let outputs = floats(&[("last_hidden_state", &[-1, -1, 8])]);
        let signature = |inputs: &[Port]| Signature::new(inputs, &outputs, &embedding(vec![]));
        let all =
            signature(&ints(&["input_ids", "attention_mask", "token_type_ids", "position_ids"])).unwrap();
        assert_eq!(
            all.inputs.iter().map(|input| (input.feed, input.is_narrow)).collect::<Vec<_>>(),
            [(Feed::Ids, false), (Feed::Mask, false), (Feed::Types, false), (Feed::Positions, false)]
        );
        assert!(!all.alone && all.dimensions(3, 7) == [3, 7]);
        let narrow = signature(&[port("input_ids", Element::Int32, &[1, -1])]).unwrap();
        assert!(narrow.alone && narrow.inputs[0].is_narrow);
        assert!(signature(&ints(&["input_ids"])).unwrap().alone, "without a mask");
        for (inputs, part) in [
            (ints(&["attention_mask"]), "no input `input_ids`"),
            (
                ints(&["input_ids", "past_key_values.0.key"]),
                "`past_key_values.0.key` is not one that this server fills (input_ids, attention_mask, token_type_ids, position_ids): it was exported to generate text",
            ),
            (ints(&["input_ids", "pixel_values"]), "`pixel_values` is not one"),
            (vec![port("input_ids", Element::Float32, &[-1, -1])], "does not take int64 or int32"),
            (vec![port("input_ids", Element::Int64, &[-1, 128])], "fixed shape [-1, 128]"),
            (vec![port("input_ids", Element::Int64, &[8, -1])], "fixed shape [8, -1]"),
            (vec![port("input_ids", Element::Int64, &[-1])], "fixed shape [-1]"),
        ] {
            let message = signature(&inputs).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        let whole = [port("last_hidden_state", Element::Other, &[-1, -1, 8])];
        let message = Signature::new(&ints(&["input_ids"]), &whole, &embedding(vec![])).unwrap_err();
        assert!(message.contains("`last_hidden_state` does not hold float32 or float16"), "{message}");
    }
}
