//! The sections that provide tokens: `[kafka.oauth]`, with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4), and
//! `[kafka.aws]`, with AWS IAM for Amazon MSK.

use crate::options::{OAUTHBEARER, Property};
use hyper::Uri;
use settings::file::Entry;
use settings::findings::{Place, Problem};
use settings::reader::{Reader, is_loopback, is_loopback_address};
use settings::secret::SecretSource;
use settings::setting::Fallback::{Default, Unset};
use settings::setting::Kind::{Choice, File, Text};
use settings::setting::{Section, Setting};
use settings::{choice, section};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

section! {
    "kafka.oauth" OAuth,
        "Authentication with tokens (SASL OAUTHBEARER, client credentials) instead of a user name and password. \
         Requires\n\"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. Used if token_url \
         is set." {
        token_url: String => token_url, Text, Unset("https://login.example.com/oauth2/token"), Restart,
            "Token endpoint of the identity provider. The URL must use https, unless the host is a loopback address.";
        client_id: String, Text, Unset("outbox-relay"), Restart,
            "Client ID of the relay at the identity provider.";
        client_secret / client_secret_file(
            "kafka-client-secret",
            "File that contains the client_secret. The file is reloaded for each token."
        ): SecretSource, Text, Unset("secret"), Restart,
            "Client secret.";
        client_authentication: ClientAuthentication, Choice(ClientAuthentication::WORDS), Default("basic"), Restart,
            "How the ID and the secret are sent. \"basic\" uses the Authorization header, which every \
             provider must support. \"post\"\nuses the body of the request.";
        scope: Option<String>, Text, Unset("kafka"), Restart,
            "Requested scopes, separated by spaces.";
        audience: Option<String>, Text, Unset("kafka"), Restart,
            "Requested audience, if the provider requires one.";
        ca_location: Option<PathBuf>, File, Unset("oauth-ca.pem"), Restart,
            "Trusted certificate authorities for the token endpoint. If unset, the system's trust store \
             is used.";
    }
}

choice! {
    /// How to send the client ID and secret to a token endpoint (RFC 6749, 2.3.1).
    ClientAuthentication {
        Basic = "basic",
        Post = "post",
    }
}

impl OAuth {
    /// Reads the section. `None` if it is not used or is incomplete.
    pub(super) fn from(reader: &mut Reader) -> Option<OAuth> {
        let oauth = OAuth::read(reader);
        let place = place::<OAuth>(reader)?;
        let secret = [&OAuth::client_secret, &OAuth::client_secret_file];
        let required = [
            ("token_url", &[&OAuth::token_url][..]),
            ("client_id", &[&OAuth::client_id]),
            ("client_secret or client_secret_file", &secret),
        ];
        for (name, settings) in required {
            if reader.whole && settings.iter().all(|setting| reader.place(setting).is_none()) {
                let help = "set token_url, client_id and client_secret_file, or remove the section";
                let message = format!("[kafka.oauth] {name} is missing");
                reader.findings.error(&place, Problem::new(message, help));
            }
        }
        oauth
    }
}

/// Accepts `https`, or `http` to a loopback address. Messages do not quote the URL, because it could contain a password.
fn token_url(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    let problem = |message: &str, help: &str| Err(Problem::new(format!("{setting} {message}"), help));
    let example = "for example \"https://login.example.com/oauth2/token\"";
    let Ok(url) = text.parse::<Uri>() else { return problem("is not a URL", example) };
    let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return problem("is not a URL", example);
    };
    if authority.as_str().contains('@') {
        return problem("contains a user or a password", "set client_id and client_secret_file instead");
    }
    match scheme {
        "https" => Ok(url.to_string()),
        "http" if is_loopback_address(authority.host()) => Ok(url.to_string()),
        "http" if is_loopback(authority.host()) => problem(
            "uses http with a name, which a resolver could map to another host",
            "use http://127.0.0.1",
        ),
        "http" => problem("uses http, so the secret would be sent unencrypted", "use https"),
        _ => problem("uses neither https nor http", "use https"),
    }
}

section! {
    "kafka.aws" Aws,
        "Authentication with AWS IAM, for Amazon MSK. The relay signs tokens with the AWS credentials of its environment\n\
         (SASL OAUTHBEARER). Requires \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. Used if region is set. The\n\
         packages support it; other builds need --features aws." {
        region: String => region, Text, Unset("eu-central-1"), Restart,
            "AWS region of the cluster.";
        role_arn: Option<String> => role_arn, Text, Unset("arn:aws:iam::123456789012:role/outbox-relay"), Restart,
            "IAM role to assume. If unset, the relay logs in with its own credentials.";
        role_session_name: String => session_name, Text, Default("outbox-relay"), Restart,
            "Name of the session of the assumed role. CloudTrail shows it.";
        external_id: Option<String> => external_id, Text, Unset("12345"), Restart,
            "External ID, if the trust policy of the role requires one.";
    }
}

impl Aws {
    /// Reads the section. `None` if it is not used, is incomplete, or cannot be used by this program.
    pub(super) fn from(reader: &mut Reader, is_built_in: bool) -> Option<Aws> {
        let aws = Aws::read(reader);
        let place = place::<Aws>(reader)?;
        if !is_built_in {
            reader.findings.error(&place, not_built_in());
            return None;
        }
        if reader.whole && reader.place(&Aws::region).is_none() {
            let help = "set region to the region of the cluster, or remove the section";
            reader.findings.error(&place, Problem::new("[kafka.aws] region is missing", help));
        }
        for setting in [&Aws::role_session_name, &Aws::external_id] {
            if let (Some(place), None) = (reader.place(setting), reader.place(&Aws::role_arn)) {
                let message = format!("{setting} has no effect without role_arn");
                let help = format!("set role_arn, or remove {}", setting.key);
                reader.findings.error(&place, Problem::new(message, help));
            }
        }
        aws
    }

    /// Reports a region that is not that of the brokers. The names of MSK brokers contain their region.
    pub(super) fn compare_with_brokers(&self, bootstrap_servers: &str, reader: &mut Reader) {
        let mut regions = bootstrap_servers.split(',').filter_map(region_of_broker);
        let elsewhere = regions.find(|region| *region != self.region);
        if let (Some(found), Some(place)) = (elsewhere, reader.place(&Aws::region)) {
            let message = format!("[kafka.aws] region is {}, but the brokers are in {found}", self.region);
            reader.findings.error(&place, Problem::new(message, format!("set region = \"{found}\"")));
        }
    }
}

fn not_built_in() -> Problem {
    Problem::new(
        "[kafka.aws] is set, but this program was built without the aws feature",
        "use the binary from a release package, or build with --features aws",
    )
}

/// The region of `b-1.name.abc123.c2.kafka.eu-central-1.amazonaws.com:9098`.
fn region_of_broker(broker: &str) -> Option<&str> {
    let host = broker.trim().rsplit_once(':').map_or(broker.trim(), |(host, _)| host);
    let host = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"))?;
    let (rest, region) = host.rsplit_once('.')?;
    let service = rest.rsplit('.').next()?;
    ["kafka", "kafka-serverless"].contains(&service).then_some(region)
}

/// Checks the code of a region, such as `eu-central-1` or `us-gov-west-1`. A host name is built from it.
fn region(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    let (words, number) = text.rsplit_once('-').unwrap_or_default();
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if words.contains('-') && words.split('-').all(is_word) && is_number && text.len() <= 32 {
        return Ok(text.to_owned());
    }
    Err(Problem::new(format!("{setting} is not the code of an AWS region"), "for example \"eu-central-1\""))
}

fn role_arn(text: &str, setting: &Setting, _: &Reader) -> Result<Option<String>, Problem> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let valid = matches!(parts.as_slice(), ["arn", partition, "iam", "", account, role]
        if partition.starts_with("aws")
            && account.len() == 12
            && account.bytes().all(|byte| byte.is_ascii_digit())
            && role.strip_prefix("role/").is_some_and(|name| !name.is_empty()));
    if valid && text.len() <= 2_048 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(text.to_owned()));
    }
    let help = "for example \"arn:aws:iam::123456789012:role/outbox-relay\"";
    Err(Problem::new(format!("{setting} is not the ARN of an IAM role"), help))
}

fn session_name(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    check_characters(text, setting, 2..=64, "_+=,.@-", "session name").map(|()| text.to_owned())
}

fn external_id(text: &str, setting: &Setting, _: &Reader) -> Result<Option<String>, Problem> {
    check_characters(text, setting, 2..=1224, "_+=,.@:/-", "external ID").map(|()| Some(text.to_owned()))
}

/// Checks the limits of STS.
fn check_characters(
    text: &str,
    setting: &Setting,
    lengths: RangeInclusive<usize>,
    others: &str,
    what: &str,
) -> Result<(), Problem> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    if lengths.contains(&text.len()) && text.chars().all(is_allowed) {
        return Ok(());
    }
    let (least, most) = lengths.into_inner();
    let help = format!("use {least} to {most} characters: letters, digits, or any of {others}");
    Err(Problem::new(format!("{setting} is not a valid {what}"), help))
}

/// The place of the first setting of a section that has no default; `None` if the section is not used.
fn place<S: Section>(reader: &Reader) -> Option<Place> {
    let has_no_default = |setting: &&Setting| !matches!(setting.fallback, Default(_));
    S::SETTINGS.iter().filter(has_no_default).find_map(|setting| reader.place(setting))
}

/// The problem with `sasl.mechanism` = OAUTHBEARER if neither section is used.
pub(super) fn missing() -> Problem {
    Problem::new(
        "Kafka property `sasl.mechanism` is OAUTHBEARER, but neither [kafka.oauth] nor [kafka.aws] is set",
        "set token_url, client_id and client_secret_file in [kafka.oauth], or region in [kafka.aws]",
    )
}

/// The section that provides tokens, and its place. Both together are a finding.
pub(super) fn token_section(reader: &mut Reader) -> Option<(&'static str, Place)> {
    let oauth = place::<OAuth>(reader).map(|place| (OAuth::NAME, place));
    let aws = place::<Aws>(reader).map(|place| (Aws::NAME, place));
    if let (Some(_), Some((_, place))) = (&oauth, &aws) {
        let problem = Problem::new("both [kafka.oauth] and [kafka.aws] are set", "remove one of them");
        reader.findings.error(place, problem);
    }
    oauth.or(aws)
}

/// Why the section cannot be used with these settings of the login. `mechanism` is the one in effect.
pub(super) fn contradiction(section: &str, protocol: &str, mechanism: &str) -> Option<Problem> {
    let message = if !protocol.starts_with("sasl") {
        format!("[{section}] has no effect while security.protocol is {protocol}")
    } else if !mechanism.eq_ignore_ascii_case(OAUTHBEARER) {
        let message = format!("[{section}] has no effect while `sasl.mechanism` is {mechanism}");
        let help = format!("set \"sasl.mechanism\" = \"OAUTHBEARER\", or remove [{section}]");
        return Some(Problem::new(message, help));
    } else if section == Aws::NAME && protocol != "sasl_ssl" {
        format!("[{section}] requires TLS, but security.protocol is {protocol}")
    } else {
        return None;
    };
    Some(Problem::new(message, "set \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]"))
}

/// A password next to `[kafka.aws]` is left from another login.
pub(super) fn check_passwords(
    properties: &BTreeMap<String, Property>,
    entries: &BTreeMap<String, Entry>,
    reader: &mut Reader,
) {
    for name in ["sasl.username", "sasl.password"].into_iter().filter(|name| properties.contains_key(*name)) {
        let entry = entries.get(name).or_else(|| entries.get(&format!("{name}_file")));
        let place = entry.map_or_else(|| reader.default_place(), |entry| entry.place.clone());
        let message = format!("Kafka property `{name}` has no effect with [kafka.aws]");
        reader.findings.error(&place, Problem::new(message, "remove it, or remove [kafka.aws]"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_of_msk_have_their_region_in_their_names() {
        for (broker, region) in [
            ("b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098", Some("eu-central-1")),
            ("boot-abc.c3.kafka-serverless.us-east-1.amazonaws.com:9098", Some("us-east-1")),
            (" b-1.demo.abc123.c2.kafka.cn-north-1.amazonaws.com.cn ", Some("cn-north-1")),
            ("kafka.internal.example:9098", None),
            ("ec2-1-2-3-4.compute.amazonaws.com:9098", None),
            ("amazonaws.com", None),
        ] {
            assert_eq!(region_of_broker(broker), region, "{broker}");
        }
    }

    #[test]
    fn a_program_without_the_feature_reports_how_to_get_one_with_it() {
        let problem = not_built_in();
        assert!(problem.message.contains("without the aws feature"), "{problem:?}");
        assert!(problem.help.contains("--features aws"), "{problem:?}");
    }
}
