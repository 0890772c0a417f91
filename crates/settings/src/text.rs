//! Formats numbers, durations, sizes and untrusted text for people.

use humantime::{format_duration, format_rfc3339_seconds};
use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// 9999-12-31T23:59:59Z, in seconds since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// ` --config FILE`, if the command line of this process names a file.
static CONFIG: OnceLock<String> = OnceLock::new();
/// In the commands of constant texts.
const CONFIG_PLACEHOLDER: &str = " --config FILE";

/// RFC 3339, in UTC, to the second. A time in the database can be infinite, and the format ends with the year 9999.
pub fn time(at: SystemTime) -> String {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Err(_) => "before 1970".to_owned(),
        Ok(since) if since.as_secs() > LAST_SECOND => "after 9999".to_owned(),
        Ok(_) => format_rfc3339_seconds(at).to_string(),
    }
}

/// "1 event", "2 events".
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `1,234,567`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Whether a terminal or a browser may execute the character, show what follows in another place, or show nothing: control
/// characters, those that change the direction of text or break lines, and invisible ones. Joiners are parts of words and emoji.
fn controls(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_invisible = matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    c.is_control() || changes_direction || is_invisible || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Makes a whole text or JSON safe for a terminal: escapes all control characters except line breaks and tabs. In JSON, they
/// occur only in strings, which mean the same as before.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| controls(c) && c != '\n' && c != '\t';
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            // As in JSON, which has no other form for characters above U+FFFF.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}"));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// [`printable`], for bytes: those that are not UTF-8 become `\xNN`.
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        shown += &printable(chunk.valid());
        chunk.invalid().iter().for_each(|byte| shown += &format!("\\x{byte:02x}"));
    }
    shown
}

/// Makes untrusted text safe for one line: escapes control characters and cuts it to `most` characters.
pub fn in_line(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == most {
            shown.push('…');
            break;
        }
        if controls(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Whole milliseconds below a second, whole seconds above.
pub fn span(duration: Duration) -> String {
    let rounded = if duration < Duration::from_secs(1) {
        Duration::from_millis(duration.as_millis() as u64)
    } else {
        Duration::from_secs(duration.as_secs())
    };
    // The library writes "1day" and "30days".
    let spaced = |part: &str| match part.find(|c: char| !c.is_ascii_digit()) {
        Some(unit) if part.len() - unit > 2 => format!("{} {}", &part[..unit], &part[unit..]),
        _ => part.to_owned(),
    };
    format_duration(rounded).to_string().split(' ').map(spaced).collect::<Vec<_>>().join(" ")
}

/// Like [`span`], for a number of seconds.
pub fn seconds(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// In the largest unit that fits.
pub fn bytes(bytes: i64) -> String {
    let (kib, mib) = (bytes / 1_024, bytes as f64 / 1_048_576.0);
    if mib < 1.0 {
        format!("{kib} KiB")
    } else if mib < 1_024.0 {
        format!("{mib:.1} MiB")
    } else {
        format!("{:.1} GiB", mib / 1_024.0)
    }
}

/// The text as a part of a URL. Letters, digits and the characters in `plain` stay.
pub fn percent_encode(text: &str, plain: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The text as one word of a shell.
pub fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:@.,_-+=%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else if text.contains(['"', '$', '`', '\\', '!']) {
        format!("'{}'", text.replace('\'', r"'\''"))
    } else {
        format!("\"{text}\"")
    }
}

/// Notes the configuration file that the command line names, because proposed commands need it too.
pub fn note_config(file: &str) {
    _ = CONFIG.set(format!(" --config {}", shell(file)));
}

/// A command to propose, such as `resume`.
pub fn command(subcommand: &str) -> String {
    format!("outbox-relay {subcommand}{}", CONFIG.get().map_or("", String::as_str))
}

/// Adds the configuration file to each command that the text proposes, in backticks or after "run: ".
pub fn commands(text: &str) -> Cow<'_, str> {
    CONFIG.get().map_or(Cow::Borrowed(text), |config| Cow::Owned(with_config(text, config)))
}

fn with_config(text: &str, config: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len() + 64), text);
    while let Some(begin) = rest.find("outbox-relay ") {
        let (before, command) = rest.split_at(begin);
        let ends = |c: char| matches!(c, '`' | '\n' | ';' | '|' | '&' | '<' | '>');
        let (command, after) = command.split_at(command.find(ends).unwrap_or(command.len()));
        shown += before;
        if !before.ends_with('`') && !before.ends_with("run: ") {
            shown += command;
        } else if command.contains("--config") {
            shown += &command.replace(CONFIG_PLACEHOLDER, config);
        } else {
            let words = command.trim_end();
            shown.extend([words, config, &command[words.len()..]]);
        }
        rest = after;
    }
    shown + rest
}

/// One decimal below ten, none above.
pub fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.1}") } else { thousands(per_second.round() as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_the_format_cannot_express_has_a_text() {
        let (epoch, second) = (SystemTime::UNIX_EPOCH, Duration::from_secs(1));
        assert_eq!(time(epoch), "1970-01-01T00:00:00Z");
        assert_eq!(time(epoch - second), "before 1970");
        let last = epoch + Duration::from_secs(LAST_SECOND);
        assert_eq!(
            (time(last).as_str(), time(last + second).as_str()),
            ("9999-12-31T23:59:59Z", "after 9999")
        );
    }

    #[test]
    fn untrusted_text_stays_in_its_line_without_control_characters() {
        assert_eq!(in_line("a\nb\u{1b}[31mä", 100), r"a\nb\u{1b}[31mä");
        assert_eq!(in_line("a\u{9b}b\u{202e}c\u{2029}", 100), r"a\u{9b}b\u{202e}c\u{2029}");
        assert_eq!(in_line("äöü", 3), "äöü");
        assert_eq!(in_line("äöüß", 3), "äöü…");
    }

    #[test]
    fn printed_text_cannot_control_a_terminal() {
        let (osc, c1, bidi) = ("\u{1b}]52;c;Zm9v\u{7}", "\u{9b}2J", "\u{202e}\u{2066}\u{200f}\u{61c}");
        assert_eq!(printable(osc), r"\u001b]52;c;Zm9v\u0007");
        assert_eq!(
            printable(&format!("{c1}{bidi}\r\u{7f}")),
            r"\u009b2J\u202e\u2066\u200f\u061c\u000d\u007f"
        );
        assert_eq!(printable("a\tb\nä 漢 e\u{301} 👩\u{200d}👧"), "a\tb\nä 漢 e\u{301} 👩\u{200d}👧");
        let invisible = "\u{ad}\u{feff}\u{200b}\u{e0041}";
        assert_eq!(printable(invisible), r"\u00ad\ufeff\u200b\udb40\udc41");
        let json = serde_json::to_string(&[osc, c1, bidi, invisible]).unwrap();
        let printed = printable(&json);
        assert!(printed.is_ascii(), "{printed}");
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&printed).unwrap(),
            [osc, c1, bidi, invisible],
            "the same values"
        );
        assert_eq!(printable_bytes(b"a\xff\x1bb\xc2"), r"a\xff\u001bb\xc2");
    }

    #[test]
    fn units_that_are_words_are_separated() {
        let day = 86_400;
        for (seconds, text) in [(day, "1 day"), (3 * day + 28, "3 days 28s"), (7_260, "2h 1m"), (0, "0s")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span(Duration::from_micros(41_900)), "41ms");
    }

    #[test]
    fn proposed_commands_name_the_configuration_file() {
        let config = " --config relay.toml";
        for (text, shown) in [
            ("run `outbox-relay doctor`", "run `outbox-relay doctor --config relay.toml`"),
            ("Next, run: outbox-relay doctor", "Next, run: outbox-relay doctor --config relay.toml"),
            ("`outbox-relay migrate --config FILE`, or", "`outbox-relay migrate --config relay.toml`, or"),
            ("`outbox-relay status --config /a`", "`outbox-relay status --config /a`"),
            ("run: outbox-relay reap\nthen", "run: outbox-relay reap --config relay.toml\nthen"),
            ("fix outbox-relay yourself", "fix outbox-relay yourself"),
        ] {
            assert_eq!(with_config(text, config), shown);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
