//! `make pictures`: screenshots for the documentation. They show a live operator on a local
//! Kubernetes, the dashboard in Chromium, and commands in a terminal.

#![expect(clippy::expect_used, clippy::panic, reason = "a failure ends the program and names the location")]

mod scene;
mod session;

use std::{fs, path::PathBuf, time::Duration};

use perennial_harness::{Chromium, Page};

/// Screenshots: file, address, colour scheme, width, height, and a text that shows that the view is
/// complete.
const VIEWS: [(&str, &str, &str, u32, u32, &str); 6] = [
    ("overview", "#/", "light", 1280, 920, "Needs attention"),
    ("overview-dark", "#/", "dark", 1280, 920, "Needs attention"),
    ("node", "#/node/worker-07", "light", 1280, 900, "This incarnation"),
    ("workload", "#/workload/deployment/default/checkout", "light", 1280, 860, "What is done about it"),
    ("nodes-dark", "#/nodes", "dark", 1280, 760, "worker-01"),
    ("phone", "#/", "light", 390, 844, "Needs attention"),
];

#[tokio::main]
async fn main() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images"));
    fs::create_dir_all(&folder).expect("a folder for the pictures");
    let Some(browser) = Chromium::start() else { panic!("Chromium is not installed") };
    let scene = scene::Scene::set().await;
    let terminal = session::play(&scene).await;
    fs::write(folder.join("terminal.svg"), terminal).expect("writing a picture");
    println!("docs/images/terminal.svg");
    let page = browser.open(&scene.address().await, 1280, 900).await;
    scene.live(Duration::from_mins(4)).await;
    for (name, address, colours, width, height, text) in VIEWS {
        show(&page, address, colours, width, height, text).await;
        let picture = page.screenshot().await;
        println!("docs/images/{name}.png ({} KB)", picture.len() / 1024);
        fs::write(folder.join(format!("{name}.png")), picture).expect("writing a picture");
    }
}

async fn show(page: &Page, address: &str, colours: &str, width: u32, height: u32, text: &str) {
    page.set_color_scheme(colours).await;
    page.resize(width, height).await;
    page.go(address).await;
    page.wait_for_in("main", text).await;
    // After two frames the view is painted.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))").await;
}
