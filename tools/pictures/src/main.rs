//! `make pictures`: screenshots for the documentation. They show a live operator on a local
//! Kubernetes, the dashboard in Chromium, and commands in a terminal.

#![expect(clippy::expect_used, clippy::panic, reason = "a failure ends the program and names the location")]

mod scene;
mod session;

use std::{fs, path::PathBuf, time::Duration};

use perennial_harness::{Chromium, Page};

/// One screenshot.
struct View {
    /// Name of the file.
    name: &'static str,
    address: &'static str,
    /// Colour scheme.
    colours: &'static str,
    size: (u32, u32),
    /// A text of the page that appears once the view is complete.
    text: &'static str,
}

const VIEWS: [View; 7] = [
    View { name: "overview", address: "#/", colours: "light", size: (1280, 920), text: "Needs attention" },
    View { name: "overview-dark", address: "#/", colours: "dark", size: (1280, 920), text: "Needs attention" },
    View {
        name: "node",
        address: "#/node/worker-07",
        colours: "light",
        size: (1280, 900),
        text: "Current incarnation",
    },
    View {
        name: "workload",
        address: "#/workload/deployment/default/checkout",
        colours: "light",
        size: (1280, 860),
        text: "Point at a slot",
    },
    View {
        name: "nodes-dark",
        address: "#/nodes",
        colours: "dark",
        size: (1280, 760),
        text: ", including deleted ones",
    },
    View { name: "policies", address: "#/policies", colours: "light", size: (1280, 900), text: "Keeps cordons" },
    View { name: "phone", address: "#/", colours: "light", size: (390, 844), text: "Needs attention" },
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
    for view in VIEWS {
        show(&page, &view).await;
        let picture = page.screenshot().await;
        let name = view.name;
        println!("docs/images/{name}.png ({} KB)", picture.len() / 1024);
        fs::write(folder.join(format!("{name}.png")), picture).expect("writing a picture");
    }
}

async fn show(page: &Page, view: &View) {
    let (width, height) = view.size;
    page.set_color_scheme(view.colours).await;
    page.resize(width, height).await;
    page.go(view.address).await;
    page.wait_for_in("main", view.text).await;
    // After two frames the view is painted.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))").await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_awaited_text_is_on_a_page_of_the_dashboard() {
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/operator/src/dashboard/page");
        let scripts: Vec<String> = fs::read_dir(pages)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "js"))
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        for view in VIEWS {
            let found = scripts.iter().any(|script| script.contains(view.text));
            assert!(found, "{}: no page contains {:?}", view.name, view.text);
        }
    }
}
