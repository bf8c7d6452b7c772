//! The commands of the runbooks, run on a cluster as someone who is called at night would run them.

use std::{collections::BTreeSet, fs};

use perennial_harness::{TestCluster, Webhooks};

const RUNBOOKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbooks");

/// Beginnings of commands that are not run here, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("kubectl -n perennial-system describe certificate", "needs cert-manager"),
    ("kubectl -n perennial-system logs", "needs pods of an operator; here it is a process"),
    ("kubectl describe", "the name of the command alone"),
    ("kubectl label", "the name of the command alone"),
    ("kubectl rollout restart", "the name of the command alone"),
    ("perennial run", "runs until it is stopped; most tests run it"),
    ("perennial webhook rotate", "serving::no_request_is_lost_while_certificates_rotate runs it"),
    ("perennial uninstall", "commands::uninstall and install::lifecycle run it"),
];

/// Returns every command in the text of a runbook.
fn commands(text: &str) -> impl Iterator<Item = String> {
    let code = text.split('`').skip(1).step_by(2).map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "));
    code.filter(|code| ["kubectl ", "perennial "].iter().any(|program| code.starts_with(program)))
}

#[tokio::test]
async fn the_commands_of_the_runbooks_work() {
    let cluster = TestCluster::with_policies().await;
    let _operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.kubectl("delete deployments --all -n default");
    cluster.kubectl("create deployment web --image=none -n default");
    cluster.kubectl("annotate deployment web -n default perennial.dev/spot-percentage=50");
    let mut all = BTreeSet::new();
    for runbook in fs::read_dir(RUNBOOKS).unwrap() {
        all.extend(commands(&fs::read_to_string(runbook.unwrap().path()).unwrap()));
    }
    for (beginning, _) in NOT_RUN {
        assert!(all.iter().any(|command| command.starts_with(beginning)), "{beginning} is in no runbook");
    }
    let mut run: Vec<String> =
        all.into_iter().filter(|all| !NOT_RUN.iter().any(|(not, _)| all.starts_with(not))).collect();
    // After it there are no webhook configurations to look at.
    run.sort_by_key(|command| command.starts_with("perennial webhook disable"));
    assert!(run.len() >= 18, "{run:#?}");

    for command in run {
        // A record that was forgotten is captured again.
        cluster.wait_for_record("n1", [("team", "ml")]).await;
        let filled = command
            .replace("perennial-system", cluster.namespace())
            .replace("deployment/NAME -n NAMESPACE", "deployment/web -n default")
            .replace("node-NAME", "node-n1")
            .replace("NODE", "n1");
        // On a terminal it asks.
        let filled = if filled.starts_with("perennial forget") { filled + " --yes" } else { filled };
        let script = format!("set -eo pipefail; cd $FOLDER; echo '{{controller: {{qps: 50}}}}' > FILE\n{filled}");
        let output = cluster.shell(&script);
        assert!(output.success, "{command}\n{}\n{}", output.stdout, output.stderr);
    }
}
