//! TODO helper
