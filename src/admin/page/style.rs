//! The style sheet, and the policy that allows nothing else.

use axum::http::HeaderValue;
use openssl::base64::encode_block;
use openssl::sha::sha256;
use std::sync::LazyLock;

pub(super) const STYLE: &str = include_str!("style.css");

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = encode_block(&sha256(STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // The policy is ASCII, so this never fails. Without a policy, nothing would be allowed.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The value of `Content-Security-Policy`: the style sheet of the page, and nothing else.
pub(super) fn policy() -> HeaderValue {
    POLICY.clone()
}
