use std::fmt;

use super::REQUEST_BYTES_MAX;
use super::error::Error;
use super::fingerprint::Fingerprint;
use crate::invalid_text::{InvalidText, check_characters, check_text};

/// The most bytes of a scope.
pub const SCOPE_BYTES_MAX: usize = 512;

/// The most characters of a key.
pub const KEY_BYTES_MAX: usize = 255;

/// What an idempotency key is unique in: one operation of one subject. Keys of two users never meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope(String);

impl Scope {
    /// Of method, path and subject: `Scope::new("POST", "/payments", user_id)`.
    ///
    /// The subject is whoever was authenticated, such as a user or an API key's id; never what a client may
    /// choose. Method and path hold no white space, so no two scopes are written alike. All three have at most
    /// 512 bytes together, with the two spaces between them.
    ///
    /// # Errors
    ///
    /// If one of them is empty, holds what it must not, or all together are too long.
    pub fn new(method: &str, path: &str, subject: impl fmt::Display) -> Result<Scope, InvalidText> {
        let solid = |c: char| !c.is_whitespace() && !c.is_control();
        check_characters("the method", method, SCOPE_BYTES_MAX, "it has no white space", solid)?;
        check_characters("the path", path, SCOPE_BYTES_MAX, "it has no white space", solid)?;
        let subject = subject.to_string();
        check_text("the subject", &subject, SCOPE_BYTES_MAX)?;
        let scope = format!("{method} {path} {subject}");
        check_text("the scope", &scope, SCOPE_BYTES_MAX)?;
        Ok(Scope(scope))
    }

    /// As it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn stored(text: String) -> Scope {
        Scope(text)
    }
}

/// What a client calls its request, however often it sends it: 1 to 255 characters of printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// A key as it is.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or holds something else than printable ASCII.
    pub fn new(key: &str) -> Result<Key, InvalidText> {
        let rule = "a key is of printable ASCII";
        check_characters("the idempotency key", key, KEY_BYTES_MAX, rule, |c| matches!(c, ' '..='~'))?;
        Ok(Key(key.to_owned()))
    }

    /// The key in the value of the header `Idempotency-Key`, in quotes as the IETF draft has it
    /// (`"8e03978e-40d5"`), or without, as many clients send it. Both are the same key.
    ///
    /// # Errors
    ///
    /// As [`Key::new`]; bytes that are no UTF-8 are an error too.
    pub fn from_header(value: &[u8]) -> Result<Key, InvalidText> {
        let text = String::from_utf8_lossy(value);
        let text = text.trim();
        match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(quoted) => Key::new(&quoted.replace("\\\"", "\"").replace("\\\\", "\\")),
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

/// A request with an idempotency key.
#[derive(Clone)]
pub struct Request {
    pub(super) scope: Scope,
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    pub(super) body: Option<Vec<u8>>,
}

impl Request {
    /// A request; the fingerprint is what tells it from another one with the same key.
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint) -> Request {
        Request { scope, key, fingerprint, body: None }
    }

    /// Keeps this body with the key until the request is finished, for a completer:
    /// [`Idempotency::abandoned`](super::Idempotency::abandoned).
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
}

/// Shows no body.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("scope", &self.scope).field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_1_to_255_printable_ascii_characters() {
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
    fn a_quoted_header_is_the_same_key() {
        let plain = Key::new("8e03978e-40d5").unwrap();
        assert_eq!(Key::from_header(b"8e03978e-40d5"), Ok(plain.clone()));
        assert_eq!(Key::from_header(b" \"8e03978e-40d5\" "), Ok(plain));
        assert_eq!(Key::from_header(br#""a\"b\\c""#), Key::new(r#"a"b\c"#));
        assert!(matches!(Key::from_header(b"\"\""), Err(InvalidText::Empty { .. })));
        assert!(matches!(Key::from_header(b"\xff"), Err(InvalidText::Character { .. })));
    }

    #[test]
    fn scopes_of_two_subjects_never_meet() {
        let scope = |path, subject| Scope::new("POST", path, subject).unwrap();
        assert_ne!(scope("/a", "b c"), scope("/a", "b"));
        assert!(Scope::new("POST", "/a b", "c").is_err(), "else /a and `b c` would meet /a b and c");
        assert!(Scope::new("POST", "/a", "").is_err());
        assert!(matches!(Scope::new("POST", "/a", "s".repeat(506)), Err(InvalidText::TooLong { .. })));
        assert_eq!(scope("/a", &"s".repeat(504)).as_str().len(), 512);
    }
}
