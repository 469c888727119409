//! A child process with its output in a file. Killed by its own pid on drop; what it said is shown if the test fails.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

/// Lines of a log that a failing test shows.
const SHOWN: usize = 60;

pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> Process {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).expect("the world's directory is writable");
        let same = file.try_clone().expect("a file can be had twice");
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        Process { name: name.to_owned(), child, log }
    }

    /// Everything it said so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its status, once it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours can be waited for")
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        dir.expect("a child of ours that runs").count()
    }

    /// kill -9, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `TERM` is what an orchestrator sends first; `STOP` and `CONT` put it to sleep and wake it.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").arg(format!("-{name}")).arg(&pid).status().expect("there is a kill command");
        assert!(sent.success(), "SIG{name} to {} ({pid})", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let said = self.said();
            let lines: Vec<&str> = said.lines().collect();
            let from = lines.len().saturating_sub(SHOWN);
            eprintln!("---- {} ({} lines before these)\n{}", self.name, from, lines[from..].join("\n"));
        }
    }
}
