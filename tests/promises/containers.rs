//! The image: what the Containerfile says, held against the repository and the program. Nobody
//! builds it here; `cargo xtask image-check` runs what is in it.

use std::path::Path;

use serde_json::Value;
use tests::{Handler, Rig, Settings};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(file: &str) -> String {
    let path = Path::new(REPOSITORY).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The instructions: each its word, and the rest in one line.
fn instructions() -> Vec<(String, String)> {
    let text = read("Containerfile");
    let lines: String =
        text.lines().filter(|line| !line.starts_with('#')).fold(String::new(), |lines, line| {
            match line.strip_suffix('\\') {
                Some(goes_on) => lines + goes_on.trim_start() + " ",
                None => lines + line.trim_start() + "\n",
            }
        });
    let instructions = lines.lines().filter_map(|line| line.split_once(' '));
    instructions.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned())).collect()
}

/// What follows the only instruction of this word.
fn only(word: &str) -> String {
    let mut found = instructions().into_iter().filter(|(known, _)| known == word);
    let (_, rest) = found.next().unwrap_or_else(|| panic!("no {word}"));
    assert_eq!(found.next(), None, "{word} twice");
    rest
}

fn words(list: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(list).unwrap_or_else(|why| panic!("{list}: {why}"));
    list.as_array()
        .expect("a list")
        .iter()
        .map(|word| word.as_str().expect("a word").to_owned())
        .collect()
}

#[test]
fn the_containerfile_copies_what_is_there_and_starts_what_the_program_understands() {
    let ignored = read(".containerignore");
    assert_eq!(ignored, read(".dockerignore"), "docker and podman leave out the same");
    let ignored: Vec<&str> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    for (word, rest) in instructions() {
        if word != "COPY" || rest.starts_with("--from") {
            continue;
        }
        let mut sources: Vec<&str> = rest.split(' ').collect();
        sources.pop();
        for source in sources {
            assert!(Path::new(REPOSITORY).join(source).exists(), "there is no {source}");
            assert!(!ignored.contains(&source), "{source} is left out");
        }
    }
    // What cargo needs to see the workspace, and what the program is built from.
    for needed in
        ["Cargo.toml", "Cargo.lock", "guest-sdk", "host", "migrations", "tests", "wit", "xtask"]
    {
        assert!(!ignored.contains(&needed), "{needed} is left out");
    }

    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let entrypoint = words(&only("ENTRYPOINT"));
    let [program] = &entrypoint[..] else { panic!("{entrypoint:?}") };
    assert_eq!(program, "/host");
    let (_, health) = instructions()
        .into_iter()
        .find_map(|(word, rest)| {
            (word == "HEALTHCHECK")
                .then(|| rest.split_once("CMD ").map(|(a, b)| (a.to_owned(), b.to_owned())))?
        })
        .expect("a health check");
    let health = words(&health);
    assert_eq!((health[0].as_str(), health[1].as_str()), ("/host", "health"));
    for command in [&words(&only("CMD"))[..], &health[1..]] {
        // It reads all that stands before it first.
        let asked: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let _ = rig.host(asked).ok();
    }
    let wrong = rig.host(["health", "--no-such", "--help"]).failed(2);
    assert!(wrong.contains("--no-such"), "{wrong}");
}

#[test]
fn the_image_is_built_with_the_rust_and_the_debian_that_it_needs() {
    let manifest = read("Cargo.toml");
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let wanted = wanted.expect("a version of Rust").trim_matches('"');
    let of = |name: &str| {
        let found = instructions().into_iter().find_map(|(word, rest)| {
            let (known, image) = rest.split_once('=')?;
            (word == "ARG" && known == name).then(|| image.to_owned())
        });
        found.unwrap_or_else(|| panic!("no ARG {name}"))
    };
    let (rust, base) = (of("RUST"), of("BASE"));
    assert!(rust.contains(&format!("rust:{wanted}-")), "{rust} is not Rust {wanted}");
    // Debian's releases, by name and number: a program needs the C library that it was built
    // with, or a later one.
    let releases = [("bookworm", "debian12"), ("trixie", "debian13"), ("forky", "debian14")];
    let same = releases.iter().any(|(name, number)| rust.ends_with(name) && base.contains(number));
    assert!(same, "{rust} and {base} are of different releases of Debian");
    let user = only("USER");
    assert_eq!(user, "65532:65532", "a number, so that Kubernetes sees that it is not root");
    for (word, rest) in instructions() {
        if let Some((_, rest)) = rest.split_once("--chown=").filter(|_| word == "COPY") {
            assert!(rest.starts_with(&user), "what is written to belongs to the user: {rest}");
        }
    }
    let volumes = words(&only("VOLUME"));
    assert_eq!(volumes, ["/data", "/cache"]);
    assert_eq!(only("ENV"), "HOST_CACHE=/cache");
}
