//! `make demo`: what Perennial does, played on a real Kubernetes in a temporary folder, every claim checked.

mod stage;
mod story;
mod terminal;
mod witness;

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
    stage::{Broken, Stage},
    story::STORY,
    terminal::{Terminal, took},
};

/// How a demo ends that was not interrupted.
enum End {
    AllTrue { claims: usize, folder: PathBuf },
    Broken,
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
    let kubernetes = stage::fetch()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build()?;
    let code = runtime.block_on(async {
        let began = Instant::now();
        tokio::select! {
            // Dropping the story ends the operator and the plane and removes the folder.
            end = tell(kubernetes, terminal) => Ok(match end? {
                End::AllTrue { claims, folder } => {
                    let whole = took(began.elapsed());
                    let rest = if folder.exists() { "" } else { " Everything that ran has ended, and its folder is gone." };
                    terminal.title(&format!("{claims} claims, all true, in {whole}.{rest}"));
                    ExitCode::SUCCESS
                }
                End::Broken => ExitCode::FAILURE,
            }),
            name = interrupted() => {
                eprintln!("\ndemo: {name}: cleaned up");
                Ok(ExitCode::from(130))
            }
        }
    });
    // A plane that is still starting is waited for, so that it can be taken down in order.
    runtime.shutdown_timeout(Duration::from_secs(20));
    code
}

async fn tell(kubernetes: Kubernetes, terminal: Terminal) -> anyhow::Result<End> {
    terminal.title("Perennial: what people wrote on nodes survives the nodes");
    let began = Instant::now();
    let plane = tokio::task::spawn_blocking(move || stage::start_plane(kubernetes)).await??;
    terminal.say(&format!(
        "Kubernetes {} runs on this machine, after {}.",
        kubernetes.version(),
        took(began.elapsed())
    ));
    let began = Instant::now();
    let mut stage = Stage::set(plane, terminal).await.context("Perennial did not start")?;
    terminal.say(&format!("Perennial runs on it, after {}. To look yourself meanwhile:", took(began.elapsed())));
    terminal.say(&format!("cd {} && . ./env", stage.folder.display()));

    for (number, chapter) in (1..).zip(STORY) {
        terminal.chapter(number, chapter.title);
        if let Err(error) = (chapter.play)(&mut stage).await {
            match error.downcast_ref::<Broken>() {
                Some(broken) => terminal.broken(&broken.claim),
                None => terminal.broken(chapter.title),
            }
            format!("{error:#}").lines().for_each(|line| terminal.say(line));
            terminal.say("The operator said last:");
            terminal.output(&stage.operator_log());
            terminal.say("With LOCALPLANE_KEEP=1 the folder with all logs is kept.");
            return Ok(End::Broken);
        }
        // A chapter may do its work without ever waiting; a Ctrl-C is heard here at the latest.
        tokio::task::yield_now().await;
    }
    Ok(End::AllTrue { claims: stage.checked, folder: stage.folder.clone() })
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
