//! The machine, for `doctor`.
//!
//! Input: [`Machine`], the text of `/proc/cpuinfo`, and a measurement. Output: a [`MachineReport`], for
//! people and programs.

use std::{collections::BTreeSet, fs, time::Duration};

use serde::Serialize;
use text_embeddings_backend::{self as backend, ArithmeticSpeed, InstructionSet};
use text_embeddings_backend_core::amount;

use crate::{available::megabytes, machine::Machine};

/// For how long products of each kind of arithmetic are measured.
const TIME: Duration = Duration::from_millis(400);

/// The parts of the machine that decide how fast models are.
#[derive(Debug, Serialize)]
pub(super) struct MachineReport {
    /// The CPU's name; empty if the system does not say it.
    cpu: String,
    /// Cores of the CPUs that the system has; absent if it does not say it.
    physical_cores: Option<usize>,
    /// CPUs of the system, hyper-threads included; absent as above.
    cpus: Option<usize>,
    /// Threads that can use all CPU time of this process.
    usable_threads: usize,
    /// The container's limit, in CPUs.
    cpu_quota: Option<f64>,
    /// Compute threads.
    threads: usize,
    /// All that the kernels know and this CPU has, the best last.
    instruction_sets: Vec<&'static str>,
    /// The one that computes.
    instruction_set: &'static str,
    /// Processes that wanted to run in the last minute, in the mean; absent if the system does not say it.
    load: Option<f64>,
    memory_bytes: Option<u64>,
    /// Whose limit that is.
    memory_source: Option<&'static str>,
    speeds: Vec<MeasuredSpeed>,
}

/// Operations per second, in 10⁹, of all threads. A multiplication and its addition are two.
#[derive(Debug, Serialize)]
struct MeasuredSpeed {
    dtype: String,
    peak: f64,
    product: f64,
}

impl MachineReport {
    /// Describes the machine, and measures it for about two seconds.
    pub(super) fn measure_machine(machine: &Machine) -> anyhow::Result<(Self, Vec<ArithmeticSpeed>)> {
        let set = machine.computing_instructions();
        let speeds = backend::measure_machine(set, machine.threads, TIME)?;
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let cpu = Processors::from_cpuinfo(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let report = Self {
            cpu: cpu.name,
            physical_cores: cpu.cores,
            cpus: cpu.cpus,
            usable_threads: machine.cores,
            cpu_quota: machine.cpu_quota,
            threads: machine.threads,
            instruction_sets: InstructionSet::available().into_iter().map(InstructionSet::as_str).collect(),
            instruction_set: set.as_str(),
            load: load.split(' ').next().and_then(|load| load.parse().ok()),
            memory_bytes: machine.memory.map(|memory| memory.bytes),
            memory_source: machine.memory.map(|memory| memory.source),
            speeds: speeds
                .iter()
                .map(|&ArithmeticSpeed { dtype, peak, product }| MeasuredSpeed {
                    dtype: dtype.to_string(),
                    peak: peak / 1e9,
                    product: product / 1e9,
                })
                .collect(),
        };
        Ok((report, speeds))
    }

    /// A sentence for each finding.
    pub(super) fn finding_lines(&self) -> Vec<String> {
        let name = if self.cpu.is_empty() { "unknown" } else { &self.cpu };
        let cores = match (self.physical_cores, self.cpus) {
            (Some(cores), Some(cpus)) if cpus > cores => {
                format!(", {cpus} hyper-threads of {}", amount(cores, "core"))
            }
            (Some(cores), _) => format!(", {}", amount(cores, "core")),
            _ => String::new(),
        };
        let quota = match self.cpu_quota {
            Some(quota) => format!("a quota of {quota:.2} CPUs"),
            None => "no quota of CPU time".to_owned(),
        };
        let threads = amount(self.threads, "thread");
        let mut lines = vec![
            format!("CPU       {name}{cores}"),
            format!("kernels   {} on {threads}; {quota}", self.instruction_set),
        ];
        lines.push(match (self.memory_bytes, self.memory_source) {
            (Some(bytes), Some(source)) => format!("memory    {source} {}", megabytes(bytes)),
            _ => "memory    cannot be read on this system".to_owned(),
        });
        if let Some(load) = self.load {
            let is_busy = load > 0.5 * self.threads as f64;
            let effect = if is_busy { ": speeds and times are those of a busy machine" } else { "" };
            lines.push(format!("load      {load:.1} in the last minute{effect}"));
        }
        for MeasuredSpeed { dtype, peak, product } in &self.speeds {
            lines.push(format!("{dtype:<9} {product:.0} G/s in a large product; the peak is {peak:.0} G/s"));
        }
        lines
    }
}

/// The CPUs of a machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Processors {
    name: String,
    cpus: Option<usize>,
    cores: Option<usize>,
}

impl Processors {
    /// Reads the text of a `/proc/cpuinfo`. On ARM it names neither the CPU nor its cores.
    fn from_cpuinfo(text: &str) -> Self {
        let mut found = Self::default();
        let (mut cpus, mut cores) = (0, BTreeSet::new());
        for cpu in text.split("\n\n") {
            if cpu_field(cpu, "processor").is_none() {
                continue;
            }
            cpus += 1;
            if let Some(core) = cpu_field(cpu, "core id") {
                cores.insert((cpu_field(cpu, "physical id"), core));
            }
            if found.name.is_empty() {
                found.name = cpu_field(cpu, "model name").unwrap_or_default();
            }
        }
        found.cpus = (cpus > 0).then_some(cpus);
        found.cores = (!cores.is_empty()).then_some(cores.len());
        found
    }
}

/// A field of a CPU in `/proc/cpuinfo`.
fn cpu_field(cpu: &str, name: &str) -> Option<String> {
    let mut fields = cpu.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyper_threads_are_told_from_cores() {
        let cpu = |number: u32, socket: u32, core: u32| {
            format!(
                "processor\t: {number}\nmodel name\t: Fast CPU\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags : a\n"
            )
        };
        let found = |cpus: &[String]| Processors::from_cpuinfo(&cpus.join("\n"));
        let expected = |cpus, cores| Processors { name: "Fast CPU".to_owned(), cpus, cores };
        assert_eq!(found(&[cpu(0, 0, 0), cpu(1, 0, 0)]), expected(Some(2), Some(1)));
        assert_eq!(found(&[cpu(0, 0, 0), cpu(1, 0, 1), cpu(2, 1, 0)]), expected(Some(3), Some(3)));
        let arm = Processors::from_cpuinfo("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor : 1\n");
        assert_eq!(arm, Processors { name: String::new(), cpus: Some(2), cores: None });
        assert_eq!(Processors::from_cpuinfo(""), Processors::default());
    }
}
