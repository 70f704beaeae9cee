//! `coracle doctor`: what this machine can do, how fast, and what to do about what it cannot.
//!
//! [`Findings`] is what was found, [`advice`] and the two ways to show it are pure functions of that.

use std::fs::{self, OpenOptions};
use std::time::Duration;

use coracle::{CpuTemplate, Kvm};
use coracle_abi::ABI_VERSION;
use coracle_vm::kvm::KvmReport;
use serde_json::{Value, json};

use crate::doorbell::{self, RoundTrip};
use crate::failure::Failure;
use crate::output;
use crate::text::{escape, escape_json, table, wrap};

const DEVICE: &str = "/dev/kvm";

/// A doorbell that takes longer than this, where the processor has virtualization of its own, is not on bare metal.
const SLOW_FOR_HARDWARE: Duration = Duration::from_micros(5);

/// Shows what this machine can do, and what to do about what it cannot
///
/// The exit code is 0 if a hypervisor works here, else 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a look at this machine found.
struct Findings {
    kernel: String,
    /// Whether the device opens for reading and writing, or why not.
    device: Result<(), String>,
    kvm: Result<Working, Refused>,
}

/// A KVM that opens.
struct Working {
    report: KvmReport,
    doorbell: Result<RoundTrip, String>,
}

/// A KVM that does not: the library's sentence, and what it stands on.
struct Refused {
    message: String,
    source: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<u8, Failure> {
    let findings = Findings::collect();
    if args.json {
        output::print(&format!("{}\n", escape_json(&findings.json().to_string())))?;
    } else {
        output::print(&findings.text())?;
    }
    Ok(if findings.works() { 0 } else { 1 })
}

impl Findings {
    fn collect() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let device = OpenOptions::new().read(true).write(true).open(DEVICE);
        let kvm = match Kvm::open(CpuTemplate::Host) {
            Ok(kvm) => Ok(Working { report: kvm.report(), doorbell: doorbell::measure(&kvm) }),
            Err(error) => Err(Refused {
                message: error.to_string(),
                source: std::error::Error::source(&error).map(ToString::to_string),
            }),
        };
        Self { kernel: escape(kernel.trim_end()), device: device.map(drop).map_err(|error| error.to_string()), kvm }
    }

    /// A KVM in which a guest did not get as far as the doorbell does not count.
    fn works(&self) -> bool {
        self.kvm.as_ref().is_ok_and(|working| working.doorbell.is_ok())
    }

    fn text(&self) -> String {
        let mut facts = vec![
            ("coracle", format!("{}, ABI {ABI_VERSION}", env!("CARGO_PKG_VERSION"))),
            ("kernel", if self.kernel.is_empty() { "unknown".to_owned() } else { format!("Linux {}", self.kernel) }),
            (DEVICE, self.device.as_ref().map_or_else(|error| format!("does not open: {error}"), |()| "opens".into())),
            ("kvm", if self.works() { "works".to_owned() } else { "does not work".to_owned() }),
        ];
        if let Ok(working) = &self.kvm {
            facts.push(("processor", virtualization(&working.report).to_owned()));
            facts.push((
                "doorbell",
                match &working.doorbell {
                    Ok(RoundTrip { median, least }) => {
                        format!("{} µs (median of {}; least {} µs)", us(*median), RoundTrip::ROUNDS, us(*least))
                    }
                    Err(error) => format!("not measured: {error}"),
                },
            ));
        }
        let facts: Vec<[String; 2]> = facts.into_iter().map(|(name, fact)| [name.to_owned(), fact]).collect();
        let mut out = table("", &facts);
        if let Ok(Working { report, .. }) = &self.kvm {
            out += "\nKernel capabilities\n";
            out += &table("  ", &capability_rows(report));
            out += "\nCPU templates\n";
            out += &table("  ", &template_rows(report));
        }
        let advice = advice(self);
        if !advice.is_empty() {
            out += "\nAdvice\n";
            for sentence in advice {
                out += &wrap("  - ", &sentence);
            }
        }
        out
    }

    fn json(&self) -> Value {
        let kvm = match &self.kvm {
            Ok(Working { report, doorbell }) => json!({
                "works": self.works(),
                "hardware_virtualization": report.hardware,
                "capabilities": report.capabilities.iter().map(|(capability, has)| json!({
                    "name": capability.name,
                    "purpose": capability.purpose,
                    "required": capability.required,
                    "available": has,
                })).collect::<Vec<_>>(),
                "cpu_templates": templates(report).iter().map(|(name, missing)| json!({
                    "name": name,
                    "available": missing.is_empty(),
                    "missing": missing,
                })).collect::<Vec<_>>(),
                "doorbell_round_trip": match doorbell {
                    Ok(RoundTrip { median, least }) => json!({
                        "rounds": RoundTrip::ROUNDS,
                        "median_ns": median.as_nanos() as u64,
                        "least_ns": least.as_nanos() as u64,
                    }),
                    Err(error) => json!({ "error": error }),
                },
            }),
            Err(Refused { message, source }) => json!({ "works": false, "error": message, "because": source }),
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "abi_version": ABI_VERSION,
            "kernel": self.kernel,
            "device": {
                "path": DEVICE,
                "opens": self.device.is_ok(),
                "error": self.device.as_ref().err(),
            },
            "backends": { "kvm": kvm },
            "advice": advice(self),
        })
    }
}

/// What to do, or to know, as sentences.
fn advice(findings: &Findings) -> Vec<String> {
    let (report, doorbell) = match &findings.kvm {
        Ok(Working { report, doorbell }) => (report, doorbell),
        // The library's sentence says what to do.
        Err(Refused { message, .. }) => return vec![message.clone()],
    };
    let mut advice = Vec::new();
    match doorbell {
        Err(error) => advice.push(format!(
            "KVM opens, but a guest of three instructions did not run in it ({error}): please report this with the \
             kernel's version"
        )),
        Ok(RoundTrip { median, .. }) if !report.hardware => advice.push(format!(
            "This is a PVM host, without virtualization by the processor: guests compute at full speed, but each exit \
             costs about {} µs. Prefer few calls with much work each",
            us(*median)
        )),
        Ok(RoundTrip { median, .. }) if *median > SLOW_FOR_HARDWARE => advice.push(format!(
            "An exit costs {} µs, where bare metal takes about 1: this seems to be nested virtualization, or a busy \
             machine. Prefer few calls with much work each",
            us(*median)
        )),
        Ok(_) => {}
    }
    for (capability, has) in &report.capabilities {
        if !has && !capability.required {
            let (name, purpose) = (capability.name, capability.purpose);
            advice.push(format!("Without {name} there is no {purpose}. Everything else works"));
        }
    }
    let lacking: Vec<String> =
        templates(report).into_iter().filter(|(_, missing)| !missing.is_empty()).map(|(name, _)| name).collect();
    if !lacking.is_empty() {
        advice.push(format!("KVM does not offer all features of {} here: use another --cpu", lacking.join(" and ")));
    }
    advice
}

fn virtualization(report: &KvmReport) -> &'static str {
    if report.hardware { "hardware virtualization" } else { "no hardware virtualization: a PVM host" }
}

fn capability_rows(report: &KvmReport) -> Vec<[String; 3]> {
    let row = |(capability, has): &(coracle_vm::kvm::Capability, bool)| {
        let answer = match (has, capability.required) {
            (true, _) => "yes",
            (false, true) => "no, and nothing works without",
            (false, false) => "no",
        };
        [capability.name.to_owned(), capability.purpose.to_owned(), answer.to_owned()]
    };
    report.capabilities.iter().map(row).collect()
}

fn template_rows(report: &KvmReport) -> Vec<[String; 2]> {
    let answer = |missing: &[&str]| match missing {
        [] => "yes".to_owned(),
        missing => format!("no: KVM does not offer {}", missing.join(", ")),
    };
    templates(report).into_iter().map(|(name, missing)| [name, answer(missing)]).collect()
}

/// All templates by name, with what each misses here.
fn templates(report: &KvmReport) -> Vec<(String, &[&'static str])> {
    let missing = report.missing.iter().map(|(template, missing)| (template.to_string(), missing.as_slice()));
    std::iter::once((CpuTemplate::Host.to_string(), &[][..])).chain(missing).collect()
}

/// Microseconds with two digits after the point.
fn us(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn working(hardware: bool, median_us: u64) -> Findings {
        let report = KvmReport {
            capabilities: Vec::new(),
            hardware,
            missing: vec![(CpuTemplate::X86_64V2, vec![]), (CpuTemplate::X86_64V3, vec!["avx2", "fma"])],
        };
        let doorbell = Ok(RoundTrip { median: Duration::from_micros(median_us), least: Duration::from_micros(1) });
        Findings { kernel: "6.1".into(), device: Ok(()), kvm: Ok(Working { report, doorbell }) }
    }

    #[test]
    fn a_working_host_is_described() {
        let findings = working(true, 1);
        assert!(findings.works());
        let text = findings.text();
        for part in
            ["kernel     Linux 6.1", "kvm        works", "doorbell   1.00 µs", "x86-64-v3  no: KVM does not offer avx2"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = findings.json();
        assert_eq!(json["backends"]["kvm"]["cpu_templates"][2]["missing"], json!(["avx2", "fma"]));
        assert_eq!(json["backends"]["kvm"]["doorbell_round_trip"]["median_ns"], 1000);
    }

    #[test]
    fn the_advice_fits_the_host() {
        let about = |findings: &Findings| advice(findings).remove(0);
        assert!(about(&working(false, 3)).contains("PVM host"));
        assert!(about(&working(true, 30)).contains("nested"));
        assert!(about(&working(true, 1)).contains("features of x86-64-v3"));
        let refused = Refused { message: "cannot open".into(), source: Some("No such file".into()) };
        let missing = Findings { kernel: String::new(), device: Err("No such file".into()), kvm: Err(refused) };
        assert_eq!(about(&missing), "cannot open");
        assert!(!missing.works() && missing.text().contains("does not open: No such file"));
        assert_eq!(missing.json()["backends"]["kvm"]["because"], "No such file");
    }

    #[test]
    fn a_guest_that_does_not_run_is_no_working_host() {
        let mut findings = working(true, 1);
        if let Ok(working) = &mut findings.kvm {
            working.doorbell = Err("shutdown".into());
        }
        assert!(!findings.works() && advice(&findings)[0].contains("shutdown"));
    }
}
