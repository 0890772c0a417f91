//! The page of every state in a real headless Chromium, on narrow and wide screens, light and dark: `make page`.
//!
//! Chromium is driven through its DevTools protocol: JSON messages that end with NUL, on two pipes. The scripts of this test run
//! in the page although its policy forbids scripts. The screenshots are kept in `target/page`.

use super::fixture;
use crate::admin::page::protection;
use axum::Router;
use axum::http::header;
use axum::routing::get;
use openssl::base64::decode_block;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const WIDTHS: [u32; 2] = [360, 1280];
const THEMES: [&str; 2] = ["light", "dark"];
/// Measures the page, and returns what is wrong with it as a list of texts.
const MEASURE: &str = include_str!("measure.js");

#[tokio::test]
#[ignore = "needs Chromium: make page"]
async fn page_of_every_state_fits_and_is_readable() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
    fs::create_dir_all(&folder).unwrap();
    let mut wrong = Vec::new();
    let mut chromium = Chromium::start();
    for (state, scene) in fixture::states() {
        let address = serve(scene.html());
        for width in WIDTHS {
            for theme in THEMES {
                let name = format!("{state}-{width}-{theme}");
                chromium.show(&format!("http://{address}/?refresh=off"), width, theme);
                let found = chromium.evaluate(MEASURE);
                let found = found.as_array().unwrap_or_else(|| panic!("{name}: {found}"));
                wrong.extend(found.iter().map(|what| format!("{name}: {}", what.as_str().unwrap())));
                let logged = chromium.take_log();
                wrong.extend(logged.into_iter().map(|what| format!("{name}: the browser reports: {what}")));
                fs::write(folder.join(format!("{name}.png")), chromium.screenshot()).unwrap();
            }
        }
    }
    println!("the screenshots are in {}", folder.display());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The measurements find faults, and the policy stops scripts and styles that are not the page's own.
#[tokio::test]
#[ignore = "needs Chromium: make page"]
async fn measurements_find_faults_and_the_policy_is_in_force() {
    let mut chromium = Chromium::start();
    let html = fixture::states().remove(0).1.html();
    let faulty = html.replace(
        "<main>",
        "<main><p id=x>a</p><img src='http://127.0.0.1:1/x.png'><table><tr><td>1</td></tr></table>",
    );
    let address = serve(faulty.replace("</body>", "<script>document.title = 'run'</script></body>"));
    chromium.show(&format!("http://{address}/"), 360, "light");
    assert_ne!(chromium.evaluate("document.title"), json!("run"), "the policy allows no script");
    let logged = chromium.take_log().join("\n");
    assert!(logged.contains("script-src") && logged.contains("img-src"), "{logged}");
    chromium.evaluate(
        "const p = document.getElementById('x'); p.style.width = '900px'; p.style.color = '#bbb'; \
         p.style.background = '#fff'; document.querySelector('svg').removeAttribute('aria-label'); 1",
    );
    let found = chromium.evaluate(MEASURE);
    let found = Value::to_string(&found);
    for fault in ["wider than the screen", "contrast", "no name", "column headers"] {
        assert!(found.contains(fault), "{fault}: {found}");
    }
}

/// Chromium without a window.
struct Chromium {
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
    fn start() -> Chromium {
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
    fn show(&mut self, url: &str, width: u32, theme: &str) {
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
    fn evaluate(&mut self, script: &str) -> Value {
        let answer = self.call("Runtime.evaluate", &json!({ "expression": script, "returnByValue": true }));
        assert!(answer.get("exceptionDetails").is_none(), "{answer:#}");
        answer["result"]["value"].clone()
    }

    /// The whole page as a PNG.
    fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", &json!({ "captureBeyondViewport": true }));
        decode_block(answer["data"].as_str().unwrap()).unwrap()
    }

    /// What the browser has logged about the page, such as violations of its policy.
    fn take_log(&mut self) -> Vec<String> {
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

/// Serves this page until the test ends. Returns the address.
fn serve(html: String) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = || async move { (protection(), [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html) };
    let router = Router::new().route("/", get(answer));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = hyper_util::service::TowerToHyperService::new(router.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .keep_alive(false)
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
    });
    address
}
