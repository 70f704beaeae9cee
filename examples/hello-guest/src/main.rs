//! A guest: a function for the host, which calls one of the host's.
#![no_main]

use coracle_guest::{function, host};

/// The host knows.
#[host]
fn time_of_day() -> String;

/// Greets somebody, as the time of day demands.
#[function]
fn greet(name: &str) -> String {
    format!("Good {}, {name}!", time_of_day())
}

coracle_guest::main!();
