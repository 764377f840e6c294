//! The bodies that a load is made of.
//!
//! Input: a route and sizes, or a file. Output: a body for each request's number, and how many pairs it
//! holds. What must hold: the same number and seed give the same body.

use std::{fs, path::Path};

use anyhow::{Context, anyhow, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use text_embeddings_backend_core::amount;

/// The routes that bodies can be generated for.
pub(super) const ROUTES: [&str; 10] = [
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/reranking",
    "/v1/reranking",
    "/score",
    "/v1/score",
    "/predict",
    "/embed",
    "/v1/embeddings",
];

/// The routes among them whose bodies have no query.
const EMBEDDING_ROUTES: [&str; 2] = ["/embed", "/v1/embeddings"];

/// The words of generated texts.
const WORDS: &str = "\
    the of and to in is that for it as was with be by on not he his but at are this have from or had an \
    which you were her all she there would their we him been has when who will more water city river \
    planet battery voltage bread music history engine market island protein orbit language harbour \
    winter contract algorithm mountain";

/// The bodies that are sent.
pub(super) enum Workload {
    /// Random words for one of [`ROUTES`].
    Generated { route: String, texts: usize, words: usize, query_words: usize, seed: u64 },
    /// Bodies in turn, with the pairs of each.
    Bodies(Vec<(String, u64)>),
}

impl Workload {
    /// The bodies of a file: a JSON object, an array of objects, or an object on each line. Fails for a file
    /// without a body, or with other content.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = format!("`--workload {}`", path.display());
        let content =
            fs::read_to_string(path).with_context(|| format!("{name} cannot be read: check the path"))?;
        let content = content.trim_start_matches('\u{feff}');
        let bodies = match serde_json::from_str(content) {
            Ok(Value::Array(bodies)) => bodies,
            Ok(body) => vec![body],
            Err(whole) => {
                let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                let parsed = lines.map(|(number, line)| {
                    let line = serde_json::from_str(line);
                    line.map_err(|error| {
                        anyhow!("{name}, line {}: is not JSON ({error}; as a whole: {whole})", number + 1)
                    })
                });
                parsed.collect::<Result<_, _>>()?
            }
        };
        ensure!(
            !bodies.is_empty(),
            "{name} holds no body: give JSON objects, one on each line or in an array"
        );
        ensure!(
            bodies.iter().all(Value::is_object),
            "{name} holds what is no JSON object: give bodies of requests"
        );
        Ok(Self::Bodies(bodies.iter().map(|body| (body.to_string(), pairs(body))).collect()))
    }

    /// The body of a request, and its pairs.
    pub(super) fn body(&self, number: u64) -> (String, u64) {
        match self {
            Self::Bodies(bodies) => bodies[(number % bodies.len() as u64) as usize].clone(),
            Self::Generated { route, texts, words, query_words, seed } => {
                let mut rng = StdRng::seed_from_u64(seed.rotate_left(32) ^ number);
                let query = sentence(&mut rng, *query_words);
                let documents: Vec<_> = (0..*texts).map(|_| sentence(&mut rng, *words)).collect();
                let body = match route.as_str() {
                    "/rerank" => json!({ "query": query, "texts": documents }),
                    "/predict" => {
                        let pairs: Vec<_> = documents.iter().map(|document| [&query, document]).collect();
                        json!({ "inputs": pairs })
                    }
                    "/embed" => json!({ "inputs": documents }),
                    "/v1/embeddings" => json!({ "model": "bench", "input": documents }),
                    "/score" | "/v1/score" => {
                        json!({ "model": "bench", "text_1": query, "text_2": documents })
                    }
                    _ => json!({ "model": "bench", "query": query, "documents": documents }),
                };
                (body.to_string(), *texts as u64)
            }
        }
    }

    /// The words for it in a report.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Bodies(bodies) => format!("{} in turn", amount(bodies.len(), "body")),
            Self::Generated { texts, words, query_words, .. } => {
                let texts = format!("{} of {}", amount(texts, "text"), amount(words, "word"));
                if self.unit() == "pairs" { format!("{texts} and a query of {query_words}") } else { texts }
            }
        }
    }

    /// The plural of the things in a request: texts where there is no query, else pairs of a query and a
    /// text.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Generated { route, .. } if EMBEDDING_ROUTES.contains(&route.as_str()) => "texts",
            _ => "pairs",
        }
    }
}

fn sentence(rng: &mut StdRng, length: usize) -> String {
    let words: Vec<_> = WORDS.split(' ').collect();
    let chosen: Vec<_> = (0..length).map(|_| words[rng.random_range(0..words.len())]).collect();
    chosen.join(" ")
}

/// The pairs, or texts, of a body that a user wrote.
fn pairs(body: &Value) -> u64 {
    let names = ["texts", "documents", "passages", "inputs", "input", "text_2"];
    let list = names.iter().find_map(|field| body.get(field));
    list.and_then(Value::as_array).map_or(1, |list| list.len() as u64)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn generated_bodies_have_the_wanted_sizes_and_differ() {
        for route in ROUTES {
            let generated = |seed| {
                let route = route.to_owned();
                Workload::Generated { route, texts: 3, words: 7, query_words: 2, seed }
            };
            let workload = generated(5);
            let (body, pairs_of) = workload.body(0);
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((pairs_of, pairs(&body)), (3, 3), "{route}");
            assert!(body.to_string().split_whitespace().count() >= 3 * 7 - 2, "{route}");
            let all: BTreeSet<_> = (0..100).map(|number| workload.body(number).0).collect();
            assert_eq!(all.len(), 100, "{route}");
            assert_eq!(workload.body(7), generated(5).body(7));
            assert_ne!(workload.body(7), generated(6).body(7));
            assert_eq!(workload.unit(), if route.contains("embed") { "texts" } else { "pairs" }, "{route}");
        }
    }

    #[test]
    fn bodies_are_read_from_an_object_an_array_or_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bodies");
        let read = |content: &str| {
            fs::write(&path, content).unwrap();
            Workload::read(&path)
        };
        let (one, two) = (r#"{"passages":["a","b"],"query":"q"}"#, r#"{"inputs":"a"}"#);
        let expected = [(one.to_owned(), 2), (two.to_owned(), 1), (one.to_owned(), 2)];
        for content in [format!("[{one},\n{two}]"), format!("\u{feff}{one}\r\n\n{two}\n")] {
            let workload = read(&content).unwrap();
            assert_eq!([0, 1, 2].map(|number| workload.body(number)), expected, "{content}");
        }
        assert_eq!(read(&format!("{{\n{}", &one[1..])).unwrap().body(9), expected[0]);
        for (content, word) in
            [("", "no body"), ("[]", "no body"), ("[1]", "no JSON object"), ("{}\nx", "line 2")]
        {
            let message = format!("{:#}", read(content).err().unwrap());
            assert!(message.contains(word) && message.contains("--workload"), "{message}");
        }
    }
}
