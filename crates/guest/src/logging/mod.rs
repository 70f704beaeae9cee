//! Log records of the program become records of the host.
//!
//! A record is formatted straight into the log buffer, which the host empties whenever it runs. Nothing is allocated.
//! Both facades remember what level is wanted from the program's start on.

#[cfg_attr(not(feature = "log"), path = "facade_off.rs")]
mod facade;
#[cfg_attr(not(feature = "tracing"), path = "subscriber_off.rs")]
mod subscriber;

use crate::rt::boot::Boot;

/// Makes this the program's logger, for each facade that is a feature.
pub(crate) fn install() {
    let level = wanted();
    facade::install(level);
    subscriber::install();
}

/// The highest level that the host wants now: 0 none, 1 error … 5 trace.
fn wanted() -> u32 {
    Boot::get().map_or(0, |boot| boot.info().log_level)
}
