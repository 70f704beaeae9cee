//! Memory where there is no sandbox: a program that was started under Linux directly, tests, and what runs before
//! `main`.

pub(super) use std::alloc::System as FALLBACK;
