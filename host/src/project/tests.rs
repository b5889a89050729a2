use super::*;

fn project(language: Language) -> Project {
    Project { name: "orders".parse().unwrap(), language, template: Template::Hello }
}

/// The names of what a folder holds.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_template_of_every_language_is_made_with_its_sdk_and_its_settings() {
    for language in Language::ALL {
        for template in Template::of(language) {
            let root = tempfile::tempdir().unwrap();
            let settings = root.path().join("handlers.toml");
            let project = Project { template, ..project(language) };
            let made = project.make(&settings).unwrap();
            assert_eq!(entries(root.path()), ["handlers.toml", "orders"], "{language} {template}");
            for (path, text) in &made.files {
                assert_eq!(&fs::read_to_string(made.folder.join(path)).unwrap(), text);
            }
            let has_sdk = sdk::look(language, &made.folder.join(sdk::FOLDER)).unwrap();
            let takes_sdk = template.takes_sdk(language) && language != Language::Wat;
            let wanted = if takes_sdk { sdk::Found::Same } else { sdk::Found::Missing };
            assert_eq!(has_sdk, wanted, "{language} {template}");
            let text = fs::read_to_string(&settings).unwrap();
            assert!(text.starts_with("database = \"sqlite:host.db\"\n"), "{text}");
            assert!(text.contains("component = \"orders/orders.wasm\""), "{text}");
        }
    }
}

#[test]
fn what_is_there_is_never_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join("handlers.toml");
    let folder = root.path().join("orders");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("mine"), "mine").unwrap();
    let why = project(Language::Wat).make(&settings).unwrap_err().to_string();
    assert!(why.contains("orders is there already, and is not empty"), "{why}");
    assert_eq!(entries(root.path()), ["orders"]);
    assert_eq!(entries(&folder), ["mine"]);

    // An empty folder is fine; a file of the name is not.
    fs::remove_file(folder.join("mine")).unwrap();
    project(Language::Wat).make(&settings).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    fs::remove_file(&settings).unwrap();
    fs::write(&folder, "mine").unwrap();
    let why = project(Language::Wat).make(&settings).unwrap_err().to_string();
    assert!(why.starts_with("cannot create ") && why.contains("orders"), "{why}");
    assert_eq!(entries(root.path()), ["orders"]);
}

#[test]
fn a_handler_that_is_there_keeps_its_table_and_no_folder_is_made() {
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join("handlers.toml");
    let text = "[handlers.orders]\ncomponent = \"mine.wasm\"\nsubscribe = [\"*\"]\n";
    fs::write(&settings, text).unwrap();
    let why = project(Language::Zig).make(&settings).unwrap_err().to_string();
    assert!(why.contains("handlers.toml: there is a handler orders already"), "{why}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), text);
    assert_eq!(entries(root.path()), ["handlers.toml"]);
}

#[test]
fn a_settings_file_behind_a_link_is_changed_where_it_is() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let real = root.path().join("real.toml");
    fs::write(&real, "# Ours.\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    let settings = root.path().join("handlers.toml");
    std::os::unix::fs::symlink("real.toml", &settings).unwrap();
    project(Language::Wat).make(&settings).unwrap();
    assert!(fs::symlink_metadata(&settings).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().starts_with("# Ours.\n\n[handlers.orders]\n"));
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_template_that_a_language_has_not_is_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join("handlers.toml");
    let project = Project { template: Template::Http, ..project(Language::Wat) };
    let why = project.make(&settings).unwrap_err().to_string();
    assert!(why.starts_with("WAT has no template http: by hand"), "{why}");
    assert!(why.ends_with("it has hello and batch"), "{why}");

    let dotted = Project { name: "a.b".parse().unwrap(), ..self::project(Language::Rust) };
    let why = dotted.make(&settings).unwrap_err().to_string();
    assert!(why.contains("the name a.b has a dot"), "{why}");
    assert_eq!(entries(root.path()), Vec::<String>::new());
}
