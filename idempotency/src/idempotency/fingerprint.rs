use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::error::Error;

/// The maximum number of levels of a JSON body, which is parsed once per level.
pub const DEPTH_MAX: usize = 64;

/// Distinguishes requests with the same key: a SHA-256.
///
/// ```
/// use pg_idempotency::idempotency::Fingerprint;
///
/// assert_eq!(Fingerprint::json(br#"{"a": 1, "b": 2}"#)?, Fingerprint::json(br#"{"b":2,"a":1}"#)?);
/// assert_ne!(Fingerprint::bytes(b"a=1&b=2"), Fingerprint::bytes(b"b=2&a=1"));
/// # Ok::<(), pg_idempotency::idempotency::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a JSON body. White space, the order of an object's names and the escaping of characters do not
    /// matter. Numbers are compared as text: `1` and `1.0` differ. If an object contains a name twice, the last one counts.
    ///
    /// # Errors
    ///
    /// [`Error::NotJson`], or [`Error::TooDeep`] beyond [`DEPTH_MAX`].
    pub fn json(body: &[u8]) -> Result<Fingerprint, Error> {
        if depth(body) > DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        let value: &RawValue = serde_json::from_slice(body).map_err(Error::not_json)?;
        let mut canonical = b"json:".to_vec();
        write(value, &mut canonical)?;
        Ok(Fingerprint::of(&canonical))
    }

    /// The fingerprint of any body, byte by byte.
    pub fn bytes(body: &[u8]) -> Fingerprint {
        Fingerprint::of(&[b"bytes:", body].concat())
    }

    /// The fingerprint of a multipart body. A client can choose another boundary for each attempt, so only what is between
    /// the boundaries counts. They are at the beginning of a line.
    #[cfg(feature = "tower")]
    pub(crate) fn multipart(body: &[u8], boundary: &str) -> Fingerprint {
        let delimiter = ["\r\n--", boundary].concat();
        let body = [b"\r\n", body].concat();
        let mut canonical = b"multipart:".to_vec();
        let mut add = |part: &[u8]| {
            canonical.extend_from_slice(&(part.len() as u64).to_be_bytes());
            canonical.extend_from_slice(part);
        };
        let mut rest = body.as_slice();
        while let Some(at) = rest.windows(delimiter.len()).position(|bytes| bytes == delimiter.as_bytes()) {
            add(&rest[..at]);
            rest = &rest[at + delimiter.len()..];
        }
        add(rest);
        Fingerprint::of(&canonical)
    }

    /// The fingerprint of a body with something else that distinguishes the request.
    #[cfg(feature = "tower")]
    pub(crate) fn with(&self, part: &[u8]) -> Fingerprint {
        Fingerprint::of(&[b"with:".as_slice(), &self.0, part].concat())
    }

    fn of(canonical: &[u8]) -> Fingerprint {
        Fingerprint(Sha256::digest(canonical).into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Writes a value without white space and with sorted names. Each level is parsed separately, to keep numbers as text: as f64,
/// two numbers of more than 16 digits could be equal.
fn write(value: &RawValue, into: &mut Vec<u8>) -> Result<(), Error> {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(Error::not_json)?;
            into.push(b'{');
            for (name, value) in members {
                write_text(&name, into)?;
                into.push(b':');
                write(value, into)?;
                into.push(b',');
            }
            into.push(b'}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(Error::not_json)?;
            into.push(b'[');
            for item in items {
                write(item, into)?;
                into.push(b',');
            }
            into.push(b']');
        }
        Some(b'"') => {
            let text: String = serde_json::from_str(text).map_err(Error::not_json)?;
            write_text(&text, into)?;
        }
        _ => into.extend_from_slice(text.as_bytes()),
    }
    Ok(())
}

/// The number of levels, counted by brackets outside of strings, before anything is parsed.
fn depth(body: &[u8]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => now += 1,
            b']' | b'}' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

fn write_text(text: &str, into: &mut Vec<u8>) -> Result<(), Error> {
    serde_json::to_writer(into, text).map_err(Error::not_json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Fingerprint {
        Fingerprint::json(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error:?}"))
    }

    #[test]
    fn equivalent_bodies_have_the_same_fingerprint() {
        let plain = of(r#"{"a":1,"b":[true,null,"ü"],"c":{"x":"1","y":2.50}}"#);
        assert_eq!(
            plain,
            of("{ \"c\": {\"y\" : 2.50, \"x\":\"1\"},\r\n\t\"b\": [ true , null, \"\\u00fc\" ],\"a\":1 }\n")
        );
        assert_eq!(of(r#"{"a":1,"a":2}"#), of(r#"{"a":2}"#));
    }

    #[test]
    fn different_bodies_have_different_fingerprints() {
        let all = [
            "{}",
            "[]",
            "null",
            "0",
            "\"\"",
            "\"0\"",
            "1",
            "1.0",
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            "[[1,2]]",
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            "12345678901234567890123",
            "12345678901234567890124",
            r#"["a,b"]"#,
            r#"["a","b"]"#,
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[..at] {
                assert_ne!(of(one), of(other), "{one} and {other}");
            }
        }
        assert_ne!(Fingerprint::bytes(b"{}"), of("{}"));
    }

    #[test]
    fn invalid_json_is_an_error_that_does_not_quote_it() {
        for body in ["", "secret", "{\"secret\"", "{\"a\":1} secret", "\"\\ud800secret\"", "{secret:1}"] {
            let error = Fingerprint::json(body.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::NotJson { .. }), "{body}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
        assert!(matches!(Fingerprint::json(b"\"\xff\""), Err(Error::NotJson { .. })));
    }

    #[test]
    #[cfg(feature = "tower")]
    fn a_multipart_body_is_compared_without_its_boundary() {
        let of = |boundary: &str, text: &str| {
            let body = text.replace('|', &format!("\r\n--{boundary}"));
            Fingerprint::multipart(body.trim_start().as_bytes(), boundary)
        };
        let one = of("aaa", "|\r\nA: 1\r\n\r\nhello|\r\nA: 2\r\n\r\nbbb|--\r\n");
        assert_eq!(one, of("bbb", "|\r\nA: 1\r\n\r\nhello|\r\nA: 2\r\n\r\nbbb|--\r\n"));
        for other in [
            "|\r\nA: 1\r\n\r\nhullo|\r\nA: 2\r\n\r\nbbb|--\r\n",
            "|\r\nA: 1\r\n\r\nhello|\r\nA: 3\r\n\r\nbbb|--\r\n",
            "|\r\nA: 1\r\n\r\nhello\r\nA: 2\r\n\r\nbbb|--\r\n",
            "|\r\nA: 1\r\n\r\nhello|\r\nA: 2\r\n\r\nbbb",
        ] {
            assert_ne!(one, of("aaa", other), "{other}");
        }
        // Within a line, it is not a boundary.
        assert_ne!(of("aaa", "|x --aaa|--"), of("bbb", "|x --bbb|--"));
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Fingerprint::json(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(matches!(Fingerprint::json(nested(DEPTH_MAX + 1).as_bytes()), Err(Error::TooDeep)));
        assert!(matches!(Fingerprint::json(nested(1_000_000).as_bytes()), Err(Error::TooDeep)));
        let in_a_string = format!("[\"{}\\\"{}\"]", "[".repeat(1000), "{".repeat(1000));
        assert!(Fingerprint::json(in_a_string.as_bytes()).is_ok());
    }
}
