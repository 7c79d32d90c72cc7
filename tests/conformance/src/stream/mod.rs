//! A group of workers that follows a table: the same suite on every store.
//!
//! Give [`stream_suite!`](crate::stream_suite) an async function that starts a store and returns it as
//! [`UnderTest`](crate::store::UnderTest); it becomes one test per case. Shards split and are trimmed in front of the
//! store (`resharded`), since no store does so when asked; everything else, leases above all, is the store's own.

mod following;
mod resharded;
pub mod sharing;
mod suite;
pub mod trimming;

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        crate::listed::assert_every_case_is_listed(
            include_str!("suite.rs"),
            &[("sharing", include_str!("sharing.rs")), ("trimming", include_str!("trimming.rs"))],
        );
    }
}
