//! Headless Chromium, controlled over its debugging pipe.
//!
//! # Guarantees
//! Chromium ends with the process that started it, because it exits when its pipe closes. Each
//! instance has its own profile, which is removed with it.

use std::{
    collections::HashMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    eventually,
    external_programs::{Browser, chromium},
};

/// Maximum time for a response.
const PATIENCE: Duration = Duration::from_mins(1);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A running Chromium.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    profile: PathBuf,
    connection: Arc<Connection>,
}

#[derive(Debug)]
struct Connection {
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    /// Every message that is not a response.
    events: Arc<Mutex<Vec<Value>>>,
    number: AtomicU64,
}

impl Chromium {
    /// Starts Chromium. Returns `None`, with a message, if it cannot be had.
    pub fn start() -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Browser { program, libraries, fonts } = chromium()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let profile = env::temp_dir().join(format!("perennial-chromium-{}-{number}", std::process::id()));
        // Chromium uses file descriptors 3 and 4. A shell redirects our pipes there.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 0</dev/null 1>&2"#, "sh"]).arg(program);
        command.args(["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--mute-audio"]);
        command.args(["--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"]);
        command.args(["--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none"]);
        if let Some(libraries) = libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        if let Some(fonts) = fonts {
            command.env("FONTCONFIG_PATH", fonts);
        }
        if rustix::process::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("Chromium starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (waiting, events) = (Waiting::default(), Arc::default());
        let connection = Arc::new(Connection {
            input: Mutex::new(input),
            waiting: Arc::clone(&waiting),
            events: Arc::clone(&events),
            number: AtomicU64::new(1),
        });
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                message.pop();
                let value: Value = serde_json::from_slice(&message).unwrap_or_default();
                message.clear();
                match value["id"].as_u64().and_then(|id| lock(&waiting).remove(&id)) {
                    Some(asked) => drop(asked.send(value)),
                    None => lock(&events).push(value),
                }
            }
        });
        Some(Self { child, profile, connection })
    }

    /// Opens a page with this viewport.
    pub async fn open(&self, address: &str, width: u32, height: u32) -> Page {
        let created = self.connection.call(None, "Target.createTarget", json!({"url": "about:blank"})).await;
        let target = json!({"targetId": created["targetId"], "flatten": true});
        let attached = self.connection.call(None, "Target.attachToTarget", target).await;
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let page = Page { connection: Arc::clone(&self.connection), session };
        for domain in ["Page", "Runtime", "Network", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.resize(width, height).await;
        page.call("Page.navigate", json!({"url": address})).await;
        page
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

impl Connection {
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let id = self.number.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        {
            let mut input = lock(&self.input);
            input.write_all(message.to_string().as_bytes()).expect("Chromium listens");
            input.write_all(&[0]).and_then(|()| input.flush()).expect("Chromium listens");
        }
        let answer = tokio::time::timeout(PATIENCE, answered).await;
        let mut answer =
            answer.unwrap_or_else(|_| panic!("Chromium does not answer {method}")).expect("Chromium lives");
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].take()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page in the browser.
#[derive(Debug)]
pub struct Page {
    connection: Arc<Connection>,
    session: String,
}

impl Page {
    /// Calls any method of the debugging protocol.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.connection.call(Some(&self.session), method, params).await
    }

    pub async fn resize(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// Sets the colour scheme, `dark` or `light`. Turns animations off, so that a screenshot shows
    /// a final state.
    pub async fn set_color_scheme(&self, scheme: &str) {
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Evaluates an expression; a promise is awaited.
    pub async fn evaluate(&self, expression: &str) -> Value {
        let params =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Returns the visible text.
    pub async fn text(&self) -> String {
        self.evaluate("document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the text of the first element that matches a selector; empty if none does.
    pub async fn text_of(&self, selector: &str) -> String {
        let expression = format!("document.querySelector({})?.innerText ?? ''", json!(selector));
        self.evaluate(&expression).await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows a text.
    pub async fn wait_for(&self, text: &str) {
        self.wait_for_in("body", text).await;
    }

    /// Waits until the first element that matches a selector shows a text.
    pub async fn wait_for_in(&self, selector: &str, text: &str) {
        eventually(format!("{selector} shows {text:?}"), async || {
            let seen = self.text_of(selector).await;
            if seen.contains(text) { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// Waits until an expression is true.
    pub async fn wait_until(&self, expression: &str) {
        eventually(expression, async || {
            let seen = self.evaluate(expression).await;
            if seen == json!(true) { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// Navigates within the page.
    pub async fn go(&self, hash: &str) {
        self.evaluate(&format!("location.hash = {}", json!(hash))).await;
    }

    /// Presses a key: `/`, `Enter`, `ArrowDown`, `g`.
    pub async fn press(&self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "End" => 35,
            "Home" => 36,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if key.chars().count() == 1 {
            down["text"] = json!(key);
        } else if key == "Enter" {
            down["text"] = json!("\r");
        }
        self.call("Input.dispatchKeyEvent", down).await;
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code})).await;
    }

    /// Types a text, key by key.
    pub async fn type_in(&self, text: &str) {
        for key in text.chars() {
            self.press(&key.to_string()).await;
        }
    }

    /// Takes a screenshot as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "optimizeForSpeed": false})).await;
        decode_base64(shot["data"].as_str().unwrap_or_default())
    }

    /// Returns the events of this page of one kind, such as `Network.requestWillBeSent`.
    pub fn events(&self, method: &str) -> Vec<Value> {
        let is_it = |event: &&Value| event["method"] == method && event["sessionId"] == self.session.as_str();
        lock(&self.connection.events).iter().filter(is_it).map(|event| event["params"].clone()).collect()
    }

    /// Returns exceptions and browser errors, including violations of the content security policy.
    pub fn errors(&self) -> Vec<String> {
        let thrown =
            self.events("Runtime.exceptionThrown").into_iter().map(|event| event["exceptionDetails"].to_string());
        let logged = self.events("Log.entryAdded").into_iter().map(|event| event["entry"].clone());
        let logged = logged.filter(|entry| entry["level"] == "error").map(|entry| entry.to_string());
        thrown.chain(logged).collect()
    }

    /// Returns the hosts that the page sent requests to.
    pub fn hosts(&self) -> Vec<String> {
        let asked = self.events("Network.requestWillBeSent");
        let urls = asked.iter().filter_map(|event| event["request"]["url"].as_str());
        let mut hosts: Vec<String> = urls
            .filter(|url| !url.starts_with("about:"))
            .map(|url| url.split('/').nth(2).unwrap_or(url).to_owned())
            .collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// Decodes base64, which the debugging protocol uses for screenshots.
fn decode_base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0u32, |bits, byte| (bits << 6) | u32::from(value(*byte)));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")] {
            assert_eq!(decode_base64(text), bytes.as_bytes());
        }
        assert_eq!(decode_base64("/+8="), [0xff, 0xef]);
    }
}
