//! A timed pass as tables in Markdown.
//!
//! Input: calls by kind, and the machine's peaks. Output: a row for each kind, a row for the time outside of
//! all operations, and their sum; and a row that says how the pass divides between products with weights,
//! attention and the rest. What must hold: the rows add up to the pass.

use super::machine::MachinePeaks;
use crate::{
    cpu::timed::{ATTENTION, CallCost, CallKind},
    kernels::pack::OperandFormat,
};

/// One pass over all batches of a workload.
pub(super) struct TimedPass {
    /// The length of the pass.
    pub(super) seconds: f64,
    /// The cost of each kind of operation, the longest first.
    pub(super) costs: Vec<(CallKind, CallCost)>,
}

impl CallCost {
    /// Adds another cost to this one.
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.seconds += other.seconds;
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// The least share of the time for which a kind of call has a row of its own.
const SHOWN: f64 = 0.001;

const HEAD: &str =
    "| operation | calls | ms | share | GFLOP | GB at least | G/s | share of the peak | bound by, reached |
|---|--:|--:|--:|--:|--:|--:|--:|---|
";

/// A row for each kind of call, a row for the time outside of all operations, and the sum.
pub(super) fn table(pass: &TimedPass, machine: &MachinePeaks) -> String {
    let (mut all, mut at_peak) = (CallCost::default(), 0.0);
    for (kind, cost) in &pass.costs {
        all.add(*cost);
        at_peak += cost.operations as f64 / machine.peak(kind.format);
    }
    let is_shown = |cost: &CallCost| cost.seconds >= SHOWN * pass.seconds;
    let rows = pass.costs.iter().filter(|(_, cost)| is_shown(cost));
    let rows: String = rows.map(|(kind, cost)| row(kind, cost, pass.seconds, machine)).collect();
    let mut others = CallCost::default();
    pass.costs.iter().filter(|(_, cost)| !is_shown(cost)).for_each(|(_, cost)| others.add(*cost));
    let others = format!(
        "| others | {} | {:.1} | {:.1} % | {:.2} | {:.3} | | | |\n",
        others.calls,
        others.seconds * 1e3,
        100.0 * others.seconds / pass.seconds,
        others.operations as f64 / 1e9,
        others.bytes as f64 / 1e9
    );
    let outside = pass.seconds - all.seconds;
    let outside = format!(
        "| outside of operations | | {:.1} | {:.1} % | | | | | |\n",
        outside * 1e3,
        100.0 * outside / pass.seconds
    );
    let sum = format!(
        "| **all** | {} | {:.1} | 100 % | {:.1} | {:.2} | {:.0} | {:.0} % | |\n",
        all.calls,
        pass.seconds * 1e3,
        all.operations as f64 / 1e9,
        all.bytes as f64 / 1e9,
        all.operations as f64 / 1e9 / pass.seconds,
        100.0 * at_peak / pass.seconds
    );
    [HEAD, &rows, &others, &outside, &sum].concat()
}

fn row(kind: &CallKind, cost: &CallCost, total: f64, machine: &MachinePeaks) -> String {
    let format = match kind.format {
        OperandFormat::F32 => "float32",
        OperandFormat::Bf16 | OperandFormat::WideBf16 => "bfloat16",
        OperandFormat::Int16 => "int16",
        OperandFormat::Int8 => "int8",
    };
    let name = match kind.sizes {
        Some((heads, size)) if kind.name == ATTENTION => format!("attention, {heads} × {size}, {format}"),
        Some((depth, outputs)) => format!("{} {depth} → {outputs}, {format}", kind.name),
        None => kind.name.to_owned(),
    };
    let by_arithmetic = cost.operations as f64 / machine.peak(kind.format) / cost.seconds;
    let by_memory = cost.bytes as f64 / machine.bytes / cost.seconds;
    let bound = if by_arithmetic > by_memory {
        format!("arithmetic, {:.0} %", 100.0 * by_arithmetic)
    } else {
        format!("memory, {:.0} %", 100.0 * by_memory)
    };
    format!(
        "| {name} | {} | {:.1} | {:.1} % | {:.2} | {:.3} | {:.0} | {:.0} % | {bound} |\n",
        cost.calls,
        cost.seconds * 1e3,
        100.0 * cost.seconds / total,
        cost.operations as f64 / 1e9,
        cost.bytes as f64 / 1e9,
        cost.operations as f64 / 1e9 / cost.seconds,
        100.0 * by_arithmetic
    )
}

/// The header of a table of [`split`]s.
pub(super) const SPLIT_HEAD: &str =
    "| | ms | share of the peak | products with weights | attention | its softmax alone | the rest | \
attention's share of the arithmetic |
|---|--:|--:|--:|--:|--:|--:|--:|
";

/// How the pass divides between products with weights, attention and the rest.
pub(super) fn split(name: &str, pass: &TimedPass, machine: &MachinePeaks) -> String {
    let (mut products, mut attention, mut scores, mut at_peak) =
        (CallCost::default(), CallCost::default(), 0.0, 0.0);
    for (kind, cost) in &pass.costs {
        at_peak += cost.operations as f64 / machine.peak(kind.format);
        match kind.sizes {
            Some((_, size)) if kind.name == ATTENTION => {
                attention.add(*cost);
                scores += cost.operations as f64 / (4 * size) as f64;
            }
            Some(_) => products.add(*cost),
            None => {}
        }
    }
    let share = |seconds: f64| 100.0 * seconds / pass.seconds;
    let operations = (products.operations + attention.operations) as f64;
    format!(
        "| {name} | {:.1} | {:.0} % | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.1} % |\n",
        pass.seconds * 1e3,
        share(at_peak),
        share(products.seconds),
        share(attention.seconds),
        share(scores / machine.scores),
        share(pass.seconds - products.seconds - attention.seconds),
        100.0 * attention.operations as f64 / operations
    )
}
