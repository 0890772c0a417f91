//! The workflows and the image are built from pinned parts, with the least permissions. The files are only parsed;
//! `zizmor` checks more in `.github/workflows/security.yml`.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const FOLDER: &str = ".github/workflows";

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(file)).unwrap()
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The workflows by file name, as text and parsed.
fn workflows() -> BTreeMap<String, (String, Value)> {
    let files = fs::read_dir(Path::new(ROOT).join(FOLDER)).unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let workflow = |name: String| {
        let file = format!("{FOLDER}/{name}");
        (name, (read(&file), yaml(&file)))
    };
    names.map(workflow).collect()
}

/// The jobs of all workflows, each with its name for messages.
fn jobs() -> Vec<(String, Value)> {
    let mut jobs = Vec::new();
    for (file, (_, workflow)) in workflows() {
        for (job, content) in workflow["jobs"].as_object().unwrap() {
            jobs.push((format!("{file}: {job}"), content.clone()));
        }
    }
    assert!(jobs.len() > 8, "{}", jobs.len());
    jobs
}

fn steps(job: &Value) -> &[Value] {
    job["steps"].as_array().map_or(&[], Vec::as_slice)
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn has_digest(image: &str) -> bool {
    image.split_once("@sha256:").is_some_and(|(_, digest)| is_hex(digest, 64))
}

/// A tag or a branch can be moved to other code.
#[test]
fn every_action_is_pinned_by_its_commit_and_names_its_version() {
    for (file, (text, _)) in workflows() {
        for line in text.lines() {
            let Some((_, used)) = line.split_once("uses: ") else { continue };
            if used.starts_with("./") {
                continue;
            }
            let (action, version) = used.split_once(" # v").unwrap_or_else(|| panic!("{file}: {line}"));
            let commit = action.split_once('@').unwrap_or_else(|| panic!("{file}: {line}")).1;
            assert!(
                is_hex(commit, 40) && version.starts_with(|c: char| c.is_ascii_digit()),
                "{file}: {line}"
            );
        }
    }
}

#[test]
fn every_image_is_pinned_by_its_digest() {
    for (name, job) in jobs() {
        if let Some(image) = job["container"].as_str().or_else(|| job["container"]["image"].as_str()) {
            assert!(has_digest(image), "{name}: {image}");
        }
    }
    let dockerfile = read("Dockerfile");
    let bases: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases.len(), 2);
    for base in bases {
        assert!(has_digest(base.split_whitespace().next().unwrap()), "{base}");
    }
    // A frontend would be one more image. The one of BuildKit is sufficient.
    assert!(!dockerfile.contains("syntax="));
}

#[test]
fn jobs_have_only_the_permissions_that_they_name() {
    for (file, (_, workflow)) in workflows() {
        assert_eq!(workflow["permissions"].as_object().map(serde_json::Map::len), Some(0), "{file}");
    }
    for (name, job) in jobs() {
        assert!(job["permissions"].is_object(), "{name}");
        for step in steps(&job).iter().filter(|step| uses(step).starts_with("actions/checkout@")) {
            assert_eq!(step["with"]["persist-credentials"], false, "{name}");
        }
    }
}

fn uses(step: &Value) -> &str {
    step["uses"].as_str().unwrap_or_default()
}

/// An action of someone else could change what the job then publishes or attests.
#[test]
fn jobs_that_can_write_use_no_action_of_a_third_party() {
    let mut writing = 0;
    for (name, job) in jobs() {
        if !job["permissions"].as_object().unwrap().values().any(|access| access == "write") {
            continue;
        }
        writing += 1;
        for action in steps(&job).iter().map(uses).filter(|action| !action.is_empty()) {
            assert!(action.starts_with("actions/"), "{name}: {action}");
        }
    }
    assert!(writing >= 3, "{writing}");
}

/// The jobs that a job waits for, directly or through others.
fn waits_for(jobs: &Value, job: &str, wanted: &str) -> bool {
    let needs = &jobs[job]["needs"];
    let names = needs.as_array().map_or(std::slice::from_ref(needs), Vec::as_slice);
    names.iter().filter_map(Value::as_str).any(|name| name == wanted || waits_for(jobs, name, wanted))
}

#[test]
fn nothing_is_published_before_the_tests_and_cargo_deny_have_passed() {
    let release = yaml(".github/workflows/release.yml");
    let jobs = &release["jobs"];
    assert_eq!(jobs["tests"]["uses"], "./.github/workflows/ci.yml");
    for (name, job) in jobs.as_object().unwrap() {
        if job["permissions"].as_object().unwrap().values().any(|access| access == "write") {
            assert!(waits_for(jobs, name, "tests"), "{name}");
        }
    }
    let ci = yaml(".github/workflows/ci.yml");
    assert!(ci["on"].as_object().unwrap().contains_key("workflow_call"));
    let runs: Vec<_> = jobs_of(&ci).filter_map(|step| step["run"].as_str()).collect();
    for command in ["make test", "make deny", "make lint", "make fuzz"] {
        assert!(runs.iter().any(|run| run.contains(command)), "{command}");
    }
}

fn jobs_of(workflow: &Value) -> impl Iterator<Item = &Value> {
    workflow["jobs"].as_object().unwrap().values().flat_map(steps)
}

#[test]
fn advisories_are_checked_every_day_and_updates_are_proposed() {
    let security = yaml(".github/workflows/security.yml");
    assert!(security["on"]["schedule"][0]["cron"].as_str().unwrap().ends_with(" * * *"));
    assert!(jobs_of(&security).any(|step| step["run"] == "make deny"));
    let deny: toml::Table = read("deny.toml").parse().unwrap();
    assert_eq!(deny["advisories"]["yanked"].as_str(), Some("deny"));
    let dependabot = yaml(".github/dependabot.yml");
    let updates = dependabot["updates"].as_array().unwrap();
    for ecosystem in ["cargo", "github-actions", "docker"] {
        assert!(updates.iter().any(|update| update["package-ecosystem"] == ecosystem), "{ecosystem}");
    }
}
