//! The HTTP client of the AWS crates. Their own client would bring another TLS library with its own trust store into the
//! program.
//!
//! Each request has its own connection, because there are a few requests per token and each token has its own runtime.

use std::fmt;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::Problem;
use crate::tokens::https;

const ANSWER_BYTES_MAX: usize = 256 * 1_024;
/// Limits for requests that have none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct AwsClient;

impl HttpClient for AwsClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
            read_timeout: settings.read_timeout().unwrap_or(READ_TIMEOUT),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Connector {
    connect_timeout: Duration,
    /// For the whole exchange after the connection.
    read_timeout: Duration,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.send(request))
    }
}

impl Connector {
    async fn send(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
        let server = server(request.uri());
        let limit = self.connect_timeout + self.read_timeout;
        let response = match tokio::time::timeout(limit, self.exchange(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) => return Err(ConnectorError::io(Unanswered { server, problem }.into())),
            Err(_) => {
                let problem = format!("no response within {limit:?}");
                return Err(ConnectorError::timeout(Unanswered { server, problem }.into()));
            }
        };
        HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
    }

    async fn exchange(self, request: Request<SdkBody>) -> Result<Response<SdkBody>, Problem> {
        let (head, body) = request.into_parts();
        let body = body.bytes().map(Bytes::copy_from_slice).ok_or("the request is a stream")?;
        let connector = https::connector(None, Some(self.connect_timeout))?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let response = client.request(Request::from_parts(head, Full::new(body))).await;
        let response = response.map_err(|error| https::unanswered(&error, "the system's trust store"))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body
            .map_err(|_| format!("its response was truncated or has more than {ANSWER_BYTES_MAX} bytes"))?;
        Ok(Response::from_parts(head, SdkBody::from(body.to_bytes())))
    }
}

/// Scheme, host and port, without the rest of the URL.
fn server(url: &Uri) -> String {
    let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme_str().unwrap_or("http"), url.host().unwrap_or_default())
}

/// A server of AWS that did not answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    server: String,
    problem: Problem,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no answer from {}: {}", self.server, self.problem)
    }
}

impl std::error::Error for Unanswered {}
