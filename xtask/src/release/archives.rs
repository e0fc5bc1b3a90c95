//! An archive per target: the program, completions of shells, manual pages, licences.

use std::{fs, path::Path, process::Command};

use super::{Files, Release, tree::Tree};

/// What the program writes about itself, the same for every target.
pub struct Docs {
    /// File name and text of the completions of each shell.
    pub completions: Vec<(&'static str, Vec<u8>)>,
    /// File name and text of each manual page.
    pub pages: Vec<(String, Vec<u8>)>,
}

/// The shells, and the names of their completion files.
const SHELLS: [(&str, &str); 5] = [
    ("bash", "tidegate.bash"),
    ("zsh", "_tidegate"),
    ("fish", "tidegate.fish"),
    ("elvish", "tidegate.elv"),
    ("powershell", "_tidegate.ps1"),
];

impl Docs {
    /// Lets `program` write them.
    ///
    /// # Errors
    ///
    /// The program does not run here, or writes no pages.
    pub fn of(program: &Path) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        output(Command::new(program).arg("manual").arg("--dir").arg(folder.path()))?;
        let mut pages = Vec::new();
        let entries = fs::read_dir(folder.path()).map_err(|error| error.to_string())?;
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            let text = fs::read(entry.path()).map_err(|error| error.to_string())?;
            pages.push((entry.file_name().to_string_lossy().into_owned(), text));
        }
        pages.sort();
        if pages.is_empty() {
            return Err(format!("{} has written no manual page", program.display()));
        }
        let completions = SHELLS
            .into_iter()
            .map(|(shell, file)| {
                let script = output(Command::new(program).args(["completions", shell]))?;
                Ok((file, script))
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { completions, pages })
    }

    /// Returns the completions for `file`.
    ///
    /// # Errors
    ///
    /// There is no such file.
    pub fn completion(&self, file: &str) -> Result<&[u8], String> {
        let found = self.completions.iter().find(|(name, _)| *name == file);
        found.map(|(_, text)| &text[..]).ok_or_else(|| format!("there is no completion {file}"))
    }
}

/// Returns what `command` writes to standard output.
///
/// # Errors
///
/// It cannot be started, or fails.
pub fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let failed = |why: &dyn std::fmt::Display| {
        format!("{} {:?}: {why}", command.get_program().display(), command.get_args())
    };
    let message = failed(&"");
    let output = command.output().map_err(|error| format!("{message}{error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{message}{}: {}", output.status, errors.trim()))
    }
}

/// Returns the name of the archive for `triple`.
pub fn name(triple: &str) -> String {
    format!("tidegate-{triple}.tar.gz")
}

/// Returns the archive of each binary.
///
/// # Errors
///
/// A file of the repository is missing.
pub fn make(release: &Release) -> Result<Files, String> {
    let mut files = Files::new();
    for binary in &release.binaries {
        let mut tree = Tree::default();
        tree.file("tidegate", 0o755, binary.bytes.clone());
        for text in ["LICENSE", "README.md", "CHANGELOG.md"] {
            tree.file(text, 0o644, release.read(text)?);
        }
        tree.file("THIRD-PARTY-LICENSES.txt", 0o644, release.licences.clone());
        for (file, script) in &release.docs.completions {
            tree.file(format!("completions/{file}"), 0o644, script.clone());
        }
        for (page, text) in &release.docs.pages {
            tree.file(format!("man/man1/{page}"), 0o644, text.clone());
        }
        let triple = binary.target.triple;
        files.insert(name(triple), tree.tar_gz(&format!("tidegate-{triple}/"), release.time)?);
    }
    Ok(files)
}
