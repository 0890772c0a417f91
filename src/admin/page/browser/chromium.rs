//! Chromium without a window, through its DevTools protocol: JSON messages that end with NUL, on two pipes.

use openssl::base64::decode_block;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(super) struct Chromium {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    session: String,
    number: u64,
    loaded: bool,
    log: Vec<String>,
    _folder: TempDir,
}

impl Chromium {
    /// Starts the browser that `CHROMIUM` names, and opens an empty page.
    pub(super) fn start() -> Chromium {
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        let folder = tempfile::tempdir().unwrap();
        let (requests, answers) = (folder.path().join("requests"), folder.path().join("answers"));
        for pipe in [&requests, &answers] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        // Opened for both directions, so that opening does not wait for the other end.
        let to = OpenOptions::new().read(true).write(true).open(&requests).unwrap();
        let script = "exec \"$0\" \"$@\" 3<\"$REQUESTS\" 4>\"$ANSWERS\"";
        let child = Command::new("sh")
            .args([
                "-c",
                script,
                &program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args(["--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("REQUESTS", &requests)
            .env("ANSWERS", &answers)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Waits for the browser. Reading fails when it ends.
        let answers = BufReader::new(File::open(&answers).unwrap());
        let (session, log) = (String::new(), Vec::new());
        let mut chromium = Chromium {
            child,
            requests: to,
            answers,
            session,
            number: 0,
            loaded: false,
            log,
            _folder: folder,
        };
        let target = chromium.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = chromium.call("Target.attachToTarget", &attach);
        chromium.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            chromium.call(&format!("{domain}.enable"), &json!({}));
        }
        chromium
    }

    /// Loads the page on a screen of this width.
    pub(super) fn show(&mut self, url: &str, width: u32, theme: &str) {
        let screen = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", &screen);
        let theme = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        self.call("Emulation.setEmulatedMedia", &theme);
        (self.loaded, self.log) = (false, Vec::new());
        self.call("Page.navigate", &json!({ "url": url }));
        while !self.loaded {
            self.receive();
        }
    }

    /// The value of a script in the page.
    pub(super) fn evaluate(&mut self, script: &str) -> Value {
        let answer = self.call("Runtime.evaluate", &json!({ "expression": script, "returnByValue": true }));
        assert!(answer.get("exceptionDetails").is_none(), "{answer:#}");
        answer["result"]["value"].clone()
    }

    /// The whole page as a PNG.
    pub(super) fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", &json!({ "captureBeyondViewport": true }));
        decode_block(answer["data"].as_str().unwrap()).unwrap()
    }

    /// What the browser has logged about the page, such as violations of its policy.
    pub(super) fn take_log(&mut self) -> Vec<String> {
        self.call("Runtime.evaluate", &json!({ "expression": "1" })); // events before its answer have arrived
        std::mem::take(&mut self.log)
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.requests.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == self.number {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.answers.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        let message: Value = serde_json::from_slice(&message).unwrap();
        self.loaded |= message["method"] == "Page.loadEventFired";
        if message["method"] == "Log.entryAdded" {
            self.log.push(message["params"]["entry"]["text"].to_string());
        }
        message
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
