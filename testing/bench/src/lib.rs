//! The physical limit that the benchmarks compare with: the same ioctls, and nothing of the library.

pub mod raw;
