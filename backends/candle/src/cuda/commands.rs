//! The calls of a device in their order, and graphs of calls that come again.
//!
//! A launch takes the host several microseconds (6 next to an H100), and a short pass makes hundreds. Passes
//! of one shape make the same calls with the same addresses, because their tensors find the same places in
//! memory (`memory.rs`). So the calls of a section, from one exchange with the host to the next, are compared
//! with those of earlier sections while they come. As long as they are the same, they wait; if all are, one
//! call starts a graph that does the work of them all. What must hold: the device gets each call once, in the
//! order of the calls, before the section ends.

use candle_core::{Result, Tensor};

/// The fewest calls that are worth a graph.
const MIN_CALLS: usize = 8;
/// Sections that are remembered, with about 100 kB of main memory for each, and as much again for a graph.
const MAX_SECTIONS: usize = 64;

/// What makes the calls.
pub(super) trait CommandDevice {
    /// A call with all its arguments.
    type Command: PartialEq;
    /// A sequence of calls that the device keeps.
    type Graph;

    /// Makes a call.
    fn start(&self, command: &Self::Command) -> Result<()>;

    /// A graph of these calls, none of which is made; `None` if the device makes no graph of them.
    fn make_graph(&self, commands: &[Self::Command]) -> Result<Option<Self::Graph>>;

    /// Makes the calls of a graph.
    fn start_graph(&self, graph: &Self::Graph) -> Result<()>;
}

/// The calls of a section, and earlier sections.
pub(super) struct CommandQueue<D: CommandDevice> {
    device: D,
    /// The section's calls so far.
    commands: Vec<D::Command>,
    /// How many of them the device has.
    started: usize,
    /// Keeps the memory of calls that wait.
    held: Vec<Tensor>,
    /// Earlier sections; the one that came last is last.
    known: Vec<Section<D>>,
    /// The indices of those that begin with the calls so far.
    same: Vec<usize>,
    makes_graphs: bool,
}

struct Section<D: CommandDevice> {
    commands: Vec<D::Command>,
    graph: Option<D::Graph>,
}

impl<D: CommandDevice> CommandQueue<D> {
    pub(super) fn new(device: D) -> Self {
        Self {
            device,
            commands: Vec::new(),
            started: 0,
            held: Vec::new(),
            known: Vec::new(),
            same: Vec::new(),
            makes_graphs: true,
        }
    }

    /// Whether the section has no calls yet.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Makes a call, or keeps it until the section ends. `tensors` are those that it reads and writes.
    pub(super) fn push<'a>(
        &mut self,
        command: D::Command,
        tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<()> {
        if self.commands.is_empty() {
            self.same = (0..self.known.len()).collect();
        }
        let (place, known) = (self.commands.len(), &self.known);
        self.same.retain(|&section| known[section].commands.get(place) == Some(&command));
        self.commands.push(command);
        if self.same.is_empty() {
            return self.start_waiting();
        }
        self.held.extend(tensors.into_iter().cloned());
        Ok(())
    }

    fn start_waiting(&mut self) -> Result<()> {
        while let Some(command) = self.commands.get(self.started) {
            self.device.start(command)?;
            self.started += 1;
        }
        self.held.clear();
        Ok(())
    }

    /// Ends the section: afterwards the device has all calls.
    ///
    /// # Errors
    ///
    /// The device's; then the calls that wait are forgotten.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.commands.is_empty() {
            return Ok(());
        }
        let result = self.finish_section();
        self.forget();
        result
    }

    fn finish_section(&mut self) -> Result<()> {
        let length = self.commands.len();
        let known = self.same.iter().copied().find(|&section| self.known[section].commands.len() == length);
        let mut graph = known.and_then(|section| self.known.remove(section).graph);
        if known.is_some() && graph.is_none() && self.makes_graphs {
            graph = self.device.make_graph(&self.commands)?;
            self.makes_graphs = graph.is_some();
        }
        match &graph {
            Some(graph) => self.device.start_graph(graph)?,
            None => self.start_waiting()?,
        }
        if length >= MIN_CALLS && self.makes_graphs {
            if self.known.len() == MAX_SECTIONS {
                self.known.remove(0);
            }
            self.known.push(Section { commands: std::mem::take(&mut self.commands), graph });
        }
        Ok(())
    }

    /// Begins a new section without the calls that wait: those of a pass that failed.
    pub(super) fn forget(&mut self) {
        self.commands.clear();
        self.started = 0;
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::cell::{Cell, RefCell};

    #[derive(Default)]
    struct Written {
        calls: RefCell<Vec<u32>>,
        graphs: Cell<usize>,
        starts: Cell<usize>,
        has_graphs: bool,
    }

    impl CommandDevice for &Written {
        type Command = u32;
        type Graph = Vec<u32>;

        fn start(&self, command: &u32) -> Result<()> {
            self.calls.borrow_mut().push(*command);
            Ok(())
        }

        fn make_graph(&self, commands: &[u32]) -> Result<Option<Vec<u32>>> {
            self.graphs.set(self.graphs.get() + 1);
            Ok(self.has_graphs.then(|| commands.to_vec()))
        }

        fn start_graph(&self, graph: &Vec<u32>) -> Result<()> {
            self.starts.set(self.starts.get() + 1);
            self.calls.borrow_mut().extend(graph);
            Ok(())
        }
    }

    /// Sections that begin alike, are equal, or are part of another one, on devices with and without graphs.
    #[test]
    fn each_call_is_made_once_and_in_its_order() {
        for has_graphs in [true, false] {
            let device = Written { has_graphs, ..Written::default() };
            let mut queue = CommandQueue::new(&device);
            let mut rng = StdRng::seed_from_u64(91);
            for _ in 0..3000 {
                device.calls.borrow_mut().clear();
                let (length, changed) = (rng.random_range(0..20), rng.random_range(0..60));
                let section: Vec<u32> =
                    (0..length).map(|place| if place == changed { 1000 } else { place }).collect();
                for &command in &section {
                    queue.push(command, []).unwrap();
                }
                queue.flush().unwrap();
                assert_eq!(*device.calls.borrow(), section);
                assert!(queue.commands.is_empty() && queue.held.is_empty());
                assert!(queue.known.len() <= MAX_SECTIONS);
            }
            if has_graphs {
                assert!(device.graphs.get() < 300 && device.starts.get() > 800);
            } else {
                assert_eq!((device.graphs.get(), device.starts.get()), (1, 0));
            }
        }
    }

    #[test]
    fn calls_of_a_new_section_do_not_wait_and_those_of_a_failed_pass_are_forgotten() {
        let device = Written { has_graphs: true, ..Written::default() };
        let mut queue = CommandQueue::new(&device);
        let kept = Tensor::new(&[1_f32], &candle_core::Device::Cpu).unwrap();
        let ask = |queue: &mut CommandQueue<&Written>, last: u32| {
            for command in (0..MIN_CALLS as u32).chain([last]) {
                queue.push(command, [&kept]).unwrap();
            }
        };
        ask(&mut queue, 70);
        assert_eq!((device.calls.borrow().len(), queue.held.len()), (MIN_CALLS + 1, 0));
        queue.flush().unwrap();
        device.calls.borrow_mut().clear();
        ask(&mut queue, 70);
        assert_eq!((device.calls.borrow().len(), queue.held.len()), (0, MIN_CALLS + 1));
        queue.forget();
        ask(&mut queue, 71);
        queue.flush().unwrap();
        assert_eq!(device.calls.borrow().len(), MIN_CALLS + 1);
        assert_eq!(device.starts.get(), 0);
        for starts in 1..3 {
            ask(&mut queue, 70);
            queue.flush().unwrap();
            assert_eq!((device.graphs.get(), device.starts.get()), (1, starts));
        }
    }
}
