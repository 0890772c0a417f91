//! What the sections that provide tokens, `[kafka.oauth]` and `[kafka.aws]`, have in common.

use std::collections::BTreeMap;

use super::{Aws, OAUTHBEARER, OAuth, Property};
use settings::entries::Entry;
use settings::findings::{Place, Problem};
use settings::reader::Reader;
use settings::setting::{Fallback, Section, Setting};

/// The place of the first setting of a section that has no default; `None` if the section is not used.
pub(super) fn place<S: Section>(reader: &Reader) -> Option<Place> {
    let has_no_default = |setting: &&Setting| !matches!(setting.fallback, Fallback::Default(_));
    S::SETTINGS.iter().filter(has_no_default).find_map(|setting| reader.place(setting))
}

/// The problem with `sasl.mechanism` = OAUTHBEARER if neither section is used.
pub(super) fn missing() -> Problem {
    Problem::new(
        "Kafka property `sasl.mechanism` is OAUTHBEARER, but neither [kafka.oauth] nor [kafka.aws] is set",
        "set token_url, client_id and client_secret_file in [kafka.oauth], or region in [kafka.aws]",
    )
}

/// A section that provides tokens.
pub(super) struct TokenSection {
    name: &'static str,
    place: Place,
    is_aws: bool,
}

impl TokenSection {
    /// The section that is used. Both together are a finding.
    pub(super) fn used(reader: &mut Reader) -> Option<TokenSection> {
        let oauth = OAuth::place(reader);
        let oauth = oauth.map(|place| TokenSection { name: "[kafka.oauth]", place, is_aws: false });
        let aws = Aws::place(reader);
        let aws = aws.map(|place| TokenSection { name: "[kafka.aws]", place, is_aws: true });
        if let (Some(_), Some(aws)) = (&oauth, &aws) {
            let problem = Problem::new("both [kafka.oauth] and [kafka.aws] are set", "remove one of them");
            reader.findings.error(&aws.place, problem);
        }
        oauth.or(aws)
    }

    /// Reports settings of the login that contradict the section. `mechanism` is the one in effect.
    pub(super) fn check(
        &self,
        protocol: &str,
        mechanism: &str,
        properties: &BTreeMap<String, Property>,
        entries: &BTreeMap<String, Entry>,
        reader: &mut Reader,
    ) {
        let TokenSection { name, place, is_aws } = self;
        let uses_sasl = protocol.starts_with("sasl");
        let problem = if !uses_sasl {
            let message = format!("{name} has no effect while security.protocol is {protocol}");
            Problem::new(message, "set \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]")
        } else if !mechanism.eq_ignore_ascii_case(OAUTHBEARER) {
            let message = format!("{name} has no effect while `sasl.mechanism` is {mechanism}");
            Problem::new(message, format!("set \"sasl.mechanism\" = \"OAUTHBEARER\", or remove {name}"))
        } else if *is_aws && protocol != "sasl_ssl" {
            let message = format!("{name} requires TLS, but security.protocol is {protocol}");
            Problem::new(message, "set \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]")
        } else {
            if *is_aws {
                check_passwords(properties, entries, reader);
            }
            return;
        };
        reader.findings.error(place, problem);
    }
}

/// A password next to `[kafka.aws]` is left from another login.
fn check_passwords(
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
