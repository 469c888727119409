//! The source of the crate as text: what the architecture's and the contract's tests read.

use std::path::{Path, PathBuf};

/// One file under `src`, without comments and the contents of strings.
pub(crate) struct SourceFile {
    /// Relative to `src`: `store/keys.rs`.
    pub(crate) path: String,
    pub(crate) code: String,
    /// As it stands on disk.
    pub(crate) text: String,
}

impl SourceFile {
    /// The top-level module it belongs to.
    pub(crate) fn module(&self) -> &str {
        let first = self.path.split('/').next().expect("a path has a first part");
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Top-level modules of this crate that are named in it: `crate::store::..`, `use crate::{store, domain::..}`.
    pub(crate) fn imports(&self) -> Vec<String> {
        let mut found = Vec::new();
        for start in ["crate::", "batchgate::"] {
            for (at, _) in self.code.match_indices(start).filter(|(at, _)| starts_a_word(&self.code, *at)) {
                let rest = &self.code[at + start.len()..];
                match rest.trim_start().strip_prefix('{') {
                    Some(group) => found.extend(heads(group)),
                    None => found.extend(word(rest)),
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Is this text in the code, beginning a word?
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.code.match_indices(name).any(|(at, _)| starts_a_word(&self.code, at))
    }
}

fn starts_a_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
}

fn word(text: &str) -> Option<String> {
    let word: String = text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

/// First words of the members of a group whose brace is open already.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut from) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                heads.extend(word(&group[from..at]));
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    heads
}

pub(crate) fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every `.rs` file under `src`.
pub(crate) fn files() -> Vec<SourceFile> {
    let (root, mut found) = (home().join("src"), Vec::new());
    walk(&root, &mut found);
    assert!(found.len() > 50, "this is not our source: {found:?}");
    let file = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source file is text");
        let path = path.strip_prefix(&root).expect("below src").to_str().expect("a path of ASCII").to_owned();
        SourceFile { path, code: bare(&text), text }
    };
    found.into_iter().map(file).collect()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of ours") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Code without comments and without what stands in strings.
fn bare(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(end) = raw_string(rest) {
            end
        } else if c == '"' {
            string(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        rest = &rest[skip..];
    }
    out
}

/// Length of the plain string that begins here.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// Length of the raw string that begins here, if one does.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let from = 1 + hashes + 1;
    Some(text[from..].find(&end).map_or(text.len(), |at| from + at + end.len()))
}
