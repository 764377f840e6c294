//! The results of a load: rates, percentiles, errors.
//!
//! Input: a [`LoadResult`]. Output: text, JSON, a histogram. What must hold: a percentile is a latency that
//! was measured: the smallest one with at least that share of all latencies at or below it.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;
use text_embeddings_backend_core::amount;

use super::{
    histogram::{self, Mark, milliseconds},
    load::LoadResult,
};

/// The percentiles of the latencies: the name and the share of each.
const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

#[derive(Serialize)]
struct JsonReport<'a> {
    mode: &'static str,
    concurrency: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    seconds: f64,
    requests: u64,
    succeeded: usize,
    errors: &'a BTreeMap<String, u64>,
    late: u64,
    pairs: u64,
    tokens: Option<u64>,
    requests_per_second: f64,
    pairs_per_second: f64,
    tokens_per_second: Option<f64>,
    latency_ms: BTreeMap<&'static str, f64>,
}

impl LoadResult {
    pub(super) fn error_words(&self) -> String {
        let errors: Vec<_> =
            self.errors.iter().map(|(class, times)| format!("{class} ({})", amount(times, "time"))).collect();
        if errors.is_empty() { "none".to_owned() } else { errors.join(", ") }
    }

    /// The histogram as SVG.
    pub(super) fn histogram(&self) -> String {
        let marks =
            PERCENTILES.map(|(name, share)| Mark { name, latency: percentile(&self.latencies, share) });
        let rates = format!(
            "{}, {:.1}/s, {}",
            amount(self.latencies.len(), "request"),
            self.numbers().requests_per_second,
            self.what
        );
        histogram::svg(&self.latencies, &marks, &rates)
    }

    fn numbers(&self) -> JsonReport<'_> {
        let Self { elapsed, latencies, pairs, tokens, errors, late, concurrency, rate, .. } = self;
        let seconds = elapsed.as_secs_f64();
        let mut latency_ms: BTreeMap<_, _> = PERCENTILES
            .into_iter()
            .map(|(name, share)| (name, milliseconds(percentile(latencies, share))))
            .collect();
        latency_ms.insert("min", milliseconds(latencies.first().copied().unwrap_or_default()));
        latency_ms.insert("max", milliseconds(latencies.last().copied().unwrap_or_default()));
        JsonReport {
            mode: if rate.is_some() { "open" } else { "closed" },
            concurrency: *concurrency,
            rate: *rate,
            seconds,
            requests: latencies.len() as u64 + errors.values().sum::<u64>(),
            succeeded: latencies.len(),
            errors,
            late: *late,
            pairs: *pairs,
            tokens: *tokens,
            requests_per_second: per_second(latencies.len() as u64, seconds),
            pairs_per_second: per_second(*pairs, seconds),
            tokens_per_second: tokens.map(|tokens| per_second(tokens, seconds)),
            latency_ms,
        }
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        // Numbers and strings only: nothing that could fail.
        serde_json::to_string_pretty(&self.numbers()).unwrap_or_default()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let numbers = self.numbers();
        let how = match numbers.rate {
            Some(rate) => format!("{rate} due each second, at most {} at a time", numbers.concurrency),
            None => format!("{} at a time", numbers.concurrency),
        };
        let mut text = format!(
            "{} ({}) in {:.1} s, {how}\n\n",
            amount(numbers.requests, "request"),
            self.what,
            numbers.seconds
        );
        let mut row = |name: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<12}{value}");
        };
        row("requests/s", format!("{:>10.1}", numbers.requests_per_second));
        row(&format!("{}/s", self.unit), format!("{:>10.1}", numbers.pairs_per_second));
        row(
            "tokens/s",
            numbers
                .tokens_per_second
                .map_or_else(|| format!("{:>10}", "unknown"), |rate| format!("{rate:>10.1}")),
        );
        for name in ["p50", "p90", "p95", "p99", "max"] {
            row(name, format!("{:>10.1} ms", numbers.latency_ms[name]));
        }
        row("errors", format!("{:>10}", self.error_words()));
        if numbers.late > 0 {
            let _ = write!(
                text,
                "\nSent more than 20 ms late, because no client was free: {}; the server is behind, or \
                 `--concurrency` is too low\n",
                amount(numbers.late, "request")
            );
        }
        text
    }
}

/// The least of the sorted latencies that this share of them is not above; 0 if there are none.
pub(super) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use serde_json::{Value, json};

    #[test]
    fn a_percentile_is_the_least_latency_that_so_many_are_not_above() {
        let mut rng = StdRng::seed_from_u64(5);
        for count in [1, 2, 3, 10, 99, 100, 101, 1000] {
            let mut latencies: Vec<_> =
                (0..count).map(|_| Duration::from_millis(rng.random_range(0..300))).collect();
            latencies.sort();
            for (_, share) in PERCENTILES {
                // By its definition: in whole numbers, and over all candidates.
                let thousandths = (share * 1000.0).round() as usize;
                let expected = latencies.iter().find(|candidate| {
                    let not_above = latencies.iter().filter(|latency| latency <= candidate).count();
                    not_above * 1000 >= count * thousandths
                });
                assert_eq!(percentile(&latencies, share), *expected.unwrap(), "{count} {share}");
            }
        }
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn rates_are_of_what_succeeded() {
        let report = LoadResult {
            what: "2 texts".to_owned(),
            unit: "pairs",
            concurrency: 4,
            elapsed: Duration::from_secs(2),
            latencies: [10, 20, 30].map(Duration::from_millis).to_vec(),
            pairs: 6,
            tokens: Some(50),
            errors: [("429".to_owned(), 2), ("timeout".to_owned(), 1)].into(),
            late: 5,
            rate: Some(3.0),
            last_failure: None,
        };
        let numbers: Value = serde_json::from_str(&report.json()).unwrap();
        let expected = json!({
            "mode": "open", "concurrency": 4, "rate": 3.0, "seconds": 2.0, "requests": 6, "succeeded": 3,
            "errors": { "429": 2, "timeout": 1 }, "late": 5, "pairs": 6, "tokens": 50, "requests_per_second": 1.5,
            "pairs_per_second": 3.0, "tokens_per_second": 25.0,
            "latency_ms": { "min": 10.0, "p50": 20.0, "p90": 30.0, "p95": 30.0, "p99": 30.0, "max": 30.0 },
        });
        assert_eq!(numbers, expected);
        let text = report.text();
        for part in [
            "6 requests",
            "pairs/s            3.0",
            "p50               20.0 ms",
            "429 (2 times), timeout (1 time)",
            "20 ms late, because no client was free: 5 requests;",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
