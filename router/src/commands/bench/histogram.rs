//! A histogram of latencies as SVG.
//!
//! Input: sorted latencies and percentiles to mark. Output: a picture with a logarithmic axis, which shows a
//! tail as well as the bulk, and follows the viewer's preference for light or dark. What must hold: every
//! latency is in one bar; a bar shows its bounds and its number under the pointer.

use std::{fmt::Write, time::Duration};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 112.0;
const BOTTOM: f64 = 48.0;
const BINS: usize = 48;

const HEAD: &str = "<style>
  text { font: 12px system-ui, sans-serif; fill: #57606a }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328 }
  .background { fill: #ffffff }
  .bar { fill: #2f81f7 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .name { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 }
    .title { fill: #f0f6fc }
    .background { fill: #0d1117 }
    .grid { stroke: #30363d }
    .mark { stroke: #ff7b72 }
    .name { fill: #ff7b72 }
  }
</style>
";

/// The axis of latencies: a range in milliseconds, and where a latency is in it.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// One that holds all, with a little room at both ends.
    fn new(sorted: &[Duration]) -> Self {
        let bound = |latency: Option<&Duration>| milliseconds(latency.copied().unwrap_or_default()).max(1e-3);
        Self { low: bound(sorted.first()) / 1.05, high: bound(sorted.last()) * 1.05 }
    }

    /// From 0 to 1.
    fn share(&self, milliseconds: f64) -> f64 {
        ((milliseconds.max(1e-3) / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    fn x(&self, milliseconds: f64) -> f64 {
        LEFT + self.share(milliseconds) * (WIDTH - LEFT - RIGHT)
    }

    fn bin(&self, milliseconds: f64) -> usize {
        ((self.share(milliseconds) * BINS as f64) as usize).min(BINS - 1)
    }

    /// Where a bin begins.
    fn begin(&self, bin: usize) -> f64 {
        self.low * (self.high / self.low).powf(bin as f64 / BINS as f64)
    }

    /// Round numbers inside, not too many.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let candidates = [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0][..], &[1.0, 2.0, 5.0], &[1.0]].map(
            |steps| -> Vec<f64> {
                let all = decades
                    .clone()
                    .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
                all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
            },
        );
        candidates.into_iter().find(|ticks| ticks.len() <= 9).unwrap_or_default()
    }
}

pub(super) fn milliseconds(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e3
}

/// A number of milliseconds with three digits.
fn label(milliseconds: f64) -> String {
    let digits = (2 - milliseconds.max(1e-9).log10().floor() as i32).clamp(0, 3) as usize;
    let text = format!("{milliseconds:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

/// A latency with a name, which a line in the picture shows.
pub(super) struct Mark {
    pub(super) name: &'static str,
    pub(super) latency: Duration,
}

/// The picture.
pub(super) fn svg(sorted: &[Duration], marks: &[Mark], subtitle: &str) -> String {
    let axis = Axis::new(sorted);
    let mut bins = [0usize; BINS];
    for &latency in sorted {
        bins[axis.bin(milliseconds(latency))] += 1;
    }
    let max_count = bins.iter().copied().max().unwrap_or_default().max(1);
    let base = HEIGHT - BOTTOM;
    let height = |count: usize| (base - TOP) * count as f64 / max_count as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Histogram of latencies\">\n{HEAD}<rect class=\"background\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" rx=\"8\"/>\n"
    );
    text(&mut svg, [LEFT, 28.0], "title", "start", "Latency");
    text(&mut svg, [LEFT, 47.0], "", "start", subtitle);
    for tick in axis.ticks() {
        let x = axis.x(tick);
        line(&mut svg, "grid", [x, TOP], [x, base]);
        text(&mut svg, [x, base + 18.0], "", "middle", &label(tick));
    }
    text(&mut svg, [WIDTH - RIGHT, base + 36.0], "", "end", "milliseconds, logarithmic");
    text(&mut svg, [LEFT - 8.0, TOP + 4.0], "", "end", &max_count.to_string());
    text(&mut svg, [LEFT - 8.0, base], "", "end", "0");
    line(&mut svg, "grid", [LEFT, base], [WIDTH - RIGHT, base]);
    for (bin, &count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (begin, end) = (axis.begin(bin), axis.begin(bin + 1));
        let (x, width) = (axis.x(begin), (axis.x(end) - axis.x(begin) - 1.0).max(1.0));
        let height = height(count).max(1.0);
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{} to {} ms: {count}</title></rect>",
            base - height,
            label(begin),
            label(end)
        );
    }
    for (row, Mark { name, latency }) in marks.iter().enumerate() {
        let x = axis.x(milliseconds(*latency));
        let name = format!("{name} {}", label(milliseconds(*latency)));
        // Each name has a row of its own, because tails lie close together.
        let y = TOP - 6.0 - 13.0 * row as f64;
        let (anchor, beside) = if x > WIDTH - 120.0 { ("end", -4.0) } else { ("start", 4.0) };
        line(&mut svg, "mark", [x, y - 8.0], [x, base]);
        text(&mut svg, [x + beside, y], "name", anchor, &name);
    }
    svg + "</svg>\n"
}

fn text(svg: &mut String, [x, y]: [f64; 2], class: &str, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(svg, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn line(svg: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// The elements of a picture in their order, or nothing if one is not closed where it should be.
    fn elements(svg: &str) -> Option<Vec<String>> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for part in svg.split('<').skip(1) {
            let (tag, _) = part.split_once('>')?;
            if let Some(name) = tag.strip_prefix('/') {
                (open.pop()? == name).then_some(())?;
                continue;
            }
            let name = tag.split([' ', '/']).next()?.to_owned();
            (tag.matches('"').count() % 2 == 0).then_some(())?;
            all.push(name.clone());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        open.is_empty().then_some(all)
    }

    #[test]
    fn every_latency_is_in_a_bar_of_a_well_formed_picture() {
        let mut rng = StdRng::seed_from_u64(3);
        for (count, max_micros) in
            [(0, 1), (1, 1), (2, 1_000_000), (500, 3), (5000, 4_000_000), (40, 40_000_000)]
        {
            let mut latencies: Vec<_> =
                (0..count).map(|_| Duration::from_micros(rng.random_range(0..=max_micros))).collect();
            latencies.sort();
            let marks = [
                Mark { name: "p50", latency: latencies.get(count / 2).copied().unwrap_or_default() },
                Mark { name: "p99", latency: Duration::from_micros(max_micros) },
            ];
            let svg = svg(&latencies, &marks, "a < b & c");
            let elements = elements(&svg).unwrap_or_default();
            assert_eq!(elements.first().map(String::as_str), Some("svg"), "{svg}");
            assert!(svg.contains("a &lt; b &amp; c"));
            let bars: Vec<usize> = svg
                .lines()
                .filter(|line| line.contains("class=\"bar\""))
                .filter_map(|line| line.split_once(" ms: ")?.1.split_once('<')?.0.parse().ok())
                .collect();
            assert_eq!(bars.iter().sum::<usize>(), count, "{svg}");
            assert_eq!(elements.iter().filter(|name| *name == "title").count(), bars.len());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (milliseconds, expected) in [
            (0.05, "0.05"),
            (0.1234, "0.123"),
            (1.0, "1"),
            (12.345, "12.3"),
            (120.0, "120"),
            (4567.8, "4568"),
        ] {
            assert_eq!(label(milliseconds), expected);
        }
    }
}
