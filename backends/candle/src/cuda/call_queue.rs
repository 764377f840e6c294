//! The calls of a device in their order, and graphs of calls that come again.
//!
//! A launch takes the host several microseconds (6 next to an H100), and a short pass makes hundreds. Passes
//! of one shape make the same calls with the same addresses, because their tensors find the same places in
//! memory (`memory.rs`). So the calls of a section, from one exchange with the host to the next, are compared
//! with earlier sections while they come. As long as they are the same, they wait for each other; as soon as
//! there are enough of them, one call starts a graph that does their work, and the device computes while the
//! next ones come. What must hold: the device gets each call once, in their order, before the section ends.

use candle_core::{Result, Tensor};
use std::collections::{BTreeMap, btree_map::Entry};

/// The fewest calls that are worth a graph.
const MIN_CALLS: usize = 8;
/// The calls of a graph. With more, the device waits longer for the first ones.
const GRAPH_CALLS: usize = 32;
/// Sections that are remembered, with about 100 kB of main memory for each.
const MAX_SECTIONS: usize = 64;

/// A device that takes calls.
pub(super) trait CallDevice {
    /// A call with all its arguments.
    type Call: PartialEq;
    /// A sequence of calls that the device keeps.
    type Graph;

    /// Makes a call.
    fn start_call(&self, call: &Self::Call) -> Result<()>;

    /// Makes a graph of these calls, but not the calls; `None` if the device makes no graph of them.
    fn make_graph(&self, calls: &[Self::Call]) -> Result<Option<Self::Graph>>;

    /// Makes the calls of a graph.
    fn start_graph(&self, graph: &Self::Graph) -> Result<()>;
}

/// The calls of a section, and earlier sections.
pub(super) struct CallQueue<D: CallDevice> {
    device: D,
    /// The section's calls so far.
    calls: Vec<D::Call>,
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

struct Section<D: CallDevice> {
    calls: Vec<D::Call>,
    /// By the index of its first call: the graph of as many calls as a graph has, or of the last ones.
    graphs: BTreeMap<usize, D::Graph>,
}

impl<D: CallDevice> CallQueue<D> {
    pub(super) fn new(device: D) -> Self {
        Self {
            device,
            calls: Vec::new(),
            started: 0,
            held: Vec::new(),
            known: Vec::new(),
            same: Vec::new(),
            makes_graphs: true,
        }
    }

    /// Whether the section has no calls yet.
    #[cfg(all(test, feature = "cuda"))]
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Makes a call, or keeps it until there are enough for a graph or the section ends. `tensors` are those
    /// that it reads and writes.
    pub(super) fn push_call<'a>(
        &mut self,
        call: D::Call,
        tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<()> {
        if self.calls.is_empty() {
            self.same = (0..self.known.len()).collect();
        }
        let (place, known) = (self.calls.len(), &self.known);
        self.same.retain(|&section| known[section].calls.get(place) == Some(&call));
        self.calls.push(call);
        let Some(&section) = self.same.last() else { return self.start_waiting() };
        self.held.extend(tensors.into_iter().cloned());
        if self.calls.len() - self.started == GRAPH_CALLS { self.start_graph(section) } else { Ok(()) }
    }

    /// Makes the calls that wait, one by one.
    fn start_waiting(&mut self) -> Result<()> {
        while let Some(call) = self.calls.get(self.started) {
            self.device.start_call(call)?;
            self.started += 1;
        }
        self.held.clear();
        Ok(())
    }

    /// Makes the calls that wait by a graph. They are the same as in this earlier section.
    fn start_graph(&mut self, section: usize) -> Result<()> {
        let waiting = &self.calls[self.started..];
        if waiting.len() < MIN_CALLS {
            return self.start_waiting();
        }
        let graph = match self.known[section].graphs.entry(self.started) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let Some(graph) = self.device.make_graph(waiting)? else {
                    self.makes_graphs = false;
                    self.known.clear();
                    self.same.clear();
                    return self.start_waiting();
                };
                place.insert(graph)
            }
        };
        self.device.start_graph(graph)?;
        self.started = self.calls.len();
        self.held.clear();
        Ok(())
    }

    /// Ends the section: afterwards the device has all calls.
    /// If that fails, the calls that wait are forgotten.
    pub(super) fn end_section(&mut self) -> Result<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let result = self.finish_section();
        self.forget_calls();
        result
    }

    fn finish_section(&mut self) -> Result<()> {
        let length = self.calls.len();
        let known = self.same.iter().copied().rfind(|&section| self.known[section].calls.len() == length);
        match known {
            Some(section) => self.start_graph(section)?,
            None => self.start_waiting()?,
        }
        if length < MIN_CALLS || !self.makes_graphs {
            return Ok(());
        }
        let section = match known {
            Some(section) => self.known.remove(section),
            None => Section { calls: std::mem::take(&mut self.calls), graphs: BTreeMap::new() },
        };
        if self.known.len() == MAX_SECTIONS {
            self.known.remove(0);
        }
        self.known.push(section);
        Ok(())
    }

    /// Begins a new section without the calls that wait: a pass failed.
    pub(super) fn forget_calls(&mut self) {
        self.calls.clear();
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

    #[derive(Debug, Default)]
    struct Written {
        made: RefCell<Vec<u32>>,
        graphs: Cell<usize>,
        starts: Cell<usize>,
        has_graphs: bool,
    }

    impl CallDevice for &Written {
        type Call = u32;
        type Graph = Vec<u32>;

        fn start_call(&self, call: &u32) -> Result<()> {
            self.made.borrow_mut().push(*call);
            Ok(())
        }

        fn make_graph(&self, calls: &[u32]) -> Result<Option<Vec<u32>>> {
            self.graphs.set(self.graphs.get() + 1);
            Ok(self.has_graphs.then(|| calls.to_vec()))
        }

        fn start_graph(&self, graph: &Vec<u32>) -> Result<()> {
            self.starts.set(self.starts.get() + 1);
            self.made.borrow_mut().extend(graph);
            Ok(())
        }
    }

    /// Sections that begin alike, are equal, or are part of another one, on devices with and without graphs.
    #[test]
    fn each_call_is_made_once_and_in_its_order() {
        for has_graphs in [true, false] {
            let device = Written { has_graphs, ..Written::default() };
            let mut queue = CallQueue::new(&device);
            let mut rng = StdRng::seed_from_u64(91);
            for _ in 0..3000 {
                device.made.borrow_mut().clear();
                let (length, changed) = (rng.random_range(0..6) * 18, rng.random_range(0..12) * 25);
                let section: Vec<u32> =
                    (0..length).map(|place| if place == changed { 1000 } else { place }).collect();
                for &call in &section {
                    queue.push_call(call, []).unwrap();
                }
                queue.end_section().unwrap();
                assert_eq!(*device.made.borrow(), section);
                assert!(queue.calls.is_empty() && queue.held.is_empty());
                assert!(queue.known.len() <= MAX_SECTIONS);
            }
            if has_graphs {
                assert!(device.graphs.get() < 60 && device.starts.get() > 4000, "{device:?}");
            } else {
                assert_eq!((device.graphs.get(), device.starts.get()), (1, 0));
                assert!(queue.known.is_empty());
            }
        }
    }

    #[test]
    fn calls_of_a_new_section_do_not_wait_and_those_of_a_failed_pass_are_forgotten() {
        let device = Written { has_graphs: true, ..Written::default() };
        let mut queue = CallQueue::new(&device);
        let kept = Tensor::new(&[1_f32], &candle_core::Device::Cpu).unwrap();
        let ask = |queue: &mut CallQueue<&Written>, last: u32| {
            for call in (0..MIN_CALLS as u32).chain([last]) {
                queue.push_call(call, [&kept]).unwrap();
            }
        };
        ask(&mut queue, 70);
        assert_eq!((device.made.borrow().len(), queue.held.len()), (MIN_CALLS + 1, 0));
        queue.end_section().unwrap();
        device.made.borrow_mut().clear();
        ask(&mut queue, 70);
        assert_eq!((device.made.borrow().len(), queue.held.len()), (0, MIN_CALLS + 1));
        queue.forget_calls();
        ask(&mut queue, 71);
        queue.end_section().unwrap();
        assert_eq!(device.made.borrow().len(), MIN_CALLS + 1);
        assert_eq!(device.starts.get(), 0);
        for starts in 1..3 {
            ask(&mut queue, 70);
            queue.end_section().unwrap();
            assert_eq!((device.graphs.get(), device.starts.get()), (1, starts));
        }
    }

    #[test]
    fn the_device_computes_while_the_rest_of_a_long_section_comes() {
        let device = Written { has_graphs: true, ..Written::default() };
        let mut queue = CallQueue::new(&device);
        let calls = 2 * GRAPH_CALLS as u32 + 9;
        for round in 0..3 {
            for call in 0..calls {
                queue.push_call(call, []).unwrap();
                let waiting = if round == 0 { 0 } else { (call as usize + 1) % GRAPH_CALLS };
                assert_eq!(device.made.borrow().len(), call as usize + 1 - waiting);
            }
            queue.end_section().unwrap();
            assert_eq!(*device.made.borrow(), (0..calls).collect::<Vec<_>>());
            device.made.borrow_mut().clear();
            assert_eq!((device.graphs.get(), device.starts.get()), (3 * round.min(1), 3 * round));
        }
    }
}
