//! Conversions between stored responses and those of the crate http.

use std::str;

use http::{HeaderName, HeaderValue, StatusCode, response};

use super::Response;

/// Headers of the connection and of the time, and cookies, which are secrets and cannot be joined to one value.
const NOT_STORED: [&str; 5] = ["connection", "content-length", "date", "set-cookie", "transfer-encoding"];

impl Response {
    /// The response to store. Values of one name become a list. Values that are not UTF-8 are left out.
    pub(crate) fn of_http(parts: &response::Parts, body: &[u8]) -> Response {
        let response = Response::new(parts.status.as_u16()).body(body);
        let names = parts.headers.keys().filter(|name| !NOT_STORED.contains(&name.as_str()));
        names.fold(response, |response, name| {
            let values = parts.headers.get_all(name).iter();
            let values: Vec<&str> =
                values.filter_map(|value| str::from_utf8(value.as_bytes()).ok()).collect();
            response.header(name.as_str(), values.join(", "))
        })
    }
}

/// Headers that are invalid in HTTP are left out, and a status that is invalid becomes 500.
impl<B: From<Vec<u8>>> From<Response> for http::Response<B> {
    fn from(stored: Response) -> http::Response<B> {
        let mut response = http::Response::new(B::from(stored.bytes().to_vec()));
        *response.status_mut() =
            StatusCode::from_u16(stored.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in stored.headers() {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}
