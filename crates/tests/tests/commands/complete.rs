//! Shell completion and man pages.

use perennial_harness::{TestCluster, perennial, skip};

#[tokio::test]
async fn names_of_nodes_are_completed_live() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("worker-1").label("team", "ml").create().await;
    cluster.node("other").create().await;
    cluster.wait_for_record("worker-1", [("team", "ml")]).await;
    cluster.delete_node("worker-1").await;
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let ask = |words: &[&str]| {
        let flags = ["--kubeconfig", &kubeconfig, "-n", cluster.namespace()];
        let all: Vec<&str> = ["__complete"].into_iter().chain(flags).chain(words.iter().copied()).collect();
        perennial(all, &[]).expect_success()
    };

    // The kubectl protocol: a node that has only a record is a candidate, and other objects are
    // not.
    assert!(ask(&["show", ""]).starts_with("other\nworker-1\n"));
    assert_eq!(ask(&["show", "wor"]), "worker-1\n:4\n");
    assert_eq!(ask(&["rollback", "oth"]), ":4\n", "it has no record");
    assert!(ask(&["hist"]).starts_with("history\t"));
    assert_eq!(ask(&["nodes", "--state", "una"]), ":4\n");
    drop(operator);

    // Without a cluster: no names and no error.
    let answer = perennial(["__complete", "show", "--kubeconfig", "/nowhere", ""], &[]);
    assert!(answer.success && answer.stderr.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn bash_and_kubectl_complete_names_and_colour_is_for_terminals() {
    let cluster = TestCluster::new().await;
    cluster.node("worker-1").label("team", "ml").create().await;
    cluster.node("worker-2").create().await;

    let bash = "eval \"$(perennial completion bash)\"
        COMP_WORDS=(perennial show work) COMP_CWORD=2 COMP_TYPE=9
        _clap_complete_perennial perennial work show 2>/dev/null
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    assert_eq!(cluster.shell(bash).stdout, "worker-1\nworker-2\n");

    let kubectl = "perennial completion kubectl > $FOLDER/kubectl_complete-perennial
        chmod +x $FOLDER/kubectl_complete-perennial
        kubectl __complete perennial show work 2>/dev/null
        kubectl perennial nodes -o name";
    assert_eq!(cluster.shell(kubectl).expect_success(), "worker-1\nworker-2\n:4\nnode/worker-1\nnode/worker-2\n");

    // `script` provides a terminal.
    let coloured = cluster.shell("script -qec 'perennial nodes' /dev/null").stdout;
    assert!(coloured.contains("\u{1b}[33mPending\u{1b}[0m"), "{coloured:?}");
    let plain = cluster.shell("NO_COLOR=1 script -qec 'perennial nodes' /dev/null").stdout;
    assert!(plain.contains("Pending") && !plain.contains('\u{1b}'), "{plain:?}");
    // A reader that closes the pipe early is not an error.
    let enough = cluster.shell("set -o pipefail; perennial nodes -o json | head -1");
    assert_eq!((enough.code, enough.stdout.as_str()), (Some(0), "{\n"), "{}", enough.stderr);
}

/// The scripts call the program; its answers need no shell.
#[tokio::test]
async fn zsh_and_fish_complete_live_names() {
    let cluster = TestCluster::new().await;
    cluster.node("worker-1").label("team", "ml").create().await;
    cluster.node("worker-2").create().await;

    let zsh = "COMPLETE=zsh _CLAP_IFS=$'\\n' _CLAP_COMPLETE_INDEX=2 perennial -- perennial show work";
    assert_eq!(cluster.shell(zsh).expect_success(), "worker-1\nworker-2");
    let fish = "COMPLETE=fish perennial -- perennial show work";
    assert_eq!(cluster.shell(fish).expect_success(), "worker-1\nworker-2\n");

    // In the shells themselves, if they are installed, as if Tab were pressed.
    if installed("fish") {
        let script = "fish --no-config -c 'perennial completion fish | source; complete -C \"perennial show work\"'";
        assert_eq!(cluster.shell(script).expect_success(), "worker-1\nworker-2\n");
    }
    if installed("zsh") {
        let script = "zmodload zsh/zpty
            zpty shell zsh -f -i
            zpty -w shell 'PS1=; autoload -Uz compinit; compinit -D -u; eval \"$(perennial completion zsh)\"; print rea\"\"dy'
            zpty -r -m shell seen '*ready*'
            zpty -w -n shell $'perennial show wor\\t'
            zpty -r -m shell seen '*ker-*'
            print completed";
        std::fs::write(cluster.plane().dir().join("tab.zsh"), script).unwrap();
        let script = format!("TERM=dumb timeout 60 zsh -f {}/tab.zsh", cluster.plane().dir().display());
        assert_eq!(cluster.shell(&script).expect_success(), "completed\n");
    }
}

/// Returns whether a shell is installed; prints a message if it is skipped.
fn installed(shell: &str) -> bool {
    let there = ["/usr/bin", "/bin"].iter().any(|folder| std::path::Path::new(folder).join(shell).exists());
    if !there {
        skip("tries completion in zsh and fish, if they are installed", shell);
    }
    there
}

#[test]
fn completion_scripts_call_the_program() {
    for (shell, sign) in [("bash", "complete "), ("zsh", "#compdef perennial"), ("fish", "complete --keep-order")] {
        let script = perennial(["completion", shell], &[]).expect_success();
        assert!(script.contains(sign) && script.contains("COMPLETE"), "{shell}: {script}");
    }
    let script = perennial(["completion", "kubectl"], &[]).expect_success();
    assert!(script.starts_with("#!/bin/sh\n") && script.contains("__complete"), "{script}");
}

#[test]
fn man_pages_are_written_for_every_command() {
    let folder = std::env::temp_dir().join(format!("perennial-man-{}", std::process::id()));
    perennial(["man", folder.to_str().unwrap()], &[]).expect_success();
    let page = std::fs::read_to_string(folder.join("perennial-explain.1")).unwrap();
    let pages = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(page.contains(".TH perennial-explain 1") && page.contains("Explain the state of nodes"), "{page}");
    assert!(pages > 20, "{pages}");
}
