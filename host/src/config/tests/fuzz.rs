//! Generated files: each is read, or refused with the place of what is
//! wrong; and what is read, written out again, is read as the same.

use proptest::collection::vec;
use proptest::sample::select;

use super::*;
use event_host_core::fuzz;

/// A value of some type, as TOML writes it.
fn value() -> impl Strategy<Value = String> {
    let quoted = |text: String| toml::Value::from(text).to_string();
    let listed = |texts: Vec<String>| toml::Value::from(texts).to_string();
    let text = prop_oneof![
        4 => "[0-9]{1,5}([.][0-9]{1,2})? ?(ns|us|ms|s|m|h|d|w|mo|y|B|KB|KiB|MiB|GiB|TiB|PiB|EiB)?",
        2 => "-?[0-9]{1,25}(s|MiB|%)",
        2 => "P[0-9]{0,3}[DWY]?(T[0-9]{1,3}[HMS])?|[0-9]{1,2}:[0-9]{2}:[0-9]{2}",
        3 => select(vec![
            "total", "key", "none", "earliest", "latest", "batch", "event", "pause", "rollback",
            "coarse", "fine", "deployed", "sqlite:x.db", "sqlite::memory:", "postgres://h/d",
            "postgres://u:p@[::1]:5/d?sslmode=disable", "${TOKEN}", "${NONE}", "$${x}", "${", "*",
            "a.*", "a*b", "", "sha256:", "5\u{663}s", "1e3s", "0x5s", "\u{221e}",
        ]).prop_map(str::to_owned),
        2 => "(https?|ftp)://([*][.])?[a-z0-9.\\[\\]:/%-]{1,14}(:[0-9*]{1,6})?",
        1 => fuzz::odd_text(),
    ]
    .boxed();
    prop_oneof![
        8 => text.clone().prop_map(quoted),
        4 => any::<i16>().prop_map(|number| number.to_string()),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        2 => (-2.0..2_000.0_f64).prop_map(|number| format!("{number:?}")),
        3 => select(vec![
            "true", "false", "0xff", "1_000", "-0", "-0.0", "nan", "inf", "1e400", "[]", "{}",
            "99999999999999999999", "2026-01-31T12:00:00+01:00", "2026-01-31", "12:00:00",
            "0000-01-01T00:00:00Z", "9999-12-31T23:59:60.999999999Z", "[[\"a\"]]", "[1]", "'''\n'''",
        ]).prop_map(str::to_owned),
        3 => vec(text.clone(), 0..3).prop_map(listed),
        1 => (fuzz::odd_text(), text.clone()).prop_map(|(key, text)| {
            let table: toml::Table = [(key, toml::Value::from(text))].into_iter().collect();
            toml::Value::from(table).to_string()
        }),
    ]
}

/// The file that writes out every default and one of a tenant, with some of its values
/// replaced, some of its lines left out, and now and then a byte of it changed.
fn file() -> impl Strategy<Value = String> {
    let whole = format!(
        "{}\n[tenants.acme]\nmemory = \"64MiB\"\nconcurrency = 4\nevents_per_second = 100\ncpu = 0.5\n\
         dead_letters = 1000\nstate = \"1GiB\"\nhttp = [\"https://*.example.com\"]\n\
         [tenants.x]\n[handlers.b]\ncomponent = \"b.wasm\"\nsubscribe = [\"a\"]\ntenant = \"acme\"\n\
         ordering = \"key\"\n",
        examples()[examples().len() - 1]
    );
    let lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    let count = lines.len();
    let changes = vec((0..count, proptest::option::weighted(0.8, value())), 0..4);
    let damage = proptest::option::weighted(0.2, fuzz::damage());
    (changes, damage).prop_map(move |(changes, damage)| {
        let mut lines = lines.clone();
        for (at, value) in changes {
            lines[at] = match (value, lines[at].split_once(" = ")) {
                (Some(value), Some((key, _))) => format!("{key} = {value}"),
                (Some(_), None) => continue,
                (None, _) => String::new(),
            };
        }
        let text = lines.join("\n");
        match damage {
            Some(damage) => {
                String::from_utf8_lossy(&fuzz::damaged(text.as_bytes(), &damage)).into_owned()
            }
            None => text,
        }
    })
}

/// Reads a file, and holds what is said of it to what is promised.
fn read_and_write(text: &str) -> Result<bool, TestCaseError> {
    match parse(text) {
        Ok(read) => {
            let table: toml::Table = text.parse().unwrap();
            let written = table.to_string();
            let mut again = parse(&written)
                .map_err(|error| TestCaseError::fail(format!("{error}\nof\n{written}")))?;
            // The order of tables is the only thing that may change.
            let mut read = read;
            for config in [&mut read, &mut again] {
                config.handlers.sort_by(|a, b| a.name.cmp(&b.name));
                config.tenants.sort_by(|a, b| a.name.cmp(&b.name));
            }
            prop_assert_eq!(read, again, "{}", written);
            Ok(true)
        }
        Err(errors) => {
            prop_assert!(!errors.problems.is_empty());
            let said = errors.to_string();
            prop_assert_eq!(said.lines().count(), errors.problems.len(), "{}", said);
            let lines: Vec<&str> = text.split('\n').collect();
            for problem in &errors.problems {
                let (line, column) = problem.place.unwrap();
                let there = lines.get(line - 1);
                prop_assert!(
                    there.is_some_and(|l| (1..=l.chars().count() + 1).contains(&column)),
                    "{}",
                    said
                );
                prop_assert!(!problem.message.chars().any(char::is_control), "{:?}", problem);
                prop_assert!(problem.message.len() < 2_000, "{}", problem.message);
            }
            Ok(false)
        }
    }
}

#[test]
fn a_file_that_is_read_is_written_as_what_reads_back_as_itself() {
    let mut runner = proptest::test_runner::TestRunner::new(fuzz::cases(3_000));
    let counts = std::cell::Cell::new((0, 0));
    let tried = runner.run(&file(), |text| {
        let (read, refused) = counts.get();
        let is_read = read_and_write(&text)?;
        counts.set((read + u32::from(is_read), refused + u32::from(!is_read)));
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
    let (read, refused) = counts.get();
    assert!(read > 500 && refused > 500, "{read} and {refused}");
}

#[test]
fn files_that_were_misread_once_are_read_or_refused_with_their_place() {
    for (name, bytes) in fuzz::corpus("handlers") {
        let text = String::from_utf8_lossy(&bytes);
        read_and_write(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// As they stand in the file system, not only as text.
#[test]
fn any_bytes_are_a_file_that_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handlers.toml");
    let bytes = prop_oneof![
        file().prop_map(String::into_bytes),
        vec(any::<u8>(), 0..60),
        (file(), fuzz::damage()).prop_map(|(text, damage)| fuzz::damaged(text.as_bytes(), &damage)),
    ];
    for bytes in fuzz::samples(500, &bytes) {
        std::fs::write(&path, &bytes).unwrap();
        if let Err(errors) = Config::load(&path, &Overrides::default()) {
            assert!(errors.problems.iter().all(|problem| problem.place.is_some()), "{errors}");
        }
        let _ = Config::load_databases(&path, &Overrides::default());
    }
}
