//! `[kafka.aws]`: authentication with AWS IAM, for Amazon MSK.

use settings::findings::{Place, Problem};
use settings::reader::Reader;
use settings::section;
use settings::setting::Fallback::{Default, Unset};
use settings::setting::Kind::Text;
use settings::setting::{Section, Setting};

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

/// Limits of STS.
const SESSION_NAME_LENGTH: std::ops::RangeInclusive<usize> = 2..=64;
const EXTERNAL_ID_LENGTH: std::ops::RangeInclusive<usize> = 2..=1_224;

impl Aws {
    /// The place of the first setting of the section that has no default; `None` if the section is not used.
    pub(super) fn place(reader: &Reader) -> Option<Place> {
        super::tokens::place::<Aws>(reader)
    }

    /// Reads the section. `None` if it is not used, is incomplete, or cannot be used by this program.
    pub(super) fn from(reader: &mut Reader, is_built_in: bool) -> Option<Aws> {
        let aws = Aws::read(reader);
        let place = Aws::place(reader)?;
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
    let parts: Vec<&str> = text.split('-').collect();
    let is_word = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
    let valid = match parts.as_slice() {
        [words @ .., number] => {
            words.len() >= 2
                && words.iter().all(is_word)
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
        }
        [] => false,
    };
    if valid && text.len() <= 32 {
        return Ok(text.to_owned());
    }
    Err(Problem::new(format!("{setting} is not the code of an AWS region"), "for example \"eu-central-1\""))
}

/// Checks the ARN of a role.
fn role_arn(text: &str, setting: &Setting, _: &Reader) -> Result<Option<String>, Problem> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let valid = match parts.as_slice() {
        ["arn", partition, "iam", "", account, role] => {
            partition.starts_with("aws")
                && account.len() == 12
                && account.bytes().all(|byte| byte.is_ascii_digit())
                && role.strip_prefix("role/").is_some_and(|name| !name.is_empty())
        }
        _ => false,
    };
    if valid && text.len() <= 2_048 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(text.to_owned()));
    }
    let help = "for example \"arn:aws:iam::123456789012:role/outbox-relay\"";
    Err(Problem::new(format!("{setting} is not the ARN of an IAM role"), help))
}

/// Checks the name of a session.
fn session_name(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    if SESSION_NAME_LENGTH.contains(&text.len()) && text.bytes().all(|byte| is_allowed(byte, b"_+=,.@-")) {
        return Ok(text.to_owned());
    }
    let help = "use 2 to 64 characters: letters, digits, or any of _+=,.@-";
    Err(Problem::new(format!("{setting} is not a valid session name"), help))
}

/// Checks an external ID.
fn external_id(text: &str, setting: &Setting, _: &Reader) -> Result<Option<String>, Problem> {
    if EXTERNAL_ID_LENGTH.contains(&text.len()) && text.bytes().all(|byte| is_allowed(byte, b"_+=,.@:/-")) {
        return Ok(Some(text.to_owned()));
    }
    let help = "use 2 to 1224 characters: letters, digits, or any of _+=,.@:/-";
    Err(Problem::new(format!("{setting} is not a valid external ID"), help))
}

fn is_allowed(byte: u8, others: &[u8]) -> bool {
    byte.is_ascii_alphanumeric() || others.contains(&byte)
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
