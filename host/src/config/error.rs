//! What is wrong with a configuration: every problem, each with its place.

use std::fmt;
use std::path::PathBuf;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line and column in the file, both from 1, the column in characters.
    /// `None` for what is not in the file.
    pub place: Option<(usize, usize)>,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Everything that is wrong with a configuration, in the order of the file. Its
/// text has one line a problem, `FILE:LINE:COLUMN: MESSAGE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file.
    pub path: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// One problem that has no place in the file.
    pub(super) fn whole(path: PathBuf, message: String) -> Self {
        Self { path, problems: vec![Problem { place: None, message }] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some((line, column)) = problem.place {
                write!(f, "{}:{line}:{column}: ", self.path.display())?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Line and column of a byte offset, both from 1, the column in characters.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let text = "äb\r\nc\n";
        for (offset, expected) in
            [(0, (1, 1)), (1, (1, 1)), (2, (1, 2)), (5, (2, 1)), (7, (3, 1)), (99, (3, 1))]
        {
            assert_eq!(place(text, offset), expected, "{offset}");
        }
    }
}
