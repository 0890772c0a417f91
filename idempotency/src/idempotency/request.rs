use std::fmt;

use super::REQUEST_BYTES_MAX;
use super::error::Error;
use super::fingerprint::Fingerprint;
use crate::invalid_text::{InvalidText, check_characters, check_text};

/// The maximum length of a scope in bytes.
pub const SCOPE_BYTES_MAX: usize = 512;

/// The maximum length of a key.
pub const KEY_BYTES_MAX: usize = 255;

/// The scope in which an idempotency key is unique: one operation of one subject. Keys of two users never conflict.
///
/// ```
/// use pg_idempotency::idempotency::Scope;
///
/// let scope = Scope::new("POST", "/payments", 7)?; // 7 is the authenticated user
/// assert_eq!(scope.as_str(), "POST /payments 7");
/// # Ok::<(), pg_idempotency::InvalidText>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope(String);

impl Scope {
    /// A scope of method, path and subject: `Scope::new("POST", "/payments", user_id)`.
    ///
    /// The subject is the authenticated user or API key, never something that the client can choose. The method and the path
    /// cannot contain white space, so two scopes cannot have the same text. Together they can have 512 bytes, including two
    /// separators.
    ///
    /// # Errors
    ///
    /// If one of them is empty or contains an invalid character, or if they are too long together.
    pub fn new(method: &str, path: &str, subject: impl fmt::Display) -> Result<Scope, InvalidText> {
        const RULE: &str = "White space and control characters are not allowed";
        let is_allowed = |c: char| !c.is_whitespace() && !c.is_control();
        check_characters("the method", method, SCOPE_BYTES_MAX, RULE, is_allowed)?;
        check_characters("the path", path, SCOPE_BYTES_MAX, RULE, is_allowed)?;
        let subject = subject.to_string();
        check_text("the subject", &subject, SCOPE_BYTES_MAX)?;
        let scope = format!("{method} {path} {subject}");
        check_text("the scope", &scope, SCOPE_BYTES_MAX)?;
        Ok(Scope(scope))
    }

    /// The scope as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn stored(text: String) -> Scope {
        Scope(text)
    }
}

/// A client's identifier for a request: 1 to 255 characters of printable ASCII, the same for each attempt.
///
/// ```
/// use pg_idempotency::idempotency::Key;
///
/// let key = Key::from_header(br#""8e03978e-40d5-43dd-bc93-6894a57f9324""#)?;
/// assert_eq!(key, Key::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?);
/// assert_eq!(key.as_str().len(), 36);
/// # Ok::<(), pg_idempotency::InvalidText>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// A key.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or contains anything but printable ASCII.
    pub fn new(key: &str) -> Result<Key, InvalidText> {
        let rule = "Only printable ASCII is allowed";
        check_characters("the idempotency key", key, KEY_BYTES_MAX, rule, |c| matches!(c, ' '..='~'))?;
        Ok(Key(key.to_owned()))
    }

    /// The key in the value of the header `Idempotency-Key`, with quotes as in the IETF draft (`"8e03978e-40d5"`), or without
    /// them, as many clients send it. Both are the same key.
    ///
    /// # Errors
    ///
    /// See [`Key::new`]. Bytes that are not UTF-8 and malformed quotes are errors too.
    pub fn from_header(value: &[u8]) -> Result<Key, InvalidText> {
        let text = String::from_utf8_lossy(value);
        let text = text.trim();
        match text.strip_prefix('"') {
            Some(rest) => Key::new(&unquoted(rest)?),
            None => Key::new(text),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn stored(text: String) -> Key {
        Key(text)
    }
}

/// The content of a string of a structured header (RFC 9651), after its opening quote.
fn unquoted(rest: &str) -> Result<String, InvalidText> {
    let invalid = |position: usize, character| InvalidText::Character {
        field: "the idempotency key",
        character,
        position: position + 1,
        rule: "A quoted key must end with a quote, and a quote or backslash within it must be escaped with a \
        backslash",
    };
    let mut text = String::new();
    let mut characters = rest.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => {
                return match characters.next() {
                    Some((position, character)) => Err(invalid(position, character)),
                    None => Ok(text),
                };
            }
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                _ => return Err(invalid(position, character)),
            },
            _ => text.push(character),
        }
    }
    Err(invalid(rest.len(), '"'))
}

/// A request with an idempotency key.
///
/// ```
/// use pg_idempotency::idempotency::{Fingerprint, Key, Request, Scope};
///
/// fn request(user: i64, key: &[u8], body: &[u8]) -> Result<Request, Box<dyn std::error::Error>> {
///     let scope = Scope::new("POST", "/payments", user)?;
///     let request = Request::new(scope, Key::from_header(key)?, Fingerprint::json(body)?);
///     Ok(request.keep_body(body)?) // so that a worker can complete it
/// }
///
/// assert!(request(7, b"8e03978e-40d5", br#"{"cents": 1200}"#).is_ok());
/// ```
#[derive(Clone)]
pub struct Request {
    pub(super) scope: Scope,
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    pub(super) body: Option<Vec<u8>>,
}

impl Request {
    /// A request. The fingerprint distinguishes it from other requests with the same key.
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint) -> Request {
        Request { scope, key, fingerprint, body: None }
    }

    /// Stores this body until the request is finished, for [`Idempotency::abandoned`](super::Idempotency::abandoned).
    ///
    /// # Errors
    ///
    /// [`Error::RequestTooLarge`] for more than [`REQUEST_BYTES_MAX`].
    pub fn keep_body(self, body: impl Into<Vec<u8>>) -> Result<Request, Error> {
        let body = body.into();
        if body.len() > REQUEST_BYTES_MAX {
            return Err(Error::RequestTooLarge { bytes: body.len() });
        }
        Ok(Request { body: Some(body), ..self })
    }

    #[cfg(feature = "tower")]
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// Does not show the body.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("scope", &self.scope).field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_1_to_255_printable_ascii_characters() {
        assert!(Key::new("a b~").is_ok());
        assert!(Key::new(&"k".repeat(255)).is_ok());
        assert!(matches!(Key::new(""), Err(InvalidText::Empty { .. })));
        assert!(matches!(Key::new(&"k".repeat(256)), Err(InvalidText::TooLong { bytes: 256, max: 255, .. })));
        for (key, wrong, at) in [("schlüssel", 'ü', 4), ("a\n", '\n', 1), ("\u{7f}", '\u{7f}', 0)] {
            let refused = Key::new(key).unwrap_err();
            assert!(
                matches!(refused, InvalidText::Character { character, position, .. } if (character, position) == (wrong, at)),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn quoted_and_unquoted_headers_are_the_same_key() {
        let plain = Key::new("8e03978e-40d5").unwrap();
        assert_eq!(Key::from_header(b"8e03978e-40d5"), Ok(plain.clone()));
        assert_eq!(Key::from_header(b" \"8e03978e-40d5\" "), Ok(plain));
        assert_eq!(Key::from_header(br#""a\"b\\c""#), Key::new(r#"a"b\c"#));
        assert!(matches!(Key::from_header(b"\"\""), Err(InvalidText::Empty { .. })));
        assert!(matches!(Key::from_header(b"\xff"), Err(InvalidText::Character { .. })));
    }

    #[test]
    fn malformed_quotes_are_rejected() {
        for (header, wrong, at) in [
            ("\"", '"', 1),
            (r#""a"#, '"', 2),
            (r#""a"b""#, 'b', 3),
            (r#""a", "b""#, ',', 3),
            (r#""a\"#, '\\', 2),
            (r#""a\""#, '"', 4),
            (r#""a\b""#, '\\', 2),
        ] {
            let refused = Key::from_header(header.as_bytes()).unwrap_err();
            assert!(
                matches!(refused, InvalidText::Character { character, position, .. } if (character, position) == (wrong, at)),
                "{header}: {refused:?}"
            );
        }
    }

    #[test]
    fn scopes_of_two_subjects_differ() {
        let scope = |path, subject| Scope::new("POST", path, subject).unwrap();
        assert_ne!(scope("/a", "b c"), scope("/a", "b"));
        assert!(Scope::new("POST", "/a b", "c").is_err(), "else /a and `b c` would equal `/a b` and c");
        assert!(Scope::new("POST", "/a", "").is_err());
        assert!(matches!(Scope::new("POST", "/a", "s".repeat(506)), Err(InvalidText::TooLong { .. })));
        assert_eq!(scope("/a", &"s".repeat(504)).as_str().len(), 512);
    }
}
