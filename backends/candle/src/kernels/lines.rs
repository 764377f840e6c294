//! Memory that begins at a cache line, so that a register of the widest kind is in one line, as stores past the caches need
//! it: the allocator gives large buffers 16 bytes behind a line's beginning.

/// Values of four bytes in a line.
const LINE: usize = 16;

/// A line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line<T>([T; LINE]);

/// Values of four bytes, from the beginning of a line on.
#[derive(Debug, Default)]
pub(crate) struct Lines<T> {
    /// As many as were ever needed: what is used again need not be zeroed again.
    lines: Vec<Line<T>>,
    /// How many values count.
    used: usize,
}

impl<T: Copy + Default> Lines<T> {
    const FULL: () = assert!(size_of::<Line<T>>() == LINE * size_of::<T>());

    /// Changes the number of values. What was never written is zero.
    pub(crate) fn resize(&mut self, values: usize) {
        let lines = values.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([T::default(); LINE]));
        }
        // Last, because more than there are lines for must not count, even after a panic.
        self.used = values;
    }

    /// How many values there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.lines.len() * LINE
    }

    /// The values.
    pub(crate) fn as_slice(&self) -> &[T] {
        const { Self::FULL };
        // SAFETY: a line is exactly its values, and there are lines for `used` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.used) }
    }

    /// The values.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        const { Self::FULL };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.used) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_start_at_a_line_and_keep_what_was_written() {
        let mut lines = Lines::<f32>::default();
        assert!(lines.as_slice().is_empty());
        for values in [1, 15, 16, 17, 1000, 3, 40_000] {
            lines.resize(values);
            let slice = lines.as_mut_slice();
            assert_eq!(slice.len(), values);
            assert!(slice.as_ptr().addr().is_multiple_of(64));
            slice[0] = 5.0;
            assert!(slice[1..].iter().all(|&value| value == 0.0), "{values}");
            assert!(lines.capacity() >= values);
        }
        lines.resize(1);
        assert!(lines.as_slice() == [5.0]);
        assert!(lines.capacity() >= 40_000);
    }
}
