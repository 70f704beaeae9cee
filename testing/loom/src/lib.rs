//! Interleavings of two threads, checked by loom. All of it is in `tests`; `ci/loom` runs it.
