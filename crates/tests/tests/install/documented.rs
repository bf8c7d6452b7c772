//! The helm commands of the documentation, with a chart from this repository.

use std::{fs, path::Path, process::Command};

use perennial_harness::{CommandOutput, Helm, chart};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// Returns the `helm install` and `helm upgrade` commands of a page, each on one line, and its values
/// files by name.
fn commands(text: &str) -> (Vec<String>, Vec<(String, String)>) {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    let commands = lines.filter(|line| line.starts_with("helm install ") || line.starts_with("helm upgrade "));
    let commands = commands.map(str::to_owned).collect();
    let files = text.split("\n```yaml\n# ").skip(1).filter_map(|block| {
        let (name, rest) = block.split_once('\n')?;
        let content = rest.split("\n```").next()?;
        Path::new(name).extension().is_some_and(|end| end == "yaml").then(|| (name.to_owned(), content.to_owned()))
    });
    (commands, files.collect())
}

/// Renders what a command would install: the chart takes its values, and its schema accepts them.
#[test]
fn helm_commands_of_the_pages_are_accepted() {
    let folder = std::env::temp_dir().join(format!("perennial-helm-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = format!("{}:/usr/bin:/bin", Helm::V4.program().parent().unwrap().display());
    let mut checked = 0;
    for part in ["start", "how-to"] {
        for entry in fs::read_dir(format!("{DOCS}/{part}")).unwrap().flatten() {
            let (commands, files) = commands(&fs::read_to_string(entry.path()).unwrap());
            for (name, content) in files {
                fs::write(folder.join(name), content).unwrap();
            }
            for command in commands.iter().filter(|command| !command.contains("oci://")) {
                let script =
                    command.replacen("helm install", "helm template", 1).replacen("helm upgrade", "helm template", 1);
                let script = script.replace("charts/perennial", &chart().display().to_string());
                let script = format!("{} --kube-version 1.36.0", script.replace(" --reuse-values", ""));
                let mut shell = Command::new("bash");
                shell.args(["-c", &script]).current_dir(&folder).env("PATH", &path).env("HOME", &folder);
                let output = CommandOutput::of(shell.output().unwrap());
                assert!(output.success, "{}: {command}: {}", entry.path().display(), output.stderr);
                checked += 1;
            }
        }
    }
    fs::remove_dir_all(folder).unwrap();
    assert!(checked > 12, "only {checked} commands were found");
}
