use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::*;

fn corpus(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn good_files_give_their_slots() {
    let mut text = String::new();
    for (name, content) in corpus("good") {
        writeln!(text, "{name}").unwrap();
        for manifest in parse(&content).unwrap() {
            let slots: Vec<String> = manifest.layout.slots.iter().map(ToString::to_string).collect();
            let (key, digest) = (&manifest.key, manifest.digest.short());
            writeln!(text, "  {key} {digest} {} survives {:?}", slots.join(" "), manifest.layout.survives)
                .unwrap();
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn bad_files_give_every_mistake_with_its_place() {
    let mut text = String::new();
    for (name, content) in corpus("bad") {
        writeln!(text, "{name}").unwrap();
        for problem in parse(&content).unwrap_err().problems {
            writeln!(text, "  {problem}").unwrap();
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn one_bad_document_does_not_stop_the_others() {
    let (_, content) = corpus("bad").into_iter().find(|(name, _)| name == "one-good-one-bad").unwrap();
    let each = parse_each(&content).unwrap();
    assert_eq!(each.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    assert!(parse("").unwrap().is_empty() && parse("---\n---\n# nothing\n").unwrap().is_empty());
}

#[test]
fn the_digest_does_not_depend_on_how_the_file_is_written() {
    let digest = |spec: &str| {
        let text =
            format!("apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: main}}\nspec: {spec}\n");
        parse(&text).unwrap()[0].digest
    };
    let plain = digest("{clusters: [{name: east}, {name: west}, {name: north}]}");
    assert_eq!(
        plain,
        digest("{clusters: [{name: north}, {name: east}, {name: west}], survive: null, etcd: ~}")
    );
    assert_eq!(
        plain,
        digest("{\"clusters\": [{\"name\": \"east\"}, {\"name\": \"west\"}, {\"name\": \"north\"}]}")
    );
    assert_ne!(plain, digest("{clusters: [{name: east}, {name: west}, {name: north}], members: 3}"));
}
