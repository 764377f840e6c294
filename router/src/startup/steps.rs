//! How long the steps of a start took.

use std::{fmt, time::Instant};

/// The time of each step of the start, for the log.
pub(super) struct StepTimes {
    start: Instant,
    /// The name of each step, and when it ended.
    done: Vec<(&'static str, Instant)>,
}

impl StepTimes {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), done: Vec::new() }
    }

    pub(super) fn done(&mut self, step: &'static str) {
        self.done.push((step, Instant::now()));
    }
}

impl fmt::Display for StepTimes {
    /// `2.4 s (files 0.1, weights 2.3)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.start;
        let mut steps = Vec::with_capacity(self.done.len());
        for &(step, done) in &self.done {
            steps.push(format!("{step} {:.1}", (done - last).as_secs_f32()));
            last = done;
        }
        write!(formatter, "{:.1} s ({})", (last - self.start).as_secs_f32(), steps.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_step_is_shown_with_its_own_time() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let steps = StepTimes { start, done: vec![("files", after(120)), ("weights", after(2_400))] };
        assert_eq!(steps.to_string(), "2.4 s (files 0.1, weights 2.3)");
    }
}
