//! Why there are no AWS credentials, and what to do.
//!
//! The errors of the AWS crates quote responses, which can contain secrets. So only known causes are shown: a server that did
//! not answer, an error code of STS, a file that cannot be read, and settings that are invalid.

use std::error::Error;
use std::io;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_types::error::ErrorMetadata;

use super::Problem;
use super::client::Unanswered;

/// The end of messages about problems that only a look at the machine can explain.
const FIND_OUT: &str =
    "To find out why, run `aws sts get-caller-identity` as the user of the relay, in the same environment";
const HTTP_STATUS: &str = "Non-success status from HTTP credential provider: ";

/// The problem if the chain provides no credentials.
pub(super) fn without_credentials(error: &CredentialsError) -> Problem {
    if let CredentialsError::CredentialsNotLoaded(_) = error {
        return "no AWS credentials found: not in the environment, the profile files, a web identity, or the metadata of \
                the container or instance. Attach an IAM role to the instance, the task or the service account, or set \
                AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            .to_owned();
    }
    match refusal(error) {
        Some(refusal) => format!("STS did not issue the AWS credentials: {}", refusal.explained()),
        None => format!("the AWS credentials cannot be loaded: {}", cause(error, "their source")),
    }
}

/// The problem if STS does not let the relay assume the role.
pub(super) fn without_role(role: &str, error: &CredentialsError) -> Problem {
    match refusal(error) {
        Some(refusal) => format!("the role {role} cannot be assumed: {}", refusal.explained()),
        None => format!("the role {role} cannot be assumed: {}", cause(error, "STS")),
    }
}

/// An error that STS has returned.
struct Refusal {
    code: String,
    /// The user or role that STS has denied, by its ARN.
    who: Option<String>,
}

impl Refusal {
    fn of(error: &ErrorMetadata) -> Option<Refusal> {
        let code = error.code().filter(|code| is_code(code))?.to_owned();
        let words = error.message().unwrap_or_default().split_whitespace();
        let mut after_user = words.skip_while(|word| *word != "User:").skip(1);
        let who = after_user.next().filter(|who| is_arn(who)).map(str::to_owned);
        Some(Refusal { code, who })
    }

    fn explained(&self) -> String {
        let Refusal { code, who } = self;
        match code.as_str() {
            "AccessDenied" | "AccessDeniedException" => {
                let who = who.as_deref().unwrap_or("the relay");
                format!(
                    "STS denied the request from {who} ({code}). Allow sts:AssumeRole in the IAM policy of the relay, trust \
                     the relay in the trust policy of the role, and check [kafka.aws] external_id"
                )
            }
            "ExpiredToken" | "ExpiredTokenException" => {
                format!("the AWS credentials have expired ({code}). Renew them")
            }
            "InvalidClientTokenId" | "UnrecognizedClientException" => {
                format!("STS does not know the AWS access key ({code}). Check the AWS credentials")
            }
            "SignatureDoesNotMatch" | "RequestExpired" => {
                format!(
                    "STS rejected the signature ({code}). Check the AWS secret access key, and the clock of this host"
                )
            }
            "RegionDisabledException" => {
                format!(
                    "STS is not active in this region ({code}). Activate it in IAM, or check [kafka.aws] region"
                )
            }
            "ValidationError" => {
                format!(
                    "STS rejected the request ({code}). Check role_arn, role_session_name and external_id"
                )
            }
            "InvalidIdentityToken" | "InvalidIdentityTokenException" | "IDPRejectedClaim" => {
                format!(
                    "STS rejected the web identity token ({code}). Check the identity provider and the trust policy"
                )
            }
            code => format!("STS responded with {code}"),
        }
    }
}

/// The refusal among the causes of this error.
fn refusal(error: &CredentialsError) -> Option<Refusal> {
    causes(error).find_map(|cause| {
        let assumed = cause.downcast_ref::<AssumeRoleError>().map(AssumeRoleError::meta);
        let by_identity = || {
            let found = cause.downcast_ref::<AssumeRoleWithWebIdentityError>();
            found.map(AssumeRoleWithWebIdentityError::meta)
        };
        Refusal::of(assumed.or_else(by_identity)?)
    })
}

/// Another cause that may be shown. `source` is what should have provided the credentials.
fn cause(error: &CredentialsError, source: &str) -> String {
    let found = causes(error).find_map(|cause| {
        let unanswered = cause.downcast_ref::<Unanswered>();
        let unanswered =
            unanswered.map(|cause| format!("{cause}. Check [kafka.aws] region, DNS and the network"));
        let io = || {
            let error = cause.downcast_ref::<io::Error>()?;
            Some(format!("a file cannot be read: {error}. {FIND_OUT}"))
        };
        let status = || {
            let text = cause.to_string();
            let digits: String =
                text.strip_prefix(HTTP_STATUS)?.chars().filter(char::is_ascii_digit).collect();
            Some(format!("{source} responded with status {digits}. {FIND_OUT}"))
        };
        unanswered.or_else(io).or_else(status)
    });
    found.unwrap_or_else(|| match error {
        CredentialsError::InvalidConfiguration(_) => {
            format!("the profile files or the environment variables AWS_* are invalid. {FIND_OUT}")
        }
        CredentialsError::ProviderTimedOut(_) => format!("{source} did not answer in time. {FIND_OUT}"),
        _ => format!("{source} returned an error or no credentials. {FIND_OUT}"),
    })
}

/// The error itself, and its sources.
fn causes<'a>(error: &'a CredentialsError) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let first: &'a (dyn Error + 'static) = error;
    std::iter::successors(Some(first), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// Whether this looks like a code. Anything else could contain a secret.
fn is_code(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn is_arn(text: &str) -> bool {
    text.len() <= 300
        && text.starts_with("arn:")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/_+=,.@-".contains(&byte))
}
