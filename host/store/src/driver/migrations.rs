//! Migrations, as a store embeds them.

/// One file of a folder of migrations: `VERSION_DESCRIPTION.sql`.
#[derive(Debug, Clone, Copy)]
pub struct Embedded {
    /// The number that the name begins with.
    pub version: i64,
    /// The rest of the name, with spaces.
    pub description: &'static str,
    /// What is in the file.
    pub sql: &'static str,
}

/// Checks that these are the files of a folder, and no others: a test of the store calls it.
///
/// # Panics
/// Where a file is missing, differs, or is not embedded.
#[cfg(any(test, feature = "suite"))]
#[allow(clippy::expect_used, reason = "a test says what it expects by failing")]
#[track_caller]
pub fn assert_complete(embedded: &[Embedded], folder: &std::path::Path) {
    use std::collections::BTreeMap;

    let files: BTreeMap<String, String> = std::fs::read_dir(folder)
        .expect("a folder of migrations")
        .map(|entry| entry.expect("an entry").path())
        .map(|file| {
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(file).expect("a text"))
        })
        .collect();
    let embedded: BTreeMap<String, String> = embedded
        .iter()
        .map(|file| {
            let description = file.description.replace(' ', "_");
            (format!("{:04}_{description}.sql", file.version), file.sql.to_owned())
        })
        .collect();
    assert_eq!(embedded, files);
}
