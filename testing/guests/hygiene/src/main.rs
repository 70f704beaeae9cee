//! Does anything of one life of a guest reach another? It spreads a nonce over all that it has, and searches all that it
//! can read for one. And it draws random numbers.
#![no_main]

mod chance;
mod search;
mod spread;
mod system;

use coracle_guest::{HostError, function, host};

coracle_guest::main!();

/// The host refuses.
#[host]
fn refuse(text: &str) -> Result<(), HostError>;

/// The same function, by a guest that does not take no for an answer.
#[host(name = "refuse.again")]
fn insist(text: &str);

/// Spreads the nonce that `text` repeats, then ends as it is told to. Returns where the nonce lies now, and the text.
#[function]
fn spread(text: &str, ending: &str) -> Result<(Vec<spread::Place>, String), String> {
    let nonce = spread::words(text);
    let places = spread::everywhere(nonce, text);
    match ending {
        "return" => {}
        "error" => return Err(text.to_owned()),
        "host error" => refuse(text).map_err(|error| error.to_string())?,
        "host error, then panic" => insist(text),
        "panic" => panic!("{text}"),
        "null pointer" => spread::fill(8, 8, nonce),
        "stack overflow" => spread::sink(u64::MAX, nonce),
        "out of memory" => spread::exhaust(nonce),
        "abort" => std::process::abort(),
        "exit" => std::process::exit(7),
        "endless loop" => loop {
            std::hint::black_box(());
        },
        "endless sleep" => system::sleep_for_ever(),
        unknown => return Err(format!("no such ending: {unknown}")),
    }
    Ok((places, text.to_owned()))
}

/// Addresses of 8 bytes of which one of the fingerprints is ([`search::fingerprint`]), at most one in each page, and how
/// many pages of fresh memory are not zero: there is none left afterwards.
///
/// The nonce itself is not in the arguments, so that the search does not find what it searches by.
#[function]
fn search(fingerprints: [u64; 4]) -> (Vec<u64>, u64) {
    (search::everywhere(fingerprints), search::count_stained_fresh_pages())
}

/// All that the host keeps for a guest outside of its memory and tells when asked: the signal table, mask and stack, which
/// descriptors are open, where the break is.
#[function]
fn answers() -> Vec<u64> {
    system::answers()
}

/// Random numbers, four of each source: what that is, and the numbers.
#[function]
fn random_words() -> Vec<(String, [u64; 4])> {
    chance::SOURCES.map(|(what, draw)| (what.to_owned(), draw())).into()
}

/// Which life this is.
#[function]
fn generation() -> u64 {
    coracle_guest::generation()
}
