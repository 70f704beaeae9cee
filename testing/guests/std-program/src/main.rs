//! Is a Rust program with all of `std` at home here? Arguments, environment, standard streams, hash maps, clocks,
//! allocation, panics, exit codes. No SDK.

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant, SystemTime};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = arguments.first().map(String::as_str).unwrap_or_default();
    match mode {
        "args" => println!("{}", arguments[1..].join("|")),
        "env" => {
            let mut variables: Vec<_> = std::env::vars().collect();
            variables.sort();
            println!("{variables:?}");
        }
        "upper" => {
            for line in std::io::stdin().lock().lines() {
                println!("{}", line.expect("input is text").to_uppercase());
            }
        }
        "count" => {
            let mut input = Vec::new();
            std::io::stdin().read_to_end(&mut input).expect("input can be read");
            let mut counts = HashMap::new();
            for byte in &input {
                *counts.entry(*byte).or_insert(0_u64) += 1;
            }
            println!("{} bytes, {} different", input.len(), counts.len());
        }
        "time" => {
            let before = Instant::now();
            std::thread::sleep(Duration::from_millis(3));
            let slept = before.elapsed();
            let year_2020 = Duration::from_secs(1_577_836_800);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            println!("{} {}", slept >= Duration::from_millis(3), now > year_2020);
        }
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(arguments[1].parse().expect("a number")),
        "thread" => println!("{}", std::thread::Builder::new().spawn(|| ()).is_err()),
        "files" => {
            let opened = std::fs::File::open("/etc/passwd").is_err();
            let made = std::fs::write("/tmp/x", "x").is_err();
            let connected = std::net::TcpStream::connect("127.0.0.1:22").is_err();
            println!("{opened} {made} {connected}");
        }
        "grow" => {
            // To half of the memory, by doubling.
            let bytes: usize = arguments[1].parse().expect("a number");
            let mut block = Vec::new();
            while block.len() < bytes {
                block.push(block.len() as u8);
            }
            println!("{}", block.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        "reserve" => {
            let mut block: Vec<u8> = Vec::new();
            println!("{}", block.try_reserve_exact(arguments[1].parse().expect("a number")).is_err());
        }
        "loop" => loop {
            std::hint::spin_loop();
        },
        "flood" => {
            let block = [b'x'; 4096];
            let written = (0..).find(|_| std::io::stdout().write_all(&block).is_err());
            eprintln!("full after {written:?} blocks");
        }
        "sleep" => std::thread::sleep(Duration::from_secs(3600)),
        _ => println!("hello"),
    }
}
