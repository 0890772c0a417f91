//! Secrets are read from the right place, and never printed.

use super::{Case, LEAST, load, with};
use crate::config::{Property, SecretSource};
use settings::secret::{Lookup, file_of_service};
use std::path::Path;

const MARK: &str = "hunter2";

#[test]
fn a_password_command_replaces_and_excludes_a_password() {
    let text = |more: &str| LEAST.replace("[kafka]", &format!("{more}\n[kafka]"));
    let command = |case: Case| {
        let command = case.load().unwrap().postgres.password_command;
        command.map(|command| (command.program().to_owned(), command.arguments().join("|")))
    };
    let words = |program: &str, arguments: &str| Some((program.to_owned(), arguments.to_owned()));
    let printed = text("password_command = ['print-it', '--for', 'a b']");
    assert_eq!(command(Case::new(&printed)), words("print-it", "--for|a b"));
    assert!(Case::new(&printed).load().unwrap().postgres.password.is_none());
    for other in ["password = 'x'", "password_file = 'pw'"] {
        let key = other.split(' ').next().unwrap();
        let both = text(&format!("{other}\npassword_command = ['print-it']"));
        let findings = Case::new(&both).file("pw", "x").findings();
        let expected = format!("both password_command and {key} are set in [postgres]");
        assert!(findings.len() == 1 && findings[0].contains(&expected), "{findings:?}");
    }
    for (value, problem) in [
        ("'print-it'", "must be an array of strings, not a string"),
        ("['print-it', 1]", "must be an array of strings, not a list"),
        ("[]", "names no program"),
        ("[' ']", "names no program"),
        ("['a\\u0000b']", "names no program"),
    ] {
        let value = value.replace('\'', "\"");
        let findings = Case::new(&text(&format!("password_command = {value}"))).findings();
        let expected = format!("[postgres] password_command {problem}");
        assert!(findings.len() == 1 && findings[0].contains(&expected), "{value}: {findings:?}");
        assert!(findings[0].contains("for example password_command = [\"aws\", "), "{findings:?}");
    }
    let empty = Case::new(&text("password = 'x'")).env("OUTBOX_RELAY__POSTGRES__PASSWORD_COMMAND", " ");
    assert!(empty.findings()[0].contains("[postgres] password_command must be an array of strings"));
    // The environment replaces either, and another url needs its own password.
    let in_environment = Case::new(&printed).env("OUTBOX_RELAY__POSTGRES__PASSWORD", "x");
    assert_eq!(command(in_environment), None);
    let in_file = Case::new(&text("password = 'x'"))
        .env("OUTBOX_RELAY__POSTGRES__PASSWORD_COMMAND", "[\"other\", \"x\"]");
    assert_eq!(in_file.load().unwrap().postgres.password, None);
    assert_eq!(command(in_file), words("other", "x"));
    let other_url = Case::new(&printed).env("OUTBOX_RELAY__POSTGRES__URL", "postgres://alice@localhost/app");
    assert_eq!(command(other_url), None);
}

#[test]
fn a_secret_that_others_can_read_is_a_warning_and_a_key_an_error() {
    let text = |more: &str| LEAST.replace("[kafka]", &format!("{more}\n[kafka]"));
    let inline = || Case::new(&text("password = 'hunter2'"));
    let in_url = || Case::new(&LEAST.replace("relay@", "relay:hunter2@"));
    let property = || Case::new(&format!("{LEAST}[kafka.properties]\n'ssl.key.password' = 'hunter2'\n"));
    let in_file = || Case::new(&text("password_file = 'pw'")).file("pw", "hunter2");
    let key = || Case::new(&text("sslcert = 'c'\nsslkey = 'k'")).file("c", "").file("k", "");
    let kafka_key =
        || Case::new(&format!("{LEAST}[kafka.properties]\n'ssl.key.location' = 'k'\n")).file("k", "");
    for (case, file, expected) in [
        (
            &inline as &dyn Fn() -> Case,
            "config.toml",
            "warning: config.toml:3: [postgres] password is a secret",
        ),
        (&in_url, "config.toml", "warning: config.toml:2: the password in [postgres] url is a secret"),
        (&property, "config.toml", "warning: config.toml:6: ssl.key.password is a secret"),
        (&in_file, "pw", "warning: config.toml:3: [postgres] password_file: other users can read "),
        (&key, "k", "error: config.toml:4: sslkey: other users can read the private key "),
        (&kafka_key, "k", "error: config.toml:6: ssl.key.location: other users can read the private key "),
    ] {
        assert_eq!(case().findings(), [""; 0], "{expected}");
        for mode in [0o644, 0o666, 0o604] {
            let findings = case().mode(file, mode).findings();
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].starts_with(expected), "{findings:?}");
            assert!(findings[0].contains(&format!("(mode {mode:04o})")), "{findings:?}");
            assert!(!findings[0].contains(MARK), "{findings:?}");
        }
    }
    // As in libpq, the group may read a file that belongs to root.
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    assert_eq!(in_file().mode("pw", 0o640).findings().is_empty(), is_root);
    assert_eq!(Case::new(LEAST).mode("config.toml", 0o644).findings(), [""; 0], "without a secret");
}

#[test]
fn files_are_looked_up_in_the_credentials_first_and_then_next_to_the_configuration() {
    let text = "[postgres]\nurl_file = 'pg-url'\n[kafka]\nbootstrap_servers = 'localhost:9092'\n";
    let case = Case::new(text).file("pg-url", "postgres://neighbor@localhost/app").credentials("credentials");
    let user = |case: &Case| {
        let config = case.load().unwrap().postgres.connection().unwrap().config;
        config.get_user().unwrap().to_owned()
    };
    assert_eq!(user(&case), "neighbor");
    let case = case.file("credentials/pg-url", "postgres://credential@localhost/app\n");
    assert_eq!(user(&case), "credential");
}

#[test]
fn commands_for_an_instance_of_the_service_use_its_own_secrets() {
    let text = "[postgres]\nurl_file = 'postgres-url'\n[kafka]\nbootstrap_servers = 'localhost:9092'\n";
    let case = Case::new(text).file("orders.toml", text).file("billing.toml", text);
    let case = case.file("postgres-url", "postgres://main@localhost/app");
    let case = case.file("orders.postgres-url", "postgres://orders@localhost/app");
    let case = case.file("config.postgres-url", "postgres://nobody@localhost/app");
    let case = case.file("credentials/postgres-url", "postgres://credential@localhost/app");
    let credentials = case.path("credentials").to_str().unwrap().to_owned();
    let missing = case.path("missing").to_str().unwrap().to_owned();
    for (file, credentials, expected) in [
        ("orders.toml", None, "orders"),
        ("config.toml", None, "main"),
        ("billing.toml", None, "main"),
        ("orders.toml", Some(credentials), "credential"),
        ("orders.toml", Some(missing), "orders"),
    ] {
        let variables = credentials.map(|folder| ("CREDENTIALS_DIRECTORY".to_owned(), folder));
        let config = load(Some(&case.path(file)), variables.into_iter()).unwrap();
        let connection = config.postgres.connection().unwrap();
        assert_eq!(connection.config.get_user(), Some(expected), "{file}");
    }
}

#[test]
fn only_plain_names_belong_to_a_service() {
    let file = |config: &str, secret| file_of_service(Path::new(config), secret);
    assert_eq!(file("/etc/x/orders.toml", "pw"), Some("/etc/x/orders.pw".into()));
    assert_eq!(file("orders.toml", "pw"), Some("orders.pw".into()));
    assert_eq!(file("/etc/x/config.toml", "pw"), Some("/etc/x/pw".into()));
    for elsewhere in ["/run/pw", "certs/pw", "..", ""] {
        assert_eq!(file("/etc/x/orders.toml", elsewhere), None, "{elsewhere}");
    }
}

#[test]
fn the_finding_for_a_missing_file_names_the_searched_folders() {
    let case = Case::new("[postgres]\nurl_file = 'pg-url'\n[kafka]\nbootstrap_servers = 'localhost:9092'\n");
    let findings = case.credentials("credentials").findings();
    assert_eq!(findings.len(), 1, "{}", findings.join("\n"));
    assert!(
        findings[0].contains("config.toml:2: [postgres] url_file: cannot read pg-url: "),
        "{}",
        findings[0]
    );
    assert!(
        findings[0].contains("looked up in credentials (CREDENTIALS_DIRECTORY), then "),
        "{}",
        findings[0]
    );
}

#[test]
fn an_empty_secret_file_is_a_finding() {
    let findings = with("").file("pw", "\n").env("OUTBOX_RELAY__POSTGRES__PASSWORD_FILE", "pw").findings();
    assert_eq!(findings.len(), 1, "{}", findings.join("\n"));
    assert!(findings[0].contains("pw is empty"), "{}", findings[0]);
}

/// Deployments pass unset variables as empty ones. The secret of the file must not be replaced by nothing.
#[test]
fn an_empty_secret_is_a_finding() {
    let variables = ["POSTGRES__PASSWORD", "KAFKA__PROPERTIES__SASL_PASSWORD"];
    for variable in variables.map(|name| format!("OUTBOX_RELAY__{name}")) {
        let findings = with("").env(&variable, "").findings();
        let errors: Vec<&String> = findings.iter().filter(|finding| finding.contains("is empty")).collect();
        assert!(errors.len() == 1 && errors[0].contains(&variable), "{variable}: {}", findings.join("\n"));
    }
}

#[test]
fn the_help_for_an_empty_credential_names_the_file_to_write() {
    let folder = Path::new("/run/credentials/outbox-relay.service");
    let lookup = Lookup { credentials: Some(folder.to_owned()), config_file: None };
    let help = lookup.help_with_empty(&folder.join("postgres-url"));
    assert!(help.contains("LoadCredential= names in `systemctl cat outbox-relay.service`"), "{help}");
    for elsewhere in ["/etc/outbox-relay/postgres-url", "/run/credentials/postgres-url"] {
        assert_eq!(lookup.help_with_empty(elsewhere.as_ref()), "write the secret to it, on one line");
    }
}

#[test]
fn commands_that_use_only_the_database_open_no_files_for_kafka() {
    let kafka = "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n'sasl.mechanism' = 'PLAIN'\n\
                 'sasl.password_file' = 'kafka-pw'\n'ssl.ca.location' = 'ca.pem'\n";
    let oauth = "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n[kafka.oauth]\ntoken_url = 'https://h/t'\n\
                 client_id = 'c'\nclient_secret_file = 'token-pw'\nca_location = 'ca.pem'\n";
    for settings in [kafka, oauth] {
        let case = with(settings);
        let path = case.path("config.toml");
        assert!(crate::config::load_for_database(Some(&path), std::iter::empty()).is_ok(), "{settings}");
        assert_eq!(case.findings().len(), 2, "{settings}");
    }
    let case = Case::new(&LEAST.replace("[kafka]", "password_file = 'pw'\n[kafka]"));
    assert!(
        crate::config::load_for_database(Some(&case.path("config.toml")), std::iter::empty()).is_err(),
        "files for the database are opened"
    );
}

#[test]
fn a_rotated_password_is_used_for_the_next_connection() {
    let case = Case::new(&LEAST.replace("[kafka]", "password_file = 'pw'\n[kafka]")).file("pw", "old\n");
    let config = case.load().unwrap();
    let password = || config.postgres.connection().unwrap().config.get_password().unwrap().to_vec();
    assert_eq!(password(), b"old");
    std::fs::write(case.path("pw"), "new\r\n").unwrap();
    assert_eq!(password(), b"new");
    std::fs::remove_file(case.path("pw")).unwrap();
    let error = config.postgres.connection().unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.ends_with("pw"), "{error}");
}

#[test]
fn the_password_overrides_the_one_of_the_url() {
    let text = "[postgres]\nurl = 'postgres://u:inner@localhost/a'\npassword = 'outer'\n[kafka]\nbootstrap_servers = 'k'\n";
    let connection = Case::new(text).load().unwrap().postgres.connection().unwrap();
    assert_eq!(connection.config.get_password(), Some(b"outer".as_slice()));
}

#[test]
fn a_secret_and_its_twin_in_the_same_place_are_a_finding() {
    let both = "password = 'x'\npassword_file = 'pw'\n[kafka]";
    Case::new(&LEAST.replace("[kafka]", both)).file("pw", "x").assert_finding(
        "error: config.toml:4: both password and password_file are set in [postgres]\n  \
         4 | password_file = 'pw'\n  help: remove one of them",
    );
    let properties = "[kafka.properties]\n'ssl.key.password' = 'x'\n'ssl.key.password_file' = 'pw'\n";
    with(properties).file("pw", "x").assert_finding(
        "error: config.toml:7: both `ssl.key.password` and `ssl.key.password_file` are set\n  \
         7 | 'ssl.key.password_file' = 'pw'\n  help: remove one of them",
    );
}

#[test]
fn a_secret_in_the_environment_overrides_its_twin_in_the_file() {
    let case = Case::new(&LEAST.replace("[kafka]", "password_file = 'absent'\n[kafka]"))
        .env("OUTBOX_RELAY__POSTGRES__PASSWORD", "x");
    let connection = case.load().unwrap().postgres.connection().unwrap();
    assert_eq!(connection.config.get_password(), Some(b"x".as_slice()));
}

#[test]
fn kafka_secrets_have_twins_too() {
    let sasl = "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n'sasl.mechanism' = 'PLAIN'\n";
    let by_file = with(&format!("{sasl}'sasl.password_file' = 'pw'\n")).file("pw", "x\n");
    let by_environment =
        with(sasl).file("pw", "x\n").env("OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD_FILE", "pw");
    for case in [by_file, by_environment] {
        let config = case.load().unwrap();
        let source = SecretSource::File(case.path("pw"));
        assert_eq!(config.kafka.properties["sasl.password"], Property::Secret(source));
        let properties = config.kafka.read_properties().unwrap();
        let password = properties.iter().find(|(name, _)| *name == "sasl.password").unwrap();
        assert_eq!(password.1.expose(), "x");
    }
}

#[test]
fn the_configuration_does_not_print_secrets() {
    let case = Case::new(&format!(
        "[postgres]\nurl = 'postgres://u:{MARK}@localhost/a'\npassword = '{MARK}'\n[kafka]\n\
         bootstrap_servers = 'localhost:9092'\n[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n\
         'sasl.mechanism' = 'PLAIN'\n'sasl.password' = '{MARK}'\n"
    ));
    let config = case.load().unwrap();
    let shown = format!("{config:?} {config:#?} {:?}", config.postgres.connection().unwrap());
    assert!(!shown.contains(MARK), "{shown}");
    assert_eq!(config.postgres.connection().unwrap().config.get_password(), Some(MARK.as_bytes()));
}

#[test]
fn findings_do_not_print_secrets() {
    let kafka = "[kafka]\nbootstrap_servers = 'localhost:9092'\n";
    for text in [
        format!("[postgres]\nurl = 'mysql://u:{MARK}@h/d'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres//u:{MARK}@h/d?sslmode=x'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u:p?{MARK}=1/x@h/d'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u:{MARK}@h:port/d'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u@h:{MARK}/d'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u@h/d?password={MARK}&nonsense=1'\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u@h/d?{MARK}'\n{kafka}"),
        format!("[postgres]\nurl = 'host=h {MARK}'\n{kafka}"),
        format!("[postgres]\nurl = 'host=h {MARK}=x'\n{kafka}"),
        format!("[postgres]\nurl = \"host=h password='{MARK}\"\n{kafka}"),
        format!("[postgres]\nurl = 'postgres://u:{MARK}@h/d\n{kafka}"),
        format!("[postgres]\nurl 'postgres://u:{MARK}@h/d'\n{kafka}"),
        format!("[postgres]\nurl = ['{MARK}']\n{kafka}"),
        format!("[postgres]\npasword = '{MARK}'\n{kafka}"),
        format!("[postgres]\npassword = {MARK}\n{kafka}"),
        format!(
            "[postgres]\nurl = 'postgres://u@h/d'\npassword_command = 'curl -u relay:{MARK} vault'\n{kafka}"
        ),
        format!(
            "[postgres]\nurl = 'postgres://u@h/d'\npassword = 'p'\npassword_command = ['a', '{MARK}']\n{kafka}"
        ),
        format!("[postgres]\nurl = 'postgres://u@h/d'\npassword_command = ['a', '{MARK}'\n{kafka}"),
        format!("[postgres]\npassword = \"\"\"\nabc\n{MARK}=\n{kafka}"),
        format!("[postgres]\npassword = '''abc\n{MARK} = x\n'''\n{MARK}\n{kafka}"),
        format!("postgres = {{ url = '{MARK}' }}\n{kafka}"),
        format!("postgres.url = 'x:{MARK}'\n{kafka}"),
        format!("[postgres] password = '{MARK}'\n{kafka}"),
        format!("[kafka]\nbootstrap_servers = 'postgres://u:{MARK}@h/d'\n"),
        format!("{kafka}properties = {{ 'sasl.pasword' = '{MARK}' }}\n"),
        format!("{kafka}[kafka.properties]\nsasl.password = ['{MARK}']\n"),
        format!("{kafka}[kafka.properties]\n'sasl.password' = '{MARK}\\u0000\n"),
        format!("{kafka}[kafka.properties]\n'sasl.password' = \"{MARK}\\u0000\"\n"),
        format!(
            "{kafka}[kafka.properties]\n'ssl.key.pem' = \"{MARK}\\u0000\"\n'sasl.jaas.config' = '{MARK}'\n"
        ),
        format!("{kafka}[log]\nlevel = 'info' password = '{MARK}'\n"),
    ] {
        let shown = Case::new(&text).findings().join("\n");
        assert!(!shown.is_empty() && !shown.contains(MARK), "{text}\n{shown}");
    }
}
