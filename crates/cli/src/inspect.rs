//! `coracle inspect`: what a file is, without running it, and where its parts would lie. Needs no hypervisor.
//!
//! The file is not trusted: the library checks it, and what it says in words is escaped before it is shown.

use std::path::PathBuf;

use coracle::dynamic::Signature;
use coracle::image::Linkage;
use coracle::{FunctionInfo, Image, Interface};
use coracle_abi::{ABI_VERSION, PAGE_BYTES, map};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::function::{describe, section};
use crate::output;
use crate::text::{escape, escape_json, size, table};

/// Shows what a program is, without running it
///
/// Its segments, where they would lie, and, for a Coracle guest, the functions that it offers and needs. Addresses are
/// those in the guest. Needs no hypervisor.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coracle inspect ./hello
  coracle inspect --json ./hello | jq -r '.functions[].signature'")]
pub(crate) struct Args {
    /// Print one JSON object. Addresses and sizes are numbers
    #[arg(long)]
    json: bool,

    /// The program
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// All that there is to show.
struct Report {
    name: String,
    image: Image,
    guest: Option<Guest>,
}

/// What only a Coracle guest has.
struct Guest {
    interface: Interface,
    functions: Vec<Signature>,
    host_functions: Vec<Signature>,
    /// Why this host cannot run it, if it cannot.
    warning: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let report = Report::new(args.file.display().to_string(), Image::from_path(&args.file)?)?;
    if args.json {
        output::print(&format!("{}\n", escape_json(&report.json().to_string())))?;
    } else {
        output::print(&report.text())?;
    }
    Ok(0)
}

impl Report {
    fn new(name: String, image: Image) -> Result<Self, Failure> {
        let signatures = |functions: &[FunctionInfo]| -> Result<Vec<Signature>, Failure> {
            functions.iter().map(|function| Ok(function.typed()?)).collect()
        };
        let guest = match Interface::of(&image)? {
            None => None,
            Some(interface) => Some(Guest {
                functions: signatures(&interface.functions)?,
                host_functions: signatures(&interface.host_functions)?,
                warning: interface.check_version().err().map(|error| error.to_string()),
                interface,
            }),
        };
        Ok(Self { name, image, guest })
    }

    /// Where a link address is in the guest.
    fn at(&self, link_address: u64) -> u64 {
        link_address.wrapping_add(self.image.load_bias())
    }

    fn text(&self) -> String {
        let Self { image, guest, .. } = self;
        let kind = if guest.is_some() { "a Coracle guest" } else { "an ordinary Linux program" };
        let linkage = match image.linkage() {
            Linkage::Fixed => "at fixed addresses",
            Linkage::PositionIndependent => "position-independent",
        };
        let mut out = format!("{}: {kind}\n", escape(&self.name));
        if let Some(Guest { warning: Some(warning), .. }) = guest {
            out += &format!("warning: {}\n", escape(warning));
        }
        let mut facts = vec![
            ["file".to_owned(), format!("{}, static x86-64 ELF, {linkage}", size(image.bytes().len() as u64))],
            ["entry".to_owned(), self.place(image.entry())],
        ];
        if let Some(Guest { interface, .. }) = guest {
            facts.push(["ABI".to_owned(), format!("{} (this host: {ABI_VERSION})", interface.abi_version)]);
            facts.push(["SDK".to_owned(), escape(&interface.sdk)]);
        }
        out += &table("  ", &facts);
        out += "\nSegments\n";
        out += &table("  ", &self.segment_rows());
        out += "\nMemory map\n";
        out += &table("  ", &self.map_rows());
        if let Some(Guest { functions, host_functions, .. }) = guest {
            out += &section("Functions", functions);
            out += &section("Host functions it needs", host_functions);
        }
        out
    }

    /// An address, and the function there.
    fn place(&self, link_address: u64) -> String {
        match self.image.symbol(link_address) {
            Some(symbol) => format!("{:#x} {}", self.at(link_address), escape(&symbol.name)),
            None => format!("{:#x}", self.at(link_address)),
        }
    }

    fn segment_rows(&self) -> Vec<[String; 4]> {
        let mut rows = vec![["address", "in memory", "in file", "rights"].map(str::to_owned)];
        rows.extend(self.image.segments().iter().map(|segment| {
            [
                format!("{:#x}", self.at(segment.address)),
                size(segment.memory_bytes),
                size(segment.file.len() as u64),
                segment.rights.to_string(),
            ]
        }));
        rows
    }

    /// From low to high addresses. Only the image's place is the file's; what depends on a sandbox's settings is given
    /// by its bounds.
    fn map_rows(&self) -> Vec<[String; 3]> {
        let extent = self.image.extent();
        let (start, end) = (self.at(extent.start), self.at(extent.end));
        let top = match self.guest {
            Some(_) => "heap, upwards; transport, stack and its guard, downwards",
            None => "stack and its guard, downwards",
        };
        let mut places = vec![
            (0, map::LOWEST, "never mapped: null pointers"),
            (start, end, "the image"),
            (map::IMAGE_END, map::TRANSPORT_END, top),
            (map::CONTROL_START, map::WINDOW_END, "the host's pages, among them:"),
            (map::DOORBELL, map::DOORBELL + PAGE_BYTES, "  the doorbell"),
            (map::BOOT_PAGE, map::BOOT_PAGE + PAGE_BYTES, "  the boot page"),
        ];
        if (map::WINDOW_START..map::IMAGE_END).contains(&start) {
            places.push((end, map::IMAGE_END, "brk, upwards"));
            places.push((map::LOWEST, map::MMAP_END, "mmap, downwards"));
        } else {
            places.push((end, map::MMAP_END, "brk, upwards; mmap, downwards"));
        }
        places.sort_by_key(|(start, ..)| *start);
        places
            .into_iter()
            .map(|(start, end, what)| [format!("{start:#x}"), format!("{end:#x}"), what.to_owned()])
            .collect()
    }

    fn json(&self) -> Value {
        let Self { name, image, guest } = self;
        let segments: Vec<Value> = image
            .segments()
            .iter()
            .map(|segment| {
                json!({
                    "address": self.at(segment.address),
                    "memory_bytes": segment.memory_bytes,
                    "file_bytes": segment.file.len(),
                    "rights": segment.rights.to_string(),
                })
            })
            .collect();
        let extent = image.extent();
        let mut report = json!({
            "file": name,
            "file_bytes": image.bytes().len(),
            "kind": if guest.is_some() { "guest" } else { "program" },
            "linkage": match image.linkage() {
                Linkage::Fixed => "fixed",
                Linkage::PositionIndependent => "position-independent",
            },
            "load_bias": image.load_bias(),
            "entry": self.at(image.entry()),
            "segments": segments,
            "memory_map": {
                "lowest": map::LOWEST,
                "image_start": self.at(extent.start),
                "image_end": self.at(extent.end),
                "image_limit": map::IMAGE_END,
                "mmap_end": map::MMAP_END,
                "stack_and_transport_end": map::TRANSPORT_END,
                "control_start": map::CONTROL_START,
                "control_end": map::WINDOW_END,
                "doorbell": map::DOORBELL,
                "boot_page": map::BOOT_PAGE,
            },
            "host_abi_version": ABI_VERSION,
            "runnable": guest.as_ref().is_none_or(|guest| guest.warning.is_none()),
        });
        if let Some(Guest { interface, functions, host_functions, warning }) = guest {
            report["abi_version"] = interface.abi_version.into();
            report["sdk"] = interface.sdk.as_str().into();
            report["functions"] = functions_json(&interface.functions, functions);
            report["host_functions"] = functions_json(&interface.host_functions, host_functions);
            report["warning"] = warning.as_deref().into();
        }
        report
    }
}

fn functions_json(infos: &[FunctionInfo], signatures: &[Signature]) -> Value {
    infos.iter().zip(signatures).map(|(info, signature)| describe(&info.signature, signature)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coracle::fake::FakeGuest;

    fn report() -> Report {
        let guest = FakeGuest::new()
            .function("add", |(a, b): (u32, u32)| Ok::<_, String>(a.wrapping_add(b)))
            .needs::<String, ()>("print");
        Report::new("sum".into(), guest.image()).unwrap()
    }

    #[test]
    fn a_guest_is_described_in_words() {
        let text = report().text();
        assert!(text.starts_with("sum: a Coracle guest\n"), "{text}");
        for part in ["0x400000", "r-x", "\nFunctions\n  add(u32, u32) -> u32\n", "needs\n  print(string) -> ()\n"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_guest_is_described_in_json() {
        let json = report().json();
        assert_eq!((&json["kind"], &json["runnable"]), (&json!("guest"), &json!(true)));
        assert_eq!(json["functions"][0]["parameters"][1], json!({ "name": null, "type": "u32" }));
        assert_eq!(json["host_functions"][0]["signature"], "print(string) -> ()");
        assert_eq!(json["segments"][0]["address"], 0x40_0000);
    }

    #[test]
    fn a_guest_of_another_abi_is_shown_with_a_warning() {
        let image = report().image;
        let mut bytes = image.bytes().to_vec();
        let version = [&ABI_VERSION.to_le_bytes()[..], b"fake"].concat();
        let at = bytes.windows(version.len()).position(|window| window == version).unwrap();
        bytes[at..at + 4].copy_from_slice(&9u32.to_le_bytes());
        let report = Report::new("later".into(), Image::from_bytes(bytes).unwrap()).unwrap();
        assert!(report.text().contains("warning: the guest was built for Coracle ABI 9"), "{}", report.text());
        assert_eq!((&report.json()["runnable"], &report.json()["abi_version"]), (&json!(false), &json!(9)));
    }

    #[test]
    fn the_memory_map_goes_upwards() {
        let rows = report().map_rows();
        let start = |row: &[String; 3]| u64::from_str_radix(&row[0][2..], 16).unwrap();
        assert!(rows.is_sorted_by_key(start), "{rows:?}");
    }
}
