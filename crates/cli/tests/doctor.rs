//! `coracle doctor`: says something useful with and without a hypervisor.

mod support;

use coracle_testing::kvm_or_skip;
use serde_json::Value;
use support::coracle;

#[test]
fn both_forms_agree_about_this_machine() {
    let (text, json) = (coracle(&["doctor"], ""), coracle(&["doctor", "--json"], ""));
    assert_eq!(text.code, json.code);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let works = json["backends"]["kvm"]["works"].as_bool().unwrap();
    assert_eq!(text.code, if works { 0 } else { 1 });
    assert!(text.out.contains(if works { "kvm        works" } else { "does not work" }), "{text:?}");
    assert!(works || !json["advice"].as_array().unwrap().is_empty());
}

#[test]
fn a_working_machine_is_measured() {
    let Some(_) = kvm_or_skip() else { return };
    let json: Value = serde_json::from_str(&coracle(&["doctor", "--json"], "").out).unwrap();
    let round_trip = &json["backends"]["kvm"]["doorbell_round_trip"];
    assert!(round_trip["least_ns"].as_u64() <= round_trip["median_ns"].as_u64(), "{json}");
    assert!(round_trip["least_ns"].as_u64() > Some(0), "{json}");
}
