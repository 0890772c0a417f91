//! The files for containers agree with the program: ports, probes, arguments, variables, settings and file names. The
//! files are only parsed, and no container is started.

use outbox_relay::config::{self, catalogue};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(file)).unwrap()
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The manifests, by file name.
fn manifests() -> BTreeMap<String, Value> {
    let folder = fs::read_dir(Path::new(ROOT).join("deploy/kubernetes")).unwrap();
    let files = folder.map(|entry| PathBuf::from("deploy/kubernetes").join(entry.unwrap().file_name()));
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let name = |file: &Path| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.map(|file| (name(&file), yaml(file.to_str().unwrap()))).collect()
}

/// The pods of the manifests, with the file name.
fn pods() -> Vec<(String, Value)> {
    let pod =
        |(name, document): (String, Value)| Some((name, document.pointer("/spec/template/spec")?.clone()));
    let pods: Vec<_> = manifests().into_iter().filter_map(pod).collect();
    assert_eq!(pods.len(), 2);
    pods
}

fn container(pod: &Value) -> &Value {
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    &containers[0]
}

/// The port in the default of `[admin] listen`.
fn admin_port() -> u64 {
    let catalogue::Fallback::Default(listen) = catalogue::CATALOGUE.find("admin", "listen").unwrap().fallback
    else {
        panic!("[admin] listen has no default")
    };
    listen.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Checks that every variable with the relay's prefix is a setting, and that clap accepts the arguments.
fn check_program(of: &str, variables: &BTreeMap<String, String>, arguments: &[String]) {
    for name in variables.keys().filter(|name| name.starts_with(catalogue::VARIABLE_PREFIX)) {
        assert!(catalogue::CATALOGUE.settings().any(|setting| setting.variable() == *name), "{of}: {name}");
    }
    let line = ["outbox-relay".to_owned()].into_iter().chain(arguments.iter().cloned());
    outbox_relay::cli::command().try_get_matches_from(line).unwrap_or_else(|error| panic!("{of}: {error}"));
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

#[test]
fn kubernetes_manifests_use_valid_arguments_and_settings() {
    for (file, pod) in pods() {
        let container = container(&pod);
        let pair = |item: &Value| {
            (item["name"].as_str().unwrap().to_owned(), item["value"].as_str().unwrap().to_owned())
        };
        let variables: BTreeMap<_, _> = container["env"].as_array().unwrap().iter().map(pair).collect();
        check_program(&file, &variables, &texts(&container["args"]));
        let mounted = |path: &str| {
            container["volumeMounts"].as_array().unwrap().iter().any(|mount| mount["mountPath"] == path)
        };
        assert!(mounted(&variables["CREDENTIALS_DIRECTORY"]), "{file}");
    }
}

/// The configuration is loaded as in the pod: the keys of the Secret are files in the same folder.
#[test]
fn configmap_loads_with_the_files_of_the_secret() {
    let manifests = manifests();
    let folder = tempfile::tempdir().unwrap();
    let secrets = manifests["secret.example.yaml"]["stringData"].as_object().unwrap();
    for (name, secret) in secrets {
        let file = folder.path().join(name);
        fs::write(&file, secret.as_str().unwrap()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap(); // as the volume does
    }
    let path = folder.path().join("config.toml");
    fs::write(&path, manifests["configmap.yaml"]["data"]["config.toml"].as_str().unwrap()).unwrap();
    let config =
        config::load(Some(&path), std::iter::empty()).unwrap_or_else(|findings| panic!("{findings}"));
    // Probes and Prometheus connect from other hosts, so the port is open to them. There must be no other warning.
    let warnings = config.warnings.to_string();
    assert_eq!(warnings.matches("warning: ").count(), 1, "{warnings}");
    assert!(warnings.contains("[admin] listen is open to other hosts"), "{warnings}");
    let listen = config.admin.listen.unwrap();
    assert!(listen.ip().is_unspecified() && u64::from(listen.port()) == admin_port(), "{listen}");
    // The relay must finish its rows in flight before Kubernetes kills it.
    let (_, pod) = pods().into_iter().find(|(file, _)| file == "deployment.yaml").unwrap();
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > config.relay.shutdown_timeout.as_secs(), "{grace}");
}

#[test]
fn probes_use_the_paths_and_the_port_that_the_relay_serves() {
    let manifests = manifests();
    let pod = &manifests["deployment.yaml"]["spec"]["template"]["spec"];
    let container = container(pod);
    assert_eq!(container["ports"][0]["name"], "admin");
    assert_eq!(container["ports"][0]["containerPort"], admin_port());
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], "admin");
    }
    assert_eq!(manifests["servicemonitor.yaml"]["spec"]["endpoints"][0]["path"], "/metrics");
    assert_eq!(manifests["service.yaml"]["spec"]["ports"][0]["port"], admin_port());
    let help = config::example();
    for path in ["/metrics", "/livez", "/readyz"] {
        assert!(help.contains(path), "{path}");
    }
    assert!(read("Dockerfile").contains(&format!("\nEXPOSE {}\n", admin_port())));
}

#[test]
fn every_selector_finds_the_pods_of_the_deployment() {
    let manifests = manifests();
    let deployment = &manifests["deployment.yaml"]["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    for (file, path) in [
        ("deployment.yaml", "/spec/selector/matchLabels"),
        ("poddisruptionbudget.yaml", "/spec/selector/matchLabels"),
        ("networkpolicy.yaml", "/spec/podSelector/matchLabels"),
        ("service.yaml", "/spec/selector"),
    ] {
        assert_eq!(manifests[file].pointer(path), Some(labels), "{file}");
    }
    let replicas = deployment["replicas"].as_u64().unwrap();
    let budget = &manifests["poddisruptionbudget.yaml"]["spec"];
    assert!(budget["minAvailable"].as_u64().unwrap() < replicas, "a node could not be drained");
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow", "or only after an outage of Kafka");
    // Every applied resource exists, and optional ones are not applied.
    let applied = texts(&manifests["kustomization.yaml"]["resources"]);
    for file in &applied {
        assert!(manifests.contains_key(file), "{file}");
    }
    let apart = ["kustomization.yaml", "migrate.yaml", "secret.example.yaml", "servicemonitor.yaml"];
    assert_eq!(applied.len() + apart.len(), manifests.len());
}

#[test]
fn pods_have_no_privileges_that_a_relay_does_not_need() {
    let dockerfile = read("Dockerfile");
    for (file, pod) in pods() {
        assert_eq!(pod["automountServiceAccountToken"], false, "{file}");
        let context = &pod["securityContext"];
        assert_eq!(context["runAsNonRoot"], true, "{file}");
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{file}");
        let user = format!("\nUSER {}:{}\n", context["runAsUser"], context["runAsGroup"]);
        assert!(dockerfile.contains(&user), "{file}: {user}");
        let container = container(&pod);
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false, "{file}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{file}");
        assert_eq!(texts(&context["capabilities"]["drop"]), ["ALL"], "{file}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{file}");
    }
}

#[test]
fn compose_uses_valid_arguments_and_settings() {
    let compose = yaml("compose.yaml");
    let text = |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap().to_owned());
    let service = |name: &str| {
        let service = &compose["services"][name];
        let variables = service["environment"]
            .as_object()
            .unwrap_or_else(|| panic!("{name}: the environment must be a table; <<: is not merged"));
        let variables: BTreeMap<_, _> = variables.iter().map(text).collect();
        check_program(name, &variables, &texts(&service["command"]));
        assert_eq!(service["read_only"], true);
        (service, variables)
    };
    let (init, _) = service("init");
    let (relay, mut variables) = service("relay");
    // The relay finds only what `init` has written, without the password of the superuser.
    assert_eq!(variables.keys().collect::<Vec<_>>(), ["OUTBOX_RELAY__ADMIN__LISTEN"]);
    assert_eq!(texts(&init["volumes"]), ["settings:/etc/outbox-relay"]);
    assert_eq!(texts(&relay["volumes"]), ["settings:/etc/outbox-relay:ro"]);
    assert!(compose["volumes"]["settings"].is_object());
    let (user, group) = ("--owner=65532", "--group=65532");
    assert!(read("Dockerfile").contains(&format!("{user} {group} --mode=700 /etc/outbox-relay\n")));
    let written = |option: &str| {
        let arguments = texts(&init["command"]);
        arguments.iter().find_map(|argument| argument.strip_prefix(option)).unwrap().to_owned()
    };
    variables.insert("OUTBOX_RELAY__POSTGRES__URL".to_owned(), written("--database="));
    variables.insert("OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS".to_owned(), written("--brokers="));
    let config = config::load(None, variables.into_iter()).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(u64::from(config.admin.listen.unwrap().port()), admin_port());
    let port = admin_port();
    assert_eq!(texts(&relay["ports"]), [format!("127.0.0.1:{port}:{port}")]);
    assert_eq!(relay["depends_on"]["init"]["condition"], "service_completed_successfully");
}

/// The quick start in the comment names services, a topic, a path and a port that the file defines.
#[test]
fn commands_in_the_comment_of_compose_fit_its_services() {
    let (text, compose) = (read("compose.yaml"), yaml("compose.yaml"));
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let comment = comment.join(" ").replace("\\ ", "");
    let exec: Vec<_> = comment.split("docker compose exec ").skip(1).collect();
    assert_eq!(exec.len(), 2, "{comment}");
    for command in exec {
        let (service, program) = command.split_once(' ').unwrap();
        assert!(compose["services"][service].is_object(), "{service}");
        assert!(program.starts_with("psql ") || program.starts_with("/opt/kafka/bin/"), "{program}");
    }
    let database = compose["services"]["postgres"]["environment"]["POSTGRES_DB"].as_str().unwrap();
    assert!(comment.contains(&format!("psql --username postgres {database} ")), "{comment}");
    let (_, values) = comment.split_once("VALUES ('").unwrap();
    let topic = format!("events.{}", values.split('\'').next().unwrap());
    let created = texts(&compose["services"]["init"]["command"]);
    assert!(created.contains(&format!("--topic={topic}")), "{created:?}");
    assert!(comment.contains(&format!("--topic {topic} ")), "{comment}");
    assert!(comment.contains(&format!("curl http://127.0.0.1:{}/readyz", admin_port())), "{comment}");
}

#[test]
fn image_build_contains_every_file_that_cargo_needs() {
    let ignored = read(".dockerignore");
    let sent: Vec<_> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let members =
        manifest["workspace"]["members"].as_array().unwrap().iter().map(|member| member.as_str().unwrap());
    for needed in members.chain([
        "Cargo.toml",
        "Cargo.lock",
        "build.rs",
        "README.md",
        "src",
        "sql",
        "tests",
        "packaging/config.toml",
    ]) {
        let is_sent = |entry: &&str| Path::new(needed).starts_with(entry);
        assert!(sent.iter().any(is_sent), "{needed}");
        assert!(Path::new(ROOT).join(needed).exists(), "{needed}");
    }
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(read("Dockerfile").contains(&format!("FROM rust:{rust}-")), "{rust}");
}
