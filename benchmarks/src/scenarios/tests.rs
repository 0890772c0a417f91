//! Whether a value meets its target, and how checks compute their values.

use super::*;

fn check(target: Target) -> Check {
    median("part", "name", Unit::Percent, target, "figure")
}

#[test]
fn a_target_is_met_at_its_limit_and_missed_past_it() {
    assert_eq!(check(Target::AtLeast(1.4)).judge(1.4), Verdict::Met);
    assert_eq!(check(Target::AtLeast(1.4)).judge(1.399), Verdict::Missed);
    assert_eq!(check(Target::AtMost(3.0)).judge(3.0), Verdict::Met);
    assert_eq!(check(Target::AtMost(3.0)).judge(3.01), Verdict::Missed);
    assert_eq!(check(Target::Stated).judge(f64::MAX), Verdict::Stated);
}

#[test]
fn as_fast_counts_a_difference_within_the_noise_as_equal() {
    assert_eq!(check(Target::AsFast).judge(100.0), Verdict::Met);
    assert_eq!(check(Target::AsFast).judge(95.0), Verdict::Equal);
    assert_eq!(check(Target::AsFast).judge(94.9), Verdict::Missed);
}

#[test]
fn a_ratio_compares_medians() {
    let mut figures = Figures::default();
    for (relay, debezium) in [(140.0, 100.0), (150.0, 50.0), (1_000.0, 110.0)] {
        figures.push("mark: rate", Unit::RowsPerSecond, relay);
        figures.push("Debezium: rate", Unit::RowsPerSecond, debezium);
    }
    let scenarios = scenarios();
    let check = &scenarios[0].checks[1];
    assert_eq!(check.value(&figures), Some(1.5));
    assert_eq!(check.best(&figures), Some(1_000.0 / 110.0));
    assert_eq!(check.judge(1.5), Verdict::Met);
    assert_eq!(check.value(&Figures::default()), None, "a missing figure has no value");
}

#[test]
fn a_shape_is_judged_by_rows_or_by_bytes() {
    let mut figures = Figures::default();
    figures.push("reference: rate", Unit::RowsPerSecond, 100.0);
    figures.push("reference: bytes", Unit::MebibytesPerSecond, 10.0);
    figures.push("100 KiB: rate", Unit::RowsPerSecond, 1.0);
    figures.push("100 KiB: bytes", Unit::MebibytesPerSecond, 40.0);
    assert_eq!(shape("", "100 KiB: rate", "100 KiB: bytes").value(&figures), Some(400.0));
}

#[test]
fn there_are_fifteen_scenarios_in_order() {
    let numbers: Vec<u8> = scenarios().iter().map(|scenario| scenario.number).collect();
    assert_eq!(numbers, (1..=15).collect::<Vec<u8>>());
}
