//! Which small files become one.
//!
//! Files are merged with others of about their size, eight at a time: a row is rewritten once for every factor of eight
//! that its file grows, and a year of small writes leaves some dozens of files and not a million.

/// So many files of a size become one.
const FILES: usize = 8;
/// Files of this size are left alone: large enough to read well, small enough to rewrite when a row of it is replaced.
const FULL_BYTES: u64 = 128 << 20;
/// Up to this size all files count as equally small.
const SMALLEST_BYTES: u64 = 64 << 10;

/// The indexes of files to merge, given all their sizes.
pub(super) fn choose(sizes: &[u64]) -> Option<Vec<usize>> {
    let mut tiers: Vec<Vec<usize>> = Vec::new();
    for (index, size) in sizes.iter().enumerate().filter(|(_, size)| **size < FULL_BYTES) {
        let tier = tier(*size);
        tiers.resize_with(tiers.len().max(tier + 1), Vec::new);
        tiers[tier].push(index);
    }
    tiers.into_iter().find(|files| files.len() >= FILES)
}

fn tier(size: u64) -> usize {
    (size / SMALLEST_BYTES).max(1).ilog(FILES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_few_and_rows_are_rewritten_seldom() {
        let (mut sizes, mut rewritten, mut written) = (Vec::new(), 0, 0);
        for _ in 0..525_600 {
            sizes.push(20 << 10);
            written += 20 << 10;
            while let Some(merged) = choose(&sizes) {
                let size: u64 = merged.iter().map(|index| sizes[*index]).sum();
                rewritten += size;
                for index in merged.into_iter().rev() {
                    sizes.remove(index);
                }
                sizes.push(size);
            }
            assert!(sizes.iter().filter(|size| **size < FULL_BYTES).count() < 40);
        }
        assert!(sizes.len() < 200, "a year of minutes: {}", sizes.len());
        assert!(rewritten < written * 6, "{}", rewritten / written);
    }

    #[test]
    fn full_files_are_left_alone() {
        assert_eq!(choose(&[FULL_BYTES; 20]), None);
        assert_eq!(choose(&[1, 2, 3, FULL_BYTES, 4, 5, 6, 7, 8]), Some(vec![0, 1, 2, 4, 5, 6, 7, 8]));
        assert_eq!(choose(&[1; 7]), None);
    }
}
