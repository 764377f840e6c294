//! Memory whose disjoint parts different threads write.
//!
//! Input: a pointer to values. Output: slices and rows of them. What must hold: parts that are in use at the
//! same time do not overlap.

use std::{marker::PhantomData, slice};

/// Memory whose disjoint parts different threads write.
#[derive(Clone, Copy)]
pub(super) struct SharedPointer<T>(pub(super) *mut T);

// SAFETY: the memory is only accessed through `part` and `rows`. Their callers guarantee that parts in use at
// the same time do not overlap.
unsafe impl<T: Send> Send for SharedPointer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    /// `len` values from `start` on.
    ///
    /// # Safety
    ///
    /// The values exist, and nothing else accesses them at the same time.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches for disjoint parts")]
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller upholds the same conditions.
        unsafe { slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

impl SharedPointer<f32> {
    /// `count` rows of `width` values from `start` on, `stride` values apart.
    ///
    /// # Safety
    ///
    /// As of [`part`](Self::part), for each row. Rows do not overlap.
    pub(super) unsafe fn rows<'a>(
        self,
        start: usize,
        stride: usize,
        width: usize,
        count: usize,
    ) -> SpacedRows<'a> {
        // SAFETY: the caller guarantees that the first row exists.
        SpacedRows { first: unsafe { self.0.add(start) }, stride, width, count, values: PhantomData }
    }
}

/// Rows of values, a fixed distance apart.
pub(crate) struct SpacedRows<'a> {
    first: *mut f32,
    stride: usize,
    /// The number of values of a row.
    pub(super) width: usize,
    /// The number of rows.
    pub(super) count: usize,
    values: PhantomData<&'a mut [f32]>,
}

#[cfg(test)]
impl<'a> SpacedRows<'a> {
    /// Rows without a distance.
    pub(super) fn of_slice(values: &'a mut [f32], width: usize) -> Self {
        let (count, values) = (values.len() / width, SharedPointer(values.as_mut_ptr()));
        // SAFETY: the rows are in the slice, which is borrowed for their lifetime.
        unsafe { values.rows(0, width, width, count) }
    }
}

impl SpacedRows<'_> {
    /// Whether each row begins at a multiple of `bytes`.
    pub(super) fn are_aligned(&self, bytes: usize) -> bool {
        self.first.addr().is_multiple_of(bytes) && (self.stride * size_of::<f32>()).is_multiple_of(bytes)
    }

    /// The address of a row's first value.
    #[inline(always)]
    pub(super) fn row_start(&mut self, index: usize) -> *mut f32 {
        debug_assert!(index < self.count);
        self.first.wrapping_add(index * self.stride)
    }
}
