//! Buffers that one group of writes leaves to the next.

/// What one group needs at once: a buffer for each partition and shard that it writes to.
const BUFFERS: usize = 64;

/// What a single large group needed is not kept for all later ones.
const LARGEST: usize = 1 << 20;

/// Empty buffers with room in them: few, and of limited size, also where more are given than taken.
#[derive(Default)]
pub(super) struct SpareBuffers(Vec<Vec<u8>>);

impl SpareBuffers {
    /// An empty buffer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= LARGEST && self.0.len() < BUFFERS {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_with_its_room() {
        let mut spare = SpareBuffers::default();
        spare.give(vec![7; 100]);
        let taken = spare.take();
        assert!(taken.is_empty() && taken.capacity() >= 100);
        assert_eq!(spare.take().capacity(), 0, "it was given once");
    }

    #[test]
    fn what_is_never_taken_does_not_add_up() {
        let mut spare = SpareBuffers::default();
        for _ in 0..10 * BUFFERS {
            spare.give(vec![7; 100]);
        }
        spare.give(vec![7; LARGEST + 1]);
        let kept: usize = (0..20 * BUFFERS).map(|_| spare.take().capacity()).sum();
        assert_eq!(kept, BUFFERS * 100);
    }
}
