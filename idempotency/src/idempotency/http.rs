//! Conversions between stored responses and those of the crate http.

use std::str;

use http::{HeaderName, HeaderValue, StatusCode, response};

use super::Response;

/// The server sets the first two for each response. Cookies are secrets, and cannot be joined into one value. The others are
/// about the first response only.
const NOT_STORED: [&str; 6] =
    ["content-length", "date", "set-cookie", "age", "www-authenticate", "authentication-info"];

/// Whether a header belongs to one connection, and must be neither stored nor replayed (RFC 9110, section 7.6.1).
fn is_hop_by_hop(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade")
        || name.starts_with("proxy-")
}

impl Response {
    /// The response to store. Values of one name become a list. Values that are not UTF-8 are left out.
    pub(crate) fn of_http(parts: &response::Parts, body: &[u8]) -> Response {
        let response = Response::new(parts.status.as_u16()).body(body);
        let is_stored = |name: &&HeaderName| !NOT_STORED.contains(&name.as_str()) && !is_hop_by_hop(name);
        let names = parts.headers.keys().filter(is_stored);
        names.fold(response, |response, name| {
            let values = parts.headers.get_all(name).iter();
            let values: Vec<&str> =
                values.filter_map(|value| str::from_utf8(value.as_bytes()).ok()).collect();
            if values.is_empty() { response } else { response.header(name.as_str(), values.join(", ")) }
        })
    }
}

/// Headers of the connection and headers that are invalid in HTTP are left out. A status that is invalid becomes 500.
impl<B: From<Vec<u8>>> From<Response> for http::Response<B> {
    fn from(stored: Response) -> http::Response<B> {
        let mut response = http::Response::new(B::from(stored.bytes().to_vec()));
        *response.status_mut() =
            StatusCode::from_u16(stored.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in stored.headers() {
            let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
                continue;
            };
            if !is_hop_by_hop(&name) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP_BY_HOP: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];

    fn stored(headers: &[(&'static str, &[u8])]) -> Vec<(String, String)> {
        let mut response = http::Response::new(());
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let (parts, ()) = response.into_parts();
        let stored = Response::of_http(&parts, b"");
        stored.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn values_that_are_not_utf_8_are_not_stored() {
        let kept = ("x-list".to_owned(), "a, b".to_owned());
        assert_eq!(stored(&[("x-list", b"a"), ("x-list", b"\xff"), ("x-list", b"b")]), [kept]);
        assert!(
            stored(&[("x-name", b"\xff")]).is_empty(),
            "an empty value would differ from the first response"
        );
        assert_eq!(stored(&[("x-empty", b"")]), [("x-empty".to_owned(), String::new())]);
    }

    #[test]
    fn headers_of_the_connection_are_neither_stored_nor_replayed() {
        for name in HOP_BY_HOP {
            assert!(stored(&[(name, b"x")]).is_empty(), "{name}");
            // An application or a program in another language may have stored it.
            let replayed =
                http::Response::<Vec<u8>>::from(Response::new(200).header(name, "x").header("x-a", "1"));
            assert_eq!(replayed.headers().len(), 1, "{name}: {:?}", replayed.headers());
        }
    }
}
