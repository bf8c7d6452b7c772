//! `localplane status`

use std::process::ExitCode;

use clap::Args;

use super::PlaneArgs;

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    plane: PlaneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Exits with 1 if no plane is running, so that scripts can check it.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.plane.folder();
        let Some(state) = folder.running()? else {
            eprintln!("localplane: no plane is running in {}", folder.path().display());
            return Ok(ExitCode::FAILURE);
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&state)?);
            return Ok(ExitCode::SUCCESS);
        }
        println!("Kubernetes {} in {}", state.kubernetes, folder.path().display());
        println!("{:<26} {:>8} {:>6}  log", "component", "pid", "port");
        for (name, component) in &state.components {
            let pid = component
                .process
                .filter(crate::plane::ProcessState::is_alive)
                .map_or_else(|| "down".to_owned(), |process| process.pid.to_string());
            let log = folder.logs().join(format!("{name}.log"));
            let port = if component.port == 0 { "-".to_owned() } else { component.port.to_string() };
            println!("{name:<26} {pid:>8} {port:>6}  {}", log.display());
        }
        println!("{:<26} {:>8}", "supervisor", state.supervisor.pid);
        println!("export KUBECONFIG={}", folder.kubeconfig().display());
        Ok(ExitCode::SUCCESS)
    }
}
