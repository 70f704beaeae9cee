//! The twin of `subscriber.rs` for programs without the feature `tracing`: nothing.

pub(super) fn install() {}
