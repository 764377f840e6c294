//! The tables of an embedding layer, and how a token chooses its row in each.

/// A table of vectors.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan {
    /// The tensor, `[rows, width]`.
    pub(crate) tensor: String,
    /// Its shape.
    pub(crate) shape: [usize; 2],
    /// How a row is chosen.
    pub(crate) index: RowIndex,
}

/// From token ids to rows of the table of tokens, where an id is not simply its row (model2vec).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenRowsPlan {
    /// The tensor with the row of each token id, `[vocabulary]`.
    pub(crate) mapping: Option<&'static str>,
    /// The tensor with the factor of each token id's row, `[vocabulary]`.
    pub(crate) weights: Option<&'static str>,
    /// A token id behind the vocabulary whose vector is zero: it stands for a text without tokens.
    pub(crate) blank: Option<u32>,
}

/// A table with a row for each kind of texts. A text's row is added to the states of all its tokens.
#[derive(Debug, Clone)]
pub(crate) struct KindsPlan {
    /// `[kinds, hidden]`
    pub(crate) table: TablePlan,
    /// The index of the layer before which it is added.
    pub(crate) layer: usize,
}

/// How a row of an embedding table is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowIndex {
    /// The token id.
    Token,
    /// The position in the text, plus an offset.
    Position {
        /// The row of the first token.
        offset: usize,
    },
    /// The token type: 0, or 1 in the second text of a pair.
    Type,
    /// Always the first row.
    First,
}
