//! Alerts and dashboards, checked by promtool and by a real Prometheus that scrapes a live
//! operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use localplane::Process;
use perennial_harness::{Prometheus, TestCluster, Webhooks, eventually};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn alerts() -> Vec<Value> {
    let text = fs::read_to_string(format!("{ROOT}/monitoring/alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .filter(|rule| rule["alert"].is_string())
        .collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(format!("{ROOT}/monitoring/dashboard.json")).unwrap()).unwrap()
}

fn panels(board: &Value) -> Vec<&Value> {
    board["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row").collect()
}

/// Query of a panel or alert, and the legend of its results.
struct Query {
    asks: String,
    legend: String,
}

impl Query {
    /// Returns the labels that it groups by, and those of its legend.
    fn labels(&self) -> BTreeSet<&str> {
        let grouped = between(&self.asks, "by (", ')').into_iter().flat_map(|list| list.split(','));
        grouped.chain(between(&self.legend, "{{", '}')).map(str::trim).collect()
    }
}

/// Returns every part of a text between these two.
fn between<'a>(text: &'a str, from: &str, to: char) -> Vec<&'a str> {
    text.split(from).skip(1).filter_map(|rest| rest.split(to).next()).collect()
}

fn queries() -> BTreeMap<String, Query> {
    let filled = |text: &Value| text.as_str().unwrap().replace("$job", "perennial").replace("$__rate_interval", "1m");
    let board = dashboard();
    let mut queries = BTreeMap::new();
    for panel in panels(&board) {
        for target in panel["targets"].as_array().unwrap() {
            let name = format!("{} {}", panel["title"].as_str().unwrap(), target["refId"].as_str().unwrap());
            let legend = target["legendFormat"].as_str().unwrap_or_default().to_owned();
            queries.insert(name, Query { asks: filled(&target["expr"]), legend });
        }
    }
    for note in board["annotations"]["list"].as_array().unwrap() {
        let asks = filled(&note["expr"]);
        queries.insert(note["name"].as_str().unwrap().to_owned(), Query { asks, legend: String::new() });
    }
    for alert in alerts() {
        let asks = filled(&alert["expr"]);
        queries.insert(alert["alert"].as_str().unwrap().to_owned(), Query { asks, legend: String::new() });
    }
    queries
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    let Some(prometheus) = Prometheus::find() else { return };
    for words in [["check", "rules", "alerts.yaml"], ["test", "rules", "tests.yaml"]] {
        let mut command = Command::new(&prometheus.promtool);
        let output = command.args(words).current_dir(format!("{ROOT}/monitoring")).output().unwrap();
        let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{message}");
    }
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_and_a_page() {
    let cases = fs::read_to_string(format!("{ROOT}/monitoring/tests.yaml")).unwrap();
    let overview = fs::read_to_string(format!("{ROOT}/docs/runbooks/README.md")).unwrap();
    let mut pages = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(cases.contains(&format!("{{alertname=\"{name}\"}}")), "{name} fires in no case");
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.ends_with(&format!("/docs/runbooks/{name}.md")), "{url}");
        let page = fs::read_to_string(format!("{ROOT}/docs/runbooks/{name}.md")).unwrap();
        for part in ["**Meaning.**", "**Impact.**", "**Diagnosis.**", "**Mitigation.**"] {
            assert!(page.contains(part), "{name}.md lacks {part}");
        }
        assert!(overview.contains(&format!("({name}.md)")), "{name} is not in the overview");
        assert!(["critical", "warning", "info"].contains(&alert["labels"]["severity"].as_str().unwrap()));
        pages.insert(format!("{name}.md"));
    }
    let there = fs::read_dir(format!("{ROOT}/docs/runbooks")).unwrap();
    let there: BTreeSet<String> = there.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let more: Vec<_> = there.difference(&pages).filter(|page| *page != "README.md").collect();
    assert!(more.is_empty(), "pages of no alert: {more:?}");
}

#[test]
fn the_dashboard_is_well_made() {
    let board = dashboard();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels with one id");
        let at = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| at[side].as_u64().unwrap());
        assert!(x + w <= 24, "{} is too wide", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(cell), "{} lies over another panel", panel["title"]);
        }
    }
    for panel in panels(&board) {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty() && !panel["targets"].as_array().unwrap().is_empty(), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(!panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap().is_empty(), "{title}");
    }
    assert!(panels(&board).len() >= 20);
}

/// Starts a Prometheus that scrapes this port every second.
async fn scrape(prometheus: &Prometheus, cluster: &TestCluster, port: u16) -> (Process, u16) {
    let folder = cluster.plane().dir().join("prometheus");
    fs::create_dir_all(&folder).unwrap();
    let own = perennial_harness::free_port();
    let rules = Path::new(ROOT).join("monitoring/alerts.yaml").canonicalize().unwrap();
    let api = cluster.plane().url(0).replace("https://", "");
    let token = cluster.plane().folder().service_account_token(cluster.namespace(), "prometheus").unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{}]
scrape_configs:
- job_name: perennial
  static_configs: [{{targets: ['127.0.0.1:{port}']}}]
- job_name: apiserver
  scheme: https
  authorization: {{credentials: {token}}}
  tls_config: {{insecure_skip_verify: true}}
  static_configs: [{{targets: ['{api}']}}]
",
        rules.display()
    );
    let file = folder.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let args = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", folder.join("data").display()),
        format!("--web.listen-address=127.0.0.1:{own}"),
    ];
    let process = Process::start(&prometheus.server, &args, &folder.join("log")).unwrap();
    eventually("Prometheus has scraped both", async || {
        let up = ask(own, "sum(up)").unwrap_or_default();
        if up.first().is_some_and(|sample| sample["value"][1] == "2") { Ok(()) } else { Err(format!("{up:?}")) }
    })
    .await;
    (process, own)
}

/// Returns the samples of a query, or an error.
fn ask(port: u16, query: &str) -> Result<Vec<Value>, String> {
    let url = format!("http://127.0.0.1:{port}/api/v1/query");
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.get(&url).query("query", query).call().map_err(|error| error.to_string())?;
    let answer: Value = answer.into_body().read_json().map_err(|error| error.to_string())?;
    if answer["status"] != "success" {
        return Err(answer["error"].to_string());
    }
    Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
}

/// Returns the selectors of a query; each must match some series.
fn selectors(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let bytes = query.as_bytes();
    let mut start = None;
    for (at, c) in query.char_indices() {
        let word = c.is_ascii_alphanumeric() || c == '_' || c == ':';
        match (word, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                if bytes[at] == b'{' {
                    let end = at + query[at..].find('}').unwrap();
                    found.push(query[from..=end].to_owned());
                }
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Removes matchers for failures, which a healthy operator does not have.
fn without_trouble(selector: &str) -> String {
    let without = [",code!=\"200\"", ",code=\"429\",method!=\"POST\""];
    without.iter().fold(selector.to_owned(), |selector, matcher| selector.replace(matcher, ""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_matches_series_of_a_live_operator() {
    let Some(prometheus) = Prometheus::find() else { return };
    let cluster = TestCluster::new().await;
    let account = format!("create serviceaccount prometheus -n {}", cluster.namespace());
    cluster.kubectl(&account);
    let reader = "create clusterrole metrics-reader --verb=get --non-resource-url=/metrics";
    assert!(cluster.try_kubectl(reader).success || cluster.try_kubectl("get clusterrole metrics-reader").success);
    let subject = format!("{}:prometheus", cluster.namespace());
    cluster.kubectl(&format!(
        "create clusterrolebinding {} --clusterrole=metrics-reader --serviceaccount={subject}",
        cluster.namespace()
    ));
    let operator = cluster.operator().webhooks(Webhooks::On).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let (_process, port) = scrape(&prometheus, &cluster, operator.port()).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    let api_server = |name: &str| name.starts_with("apiserver_");
    for (name, query) in queries() {
        // Prometheus accepts the query.
        ask(port, &query.asks).unwrap_or_else(|error| panic!("{name}: {error}: {}", query.asks));
        // Its series exist.
        let selectors = selectors(&query.asks);
        assert!(!selectors.is_empty(), "{name} asks about nothing: {}", query.asks);
        let mut seen = BTreeSet::new();
        for selector in selectors.iter().filter(|selector| !api_server(selector)) {
            let selector = without_trouble(selector);
            let found = eventually(format!("{name}: {selector} finds something"), async || {
                ask(port, &selector)
                    .and_then(|found| if found.is_empty() { Err("nothing".to_owned()) } else { Ok(found) })
            })
            .await;
            seen.extend(found.iter().flat_map(|sample| sample["metric"].as_object().unwrap().keys().cloned()));
        }
        // They have the labels that it groups by or shows.
        let missing: Vec<&str> = query.labels().into_iter().filter(|label| !seen.contains(*label)).collect();
        assert!(missing.is_empty() || selectors.iter().all(|selector| api_server(selector)), "{name}: {missing:?}");
    }

    // Without Perennial the API server reports failures under the name in the alert.
    operator.crash();
    cluster.node("n2").create().await;
    eventually("the API server counts what it passed over", async || {
        let passed_over = selectors(&queries()["PerennialWebhookUnreachable"].asks).remove(0);
        match ask(port, &passed_over)?.len() {
            0 => Err("nothing".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
}

/// Prometheus and Grafana in a cluster: accepted under Pod Security `restricted`, with rules that
/// Prometheus accepts.
#[tokio::test]
async fn the_stack_is_accepted_by_the_api_server_and_by_prometheus() {
    let cluster = TestCluster::new().await;
    let text = fs::read_to_string(format!("{ROOT}/monitoring/stack.yaml")).unwrap();
    let (ours, theirs) = (cluster.namespace(), format!("{}-monitoring", cluster.namespace()));
    let text = text.replace("perennial-monitoring", &theirs).replace("perennial-system", ours);

    let applied = cluster.try_kubectl_with("apply", &text);
    let output = applied.stdout + &applied.stderr;
    // The namespace warns of pods that Pod Security would refuse.
    assert!(applied.success && !output.contains("Warning"), "{output}");

    if let Some(prometheus) = Prometheus::find() {
        let map: Value =
            serde_json::from_str(&cluster.kubectl(&format!("get configmap prometheus -n {theirs} -o json"))).unwrap();
        let folder = cluster.plane().dir().join(&theirs);
        fs::create_dir_all(&folder).unwrap();
        let rules = folder.join("alerts.yaml");
        fs::write(&rules, map["data"]["alerts.yaml"].as_str().unwrap()).unwrap();
        // Not `check config`: a promtool that is built here has no service discovery of Kubernetes.
        let output = Command::new(&prometheus.promtool).args(["check", "rules"]).arg(&rules).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    cluster.kubectl(&format!("delete namespace {theirs} --wait=false"));
}
