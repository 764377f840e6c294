//! The forecasts of `doctor` for a terminal of 80 columns.

use super::forecast::{Choice, Forecast};
use crate::available::megabytes;

/// The widest name of a model in the table.
const NAME: usize = 40;

/// A block for a model: its name, a sentence, then a line for each kind of arithmetic.
pub(super) fn model_lines(forecast: &Forecast) -> Vec<String> {
    let advice = match &forecast.flags {
        Some(flags) if flags.is_empty() => "fits without a flag".to_owned(),
        Some(flags) => format!("fits with `{flags}`"),
        None => "does not fit into the memory".to_owned(),
    };
    let Forecast { model, parameters, .. } = forecast;
    let mut lines = vec![model.clone(), format!("  {} parameters; {advice}", count_words(*parameters))];
    for choice in &forecast.choices {
        lines.push(format!("  {}", choice_cells(choice, forecast.task.unit_name())));
    }
    lines
}

/// A line of a table of many models.
pub(super) fn table_row(forecast: &Forecast) -> String {
    let name: String = forecast.model.chars().take(NAME).collect();
    match forecast.chosen {
        Some(chosen) => {
            let choice = &forecast.choices[chosen];
            let Choice { dtype, memory_bytes, .. } = choice;
            let [rate, time] = speed_words(choice);
            format!("{name:<NAME$} {dtype:<8} {:>8} {rate:>8} {time:>8}", megabytes(*memory_bytes))
        }
        None => format!("{name:<NAME$} does not fit"),
    }
}

/// The head of such a table.
pub(super) fn table_head() -> String {
    format!("{:<NAME$} {:<8} {:>8} {:>8} {:>8}", "", "dtype", "memory", "per s", "100 take")
}

fn choice_cells(choice: &Choice, unit: &str) -> String {
    let Choice { dtype, memory_bytes, fits, .. } = choice;
    let [rate, time] = speed_words(choice);
    let fits = if *fits { "fits" } else { "does not fit" };
    let measured = choice.measured_per_second;
    let measured = measured.map_or_else(String::new, |rate| format!("; measured {}/s", three_digits(rate)));
    let memory = megabytes(*memory_bytes);
    format!("{dtype:<8} {memory:>9}, {fits}: {rate} {unit}/s, 100 take {time}{measured}")
}

/// Per second, and the time of 100.
fn speed_words(choice: &Choice) -> [String; 2] {
    match (choice.per_second, choice.ms_for_100) {
        (Some(rate), Some(ms)) if ms < 1e4 => [three_digits(rate), format!("{ms:.0} ms")],
        (Some(rate), Some(ms)) if ms < 6e5 => [three_digits(rate), format!("{:.0} s", ms / 1e3)],
        (Some(rate), Some(ms)) => [three_digits(rate), format!("{:.0} min", ms / 6e4)],
        _ => ["–".to_owned(), "–".to_owned()],
    }
}

/// A number with about three digits.
fn three_digits(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn count_words(parameters: f64) -> String {
    if parameters >= 1e9 {
        format!("{:.1} billion", parameters / 1e9)
    } else {
        format!("{:.1} million", parameters / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::forecast::Task;

    #[test]
    fn a_forecast_fits_80_columns() {
        let choice = Choice {
            dtype: "bfloat16".to_owned(),
            memory_bytes: 12_345_678_901,
            fits: true,
            per_second: Some(0.016),
            ms_for_100: Some(6.25e6),
            measured_per_second: None,
            limits: String::new(),
        };
        let misfit = Choice { dtype: "int8".to_owned(), fits: false, ..choice.clone() };
        let mut forecast = Forecast {
            model: "Alibaba-NLP/gte-reranker-modernbert-base".to_owned(),
            task: Task::Rerank,
            parameters: 149e6,
            fits: true,
            flags: Some("--dtype bfloat16".to_owned()),
            chosen: Some(0),
            choices: vec![choice, misfit],
        };
        assert_eq!(
            model_lines(&forecast),
            [
                "Alibaba-NLP/gte-reranker-modernbert-base",
                "  149.0 million parameters; fits with `--dtype bfloat16`",
                "  bfloat16  12346 MB, fits: 0.02 pairs/s, 100 take 104 min",
                "  int8      12346 MB, does not fit: 0.02 pairs/s, 100 take 104 min",
            ]
        );
        for line in [table_head(), table_row(&forecast)] {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(
            table_row(&forecast).ends_with("bfloat16 12346 MB     0.02  104 min"),
            "{}",
            table_row(&forecast)
        );
        forecast.chosen = None;
        assert!(table_row(&forecast).ends_with("-base does not fit"), "{}", table_row(&forecast));
        for (value, expected) in [(0.016, "0.02"), (9.94, "9.9"), (123.4, "123")] {
            assert_eq!(three_digits(value), expected);
        }
    }
}
