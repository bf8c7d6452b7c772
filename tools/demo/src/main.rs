//! `make demo`: plays a story on a real Kubernetes in a temporary folder and checks every claim.

mod claims;
mod observer;
mod stage;
mod story;
mod terminal;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localplane::Kubernetes;
use perennial_harness::install;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    claims::BrokenClaim,
    stage::{Nodes, Stage},
    story::{REAL_STORY, STORY},
    terminal::{Terminal, took},
};

/// Result of a demo that was not interrupted.
enum End {
    AllHold { claims: usize, folder: PathBuf },
    Failed,
}

fn main() -> ExitCode {
    if let Some(code) = install::called_as_operator() {
        return code;
    }
    match play() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> anyhow::Result<ExitCode> {
    let terminal = Terminal::new();
    let nodes = Nodes::from_env();
    let kubernetes = stage::fetch(nodes)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build()?;
    let code = runtime.block_on(async {
        let began = Instant::now();
        tokio::select! {
            // Dropping the story ends the operator and the plane and removes the folder.
            end = tell(kubernetes, nodes, terminal) => Ok(match end? {
                End::AllHold { claims, folder } => {
                    let whole = took(began.elapsed());
                    let rest = if folder.exists() { "" } else { " All processes have ended, and the temporary folder is removed." };
                    terminal.title(&format!("{claims} claims checked, all hold, in {whole}.{rest}"));
                    ExitCode::SUCCESS
                }
                End::Failed => ExitCode::FAILURE,
            }),
            name = interrupted() => {
                eprintln!("\ndemo: {name}: cleaned up");
                Ok(ExitCode::from(130))
            }
        }
    });
    // Waits for a plane that is still starting, so that it is shut down cleanly.
    runtime.shutdown_timeout(Duration::from_secs(20));
    code
}

async fn tell(kubernetes: Kubernetes, nodes: Nodes, terminal: Terminal) -> anyhow::Result<End> {
    terminal.title("Perennial: labels survive the deletion of their nodes");
    let began = Instant::now();
    let plane = tokio::task::spawn_blocking(move || stage::start_plane(kubernetes, nodes)).await??;
    terminal.narrate(&format!(
        "Kubernetes {} started on this machine in {}.",
        kubernetes.version(),
        took(began.elapsed())
    ));
    let began = Instant::now();
    let mut stage = Stage::set(plane, terminal).await.context("Perennial did not start")?;
    terminal
        .narrate(&format!("Perennial started in {}. To use the cluster while the demo runs:", took(began.elapsed())));
    terminal.narrate(&format!("cd {} && . ./env", stage.folder.display()));

    let story = if nodes == Nodes::Real { REAL_STORY } else { STORY };
    for (number, chapter) in (1..).zip(story) {
        terminal.chapter(number, chapter.title);
        if let Err(error) = (chapter.play)(&mut stage).await {
            match error.downcast_ref::<BrokenClaim>() {
                Some(broken) => terminal.broken(&broken.claim),
                None => terminal.broken(chapter.title),
            }
            format!("{error:#}").lines().for_each(|line| terminal.narrate(line));
            terminal.narrate("Last lines of the operator's log:");
            terminal.output(&stage.operator_log());
            terminal.narrate("Set LOCALPLANE_KEEP=1 to keep the folder with all logs.");
            return Ok(End::Failed);
        }
        // A chapter may run without ever yielding; Ctrl-C is handled here at the latest.
        tokio::task::yield_now().await;
    }
    Ok(End::AllHold { claims: stage.checked, folder: stage.folder.clone() })
}

async fn interrupted() -> &'static str {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    }
}
