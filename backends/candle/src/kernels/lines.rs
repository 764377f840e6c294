//! Cache-line-aligned buffers. Non-temporal stores need 64-byte alignment, and the allocator gives large
//! buffers only 16.

/// The number of four-byte values in a cache line.
const LINE: usize = 16;

/// A cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine<T>([T; LINE]);

/// Four-byte values, beginning at a cache line.
#[derive(Debug, Default)]
pub(crate) struct CacheLines<T> {
    /// All lines that were ever needed. Reused lines are not zeroed again.
    lines: Vec<CacheLine<T>>,
    /// The number of values in use.
    used: usize,
}

impl<T: Copy + Default> CacheLines<T> {
    const FULL: () = assert!(size_of::<CacheLine<T>>() == LINE * size_of::<T>());

    /// Changes the number of values. Values that were never written are zero.
    pub(crate) fn resize(&mut self, values: usize) {
        let lines = values.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine([T::default(); LINE]));
        }
        // Last, so that `used` never exceeds the lines, even after a panic.
        self.used = values;
    }

    /// The number of values that fit the lines.
    pub(crate) fn capacity(&self) -> usize {
        self.lines.len() * LINE
    }

    /// The values.
    pub(crate) fn as_slice(&self) -> &[T] {
        const { Self::FULL };
        // SAFETY: a line consists of exactly its values, and there are lines for `used` values.
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
        let mut lines = CacheLines::<f32>::default();
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
