//! The fields of a document, which its result shows next to the score.
//!
//! Input: a line of JSON, or the values of a record under its header. Output: the text to score, all
//! [`Field`]s in their order, and the columns of a table of them. What must hold: a value is written as it
//! was read; no two fields of a result have one name.

use std::{borrow::Cow, collections::HashSet, fmt, sync::Arc};

use anyhow::{Context, anyhow, bail, ensure};
use serde::{
    Deserialize, Serialize,
    de::{Deserializer, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The flag for the field with the text of a document.
const FIELD_FLAG: &str = "--field";

/// The field with the text of a document, or of a query.
#[derive(Debug, Clone)]
pub(crate) struct TextField {
    /// Its name in the file.
    pub(crate) name: String,
    /// The names of the fields that every result has. A document's field of such a name gets another one.
    pub(crate) own: &'static [&'static str],
    /// The flag that names it.
    pub(crate) flag: &'static str,
}

/// The most fields of a document, and the most columns of a table: each search goes through all of them.
const MAX_FIELDS: usize = 10_000;

impl TextField {
    /// The field of a document.
    pub(crate) fn of_documents(name: &str, own: &'static [&'static str]) -> Self {
        Self { name: name.to_owned(), own, flag: FIELD_FLAG }
    }
}

/// A field of a document.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// Its name in a result.
    pub(crate) name: Arc<str>,
    pub(crate) value: InputValue,
}

/// The value of a field.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum InputValue {
    /// A text, of a file that has nothing else.
    Text(String),
    /// JSON as it was written, so that long numbers keep their digits.
    Json(Box<RawValue>),
}

impl Field {
    /// The only field of a document that is a text.
    pub(crate) fn from_text(field: &TextField, text: &str) -> Vec<Self> {
        let names = result_names(&[&field.name], field.own);
        names.into_iter().map(|name| Self { name, value: InputValue::Text(text.to_owned()) }).collect()
    }

    /// The bytes that it takes, but for a constant.
    pub(crate) fn byte_count(&self) -> usize {
        self.name.len()
            + match &self.value {
                InputValue::Text(text) => text.len(),
                InputValue::Json(json) => json.get().len(),
            }
    }
}

impl InputValue {
    /// The value in a cell of a table: a text without quotes, nothing for `null`, all else as JSON.
    pub(crate) fn cell_text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Json(json) if json.get() == "null" => "".into(),
            Self::Json(json) if json.get().starts_with('"') => {
                serde_json::from_str::<String>(json.get()).map_or(json.get().into(), Cow::Owned)
            }
            Self::Json(json) => json.get().into(),
        }
    }
}

/// The text in a line of JSON, and all its fields. Fails if the line is not an object, or its field `field`
/// is not a text.
pub(crate) fn read_json(line: &str, text_field: &TextField) -> anyhow::Result<(String, Vec<Field>)> {
    let field = &text_field.name;
    ensure!(
        line.trim_start().starts_with('{') || serde_json::from_str::<&RawValue>(line).is_err(),
        "is not a JSON object such as {{\"{field}\": \"…\"}}"
    );
    let Object(fields) = serde_json::from_str(line)
        .map_err(|error| anyhow!("is not JSON ({error}), such as {{\"{field}\": \"…\"}}"))?;
    ensure!(fields.len() <= MAX_FIELDS, "has {} fields, and at most {MAX_FIELDS} are read", fields.len());
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let Some((_, text)) = fields.iter().find(|(name, _)| name == field) else {
        bail!("has no field `{field}`, but {}: choose one with `{}`", name_list(&names), text_field.flag)
    };
    let text = text.get();
    ensure!(
        text.starts_with('"'),
        "the field `{field}` is not a string: choose another with `{}`",
        text_field.flag
    );
    let text =
        serde_json::from_str(text).map_err(|error| anyhow!("the field `{field}` is not JSON ({error})"))?;
    let values = fields.iter().map(|(_, value)| InputValue::Json((*value).to_owned()));
    let fields = result_names(&names, text_field.own).into_iter().zip(values);
    Ok((text, fields.map(|(name, value)| Field { name, value }).collect()))
}

/// The fields of a JSON object in their order. Of several with one name, the last counts.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Deserialize<'a> for Object<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'a> Visitor<'a> for ObjectVisitor {
    type Value = Object<'a>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Object<'a>, M::Error> {
        let mut fields: Vec<(String, &RawValue)> = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        let mut later = HashSet::new();
        let mut is_last: Vec<bool> =
            fields.iter().rev().map(|(name, _)| later.insert(name.clone())).collect();
        fields.retain(|_| is_last.pop().unwrap_or(true));
        Ok(Object(fields))
    }
}

/// The header of separated values.
#[derive(Debug)]
pub(crate) struct Header {
    /// The place of the text.
    text: usize,
    /// The names of the columns in a result.
    names: Vec<Arc<str>>,
}

impl Header {
    /// The header with these columns. The texts are in the column `field`. Fails if it lacks the column.
    pub(crate) fn from_columns(columns: &[&str], text_field: &TextField) -> anyhow::Result<Self> {
        let field = &text_field.name;
        let count = columns.len();
        ensure!(count <= MAX_FIELDS, "has {count} columns, and at most {MAX_FIELDS} are read");
        let text = columns.iter().position(|column| column == field).with_context(|| {
            format!(
                "has no column `{field}`, but {}: choose one with `{}`",
                name_list(columns),
                text_field.flag
            )
        })?;
        Ok(Self { text, names: result_names(columns, text_field.own) })
    }

    /// The text in a record, and all its fields; absent if the record is too short.
    pub(crate) fn read_record(&self, values: Vec<&str>) -> Option<(String, Vec<Field>)> {
        let text = (*values.get(self.text)?).to_owned();
        let values = values.into_iter().map(|value| InputValue::Text(value.to_owned()));
        let fields = self.names.iter().cloned().zip(values);
        Some((text, fields.map(|(name, value)| Field { name, value }).collect()))
    }
}

/// The columns of a table of documents.
#[derive(Debug)]
pub(crate) enum Columns {
    /// The results are not a table.
    None,
    /// The fields of all documents so far. The table is written after the last of them.
    Collected(Vec<Arc<str>>),
    /// The fields of the first document: its row is written before the others are read.
    OfFirst(Vec<Arc<str>>),
}

impl Columns {
    /// Adds the fields of a document. Fails if one of them has no column, and none can be added.
    pub(crate) fn add_fields(&mut self, fields: &[Field]) -> anyhow::Result<()> {
        let (names, is_fixed) = match self {
            Self::None => return Ok(()),
            Self::Collected(names) => (names, false),
            Self::OfFirst(names) => {
                let is_fixed = !names.is_empty();
                (names, is_fixed)
            }
        };
        for (place, Field { name, .. }) in fields.iter().enumerate() {
            // Most documents have the same fields in the same order.
            if names.get(place) == Some(name) || names.contains(name) {
                continue;
            }
            ensure!(
                !is_fixed,
                "the first document has no field `{name}`, and with `--unsorted` its fields are the columns of \
                 `--output csv`: give `--output jsonl`"
            );
            ensure!(
                names.len() < MAX_FIELDS,
                "the field `{name}` is one more than the {MAX_FIELDS} columns of `--output csv`: give \
                 `--output jsonl`"
            );
            names.push(Arc::clone(name));
        }
        Ok(())
    }

    /// The names of the columns so far.
    pub(crate) fn names_so_far(&self) -> &[Arc<str>] {
        match self {
            Self::None => &[],
            Self::Collected(names) | Self::OfFirst(names) => names,
        }
    }
}

/// The names that fields have in a result: see [`result_name`], but for columns whose name is empty or
/// repeated.
fn result_names(names: &[&str], reserved: &[&str]) -> Vec<Arc<str>> {
    let own: Vec<_> = names.iter().map(|name| result_name(name, reserved)).collect();
    let mut taken: HashSet<Cow<'_, str>> = own.iter().cloned().collect();
    let mut seen = HashSet::new();
    let mut named = Vec::with_capacity(own.len());
    for (place, name) in own.iter().enumerate() {
        if !name.is_empty() && seen.insert(name) {
            named.push(Arc::from(name.as_ref()));
            continue;
        }
        let (base, first) = match name.as_ref() {
            "" => (format!("column_{}", place + 1), 1),
            name => (name.to_owned(), 2),
        };
        let mut candidates = (first..).map(|number| match number {
            1 => base.clone(),
            _ => format!("{base}_{number}"),
        });
        let free = candidates.find(|candidate| !taken.contains(candidate.as_str())).unwrap_or_default();
        named.push(Arc::from(free.as_str()));
        taken.insert(free.into());
    }
    named
}

/// The name of a field in a result. `score` becomes `input_score`, and that `input_input_score`: if the
/// documents are the results of another model, each has that model's score under the same name.
fn result_name<'a>(name: &'a str, reserved: &[&str]) -> Cow<'a, str> {
    let is_own = reserved.contains(&name.trim_start_matches("input_"));
    if is_own { format!("input_{name}").into() } else { name.into() }
}

fn name_list(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn text_field(name: &str) -> TextField {
        TextField::of_documents(name, &["rank", "index", "score"])
    }

    #[test]
    fn no_two_fields_of_a_result_have_one_name() {
        let table: [(&[&str], &[&str]); 7] = [
            (&["id", "text"], &["id", "text"]),
            (&["score", "rank", "index", "Score"], &["input_score", "input_rank", "input_index", "Score"]),
            (&["score", "input_score"], &["input_score", "input_input_score"]),
            (&["", "text", ""], &["column_1", "text", "column_3"]),
            (&["", "column_1"], &["column_1_2", "column_1"]),
            (&["id", "id", "id_2", "id"], &["id", "id_3", "id_2", "id_4"]),
            (&["score", "score"], &["input_score", "input_score_2"]),
        ];
        for (names, expected) in table {
            let got = result_names(names, text_field("text").own);
            assert_eq!(got.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), expected, "{names:?}");
        }
    }

    #[test]
    fn json_keeps_the_bytes_of_its_values_and_the_last_of_equal_names() {
        let line = r#" {"id": 12345678901234567890123, "a": 1.50, "t": "x\ty", "a": [1,  {"b": null}], "s":"\ud800"} "#;
        let (text, fields) = read_json(line, &text_field("t")).unwrap();
        assert_eq!(text, "x\ty");
        let got: Vec<_> = fields
            .iter()
            .map(|field| format!("{}={}", field.name, serde_json::to_string(&field.value).unwrap()))
            .collect();
        let expected =
            ["id=12345678901234567890123", r#"t="x\ty""#, r#"a=[1,  {"b": null}]"#, r#"s="\ud800""#];
        assert_eq!(got, expected);
        let many: Vec<_> = (0..=MAX_FIELDS).map(|number| format!("\"{number}\":1")).collect();
        let error = read_json(&format!("{{{},\"t\":\"a\"}}", many.join(",")), &text_field("t"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("10002 fields, and at most 10000"), "{error}");
    }

    #[test]
    fn a_cell_shows_a_text_without_quotes() {
        for (json, expected) in
            [(r#""a\n\"b\"""#, "a\n\"b\""), ("null", ""), ("1.50", "1.50"), ("[1, \"a\"]", "[1, \"a\"]")]
        {
            let value = InputValue::Json(RawValue::from_string(json.to_owned()).unwrap());
            assert_eq!(value.cell_text(), expected);
        }
    }

    #[test]
    fn columns_are_the_fields_of_all_documents_or_of_the_first() {
        let fields = |names: &[&str]| -> Vec<Field> {
            names.iter().flat_map(|name| Field::from_text(&text_field(name), "")).collect()
        };
        let mut all = Columns::Collected(Vec::new());
        let mut first = Columns::OfFirst(Vec::new());
        for names in [&["a", "b"][..], &["b"], &["b", "c", "a"]] {
            all.add_fields(&fields(names)).unwrap();
        }
        assert_eq!(all.names_so_far().iter().map(AsRef::as_ref).collect::<Vec<&str>>(), ["a", "b", "c"]);
        first.add_fields(&fields(&["a", "b"])).unwrap();
        first.add_fields(&fields(&["b"])).unwrap();
        let error = first.add_fields(&fields(&["a", "c"])).unwrap_err().to_string();
        assert!(error.contains("no field `c`") && error.contains("`--output jsonl`"), "{error}");
        let many: Vec<String> = (0..MAX_FIELDS).map(|number| number.to_string()).collect();
        let mut full = Columns::Collected(many.iter().map(|name| name.as_str().into()).collect());
        full.add_fields(&fields(&["7"])).unwrap();
        assert!(full.add_fields(&fields(&["x"])).unwrap_err().to_string().contains("10000 columns"));
    }
}
