//! Protects the endpoint from DNS rebinding.
//!
//! A web page on the Internet may let its own name resolve to the address of this endpoint. A browser would then allow it to
//! read the answers. The browser still sends that name in `Host`, so only requests for an address or for `localhost` are
//! answered, which no one else can own.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use std::net::IpAddr;

pub(super) const NOT_BY_NAME: &str = "Use the IP address or localhost, for example http://127.0.0.1:10187/. Other names are \
     refused, so that web pages on the Internet cannot read this endpoint (DNS rebinding). A reverse proxy must send \
     `Host: localhost`.\n";

/// Whether the request names this endpoint by address or as `localhost`. Browsers always name it; simple clients may not.
pub(super) fn is_trusted(uri: &Uri, headers: &HeaderMap) -> bool {
    let by_header = headers.get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(is_own));
    let by_target = uri.authority().is_none_or(|target| is_own(target.as_str()));
    by_header && by_target
}

fn is_own(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn trusted(uri: &str, host: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        is_trusted(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn only_addresses_and_localhost_are_trusted() {
        for own in ["127.0.0.1:10187", "127.0.0.1", "[::1]:10187", "10.1.2.3:80", "localhost", "LocalHost:1"]
        {
            assert!(trusted("/", Some(own)), "{own}");
        }
        let foreign = [
            "evil.example",
            "evil.example:10187",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "localhost@evil.example",
            "relay",
            "",
            "127.0.0.1, evil.example",
        ];
        for foreign in foreign {
            assert!(!trusted("/", Some(foreign)), "{foreign:?}");
        }
        assert!(trusted("/", None), "not a browser");
        assert!(!trusted("http://evil.example/", Some("127.0.0.1")));
        assert!(trusted("http://127.0.0.1/", Some("127.0.0.1")));
    }
}
