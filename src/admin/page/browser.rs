//! The page of every state in a real headless Chromium, on narrow and wide screens, light and dark: `make page`.
//!
//! Chromium is driven through its DevTools protocol over two pipes. The scripts of this test run in the page although its policy
//! forbids scripts. The screenshots are kept in `target/page`.

mod chromium;
mod server;

use super::fixture;
use chromium::Chromium;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const WIDTHS: [u32; 2] = [360, 1280];
const THEMES: [&str; 2] = ["light", "dark"];
/// Measures the page, and returns what is wrong with it as a list of texts.
const MEASURE: &str = include_str!("browser/measure.js");

#[tokio::test]
#[ignore = "needs Chromium: make page"]
async fn page_of_every_state_fits_and_is_readable() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
    fs::create_dir_all(&folder).unwrap();
    let mut wrong = Vec::new();
    let mut chromium = Chromium::start();
    for (state, scene) in fixture::states() {
        let address = server::serve(scene.html());
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
    let address = server::serve(faulty.replace("</body>", "<script>document.title = 'run'</script></body>"));
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
