//! What the benchmarks share, and the physical limit that they compare with.

pub mod raw;
pub mod sweep;
pub mod workload;
