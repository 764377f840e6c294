//! The memory of packed weights: zeroed pages, which the system allocates at the first write.
//!
//! One thread would zero a vector, page after page, before the packing threads write anything. That takes a
//! third of the time of loading. With a mapping, each thread allocates the pages that it writes. Large pages
//! are not requested: if memory is fragmented, finding them takes longer than everything else together.

use memmap2::MmapMut;
use std::{
    alloc::{Layout, handle_alloc_error},
    slice,
};

/// Words of memory, aligned to a page.
pub(crate) struct Pages(MmapMut);

impl Pages {
    /// `words` words, all zero. If the system has no memory, this ends the process, as every allocation does.
    pub(crate) fn zeroed(words: usize) -> Self {
        // A mapping cannot be empty.
        let Ok(pages) = MmapMut::map_anon((words * size_of::<u32>()).max(1)) else {
            handle_alloc_error(Layout::new::<u32>());
        };
        Self(pages)
    }

    fn len(&self) -> usize {
        self.0.len() / size_of::<u32>()
    }

    /// The words.
    pub(crate) fn as_slice(&self) -> &[u32] {
        // SAFETY: a mapping begins at a page, so it is aligned; it contains `len` words; every bit pattern is
        // a valid word.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), self.len()) }
    }

    /// The words.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: as above, and `self` has the mapping alone.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        for words in [0, 16, 1008, 1024, 1040, 3 << 19] {
            let mut pages = Pages::zeroed(words);
            assert_eq!(pages.as_slice().len(), words);
            assert!(pages.as_slice().as_ptr().cast::<u8>().align_offset(64) == 0);
            assert!(pages.as_slice().iter().all(|&word| word == 0));
            for (index, word) in pages.as_mut_slice().iter_mut().enumerate() {
                *word = index as u32;
            }
            assert!(pages.as_slice().iter().enumerate().all(|(index, &word)| word == index as u32));
        }
    }
}
