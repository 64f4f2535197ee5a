use std::path::Path;

use base64::Engine as _;
use quorate_link::pki::{Leaf, SitePki};

use super::collect::collect;
use super::redact::{Counts, etcd_log, scrub};
use super::write::write;
use crate::client::{Client, socket_in};

/// Every form in which a private key file's secret could be found again: its DER, and its lines of base64.
fn secrets(folder: &Path) -> Vec<Vec<u8>> {
    let keys =
        crate::cmd::doctor::host::find(folder, &|path| path.extension().is_some_and(|end| end == "key"));
    let mut all = Vec::new();
    for path in keys {
        let pem = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        all.push(base64::engine::general_purpose::STANDARD.decode(lines.concat()).unwrap());
        all.extend(lines.iter().filter(|line| line.len() > 16).map(|line| line.as_bytes().to_vec()));
    }
    assert!(!all.is_empty());
    all
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// A site with a log that quotes a key and a token, and a data directory.
fn site(folder: &Path) -> SitePki {
    let pki = SitePki::init(folder, "east", "quorate.test").unwrap();
    pki.ensure(&Leaf::AgentEtcdClient, &quorate_link::pki::Pair::at(pki.folder(), "etcd-client")).unwrap();
    let volume = folder.join("federations/etcd.main/members/main-east-0");
    std::fs::create_dir_all(volume.join("data/member/wal")).unwrap();
    std::fs::write(volume.join("data/member/wal/0.wal"), "the data of a user").unwrap();
    let key = std::fs::read_to_string(pki.folder().join("agent.key")).unwrap();
    let log = format!(
        "a line\n{key}another line, token quorate1.eyJtIjoiNmYwYyJ9, and more\n{}\n",
        serde_json::json!({"message": key})
    );
    std::fs::write(volume.join("supervisor.log"), log).unwrap();
    let slow = serde_json::json!({
        "level": "warn", "ts": "2026-01-01T00:00:00Z", "caller": "txn/util.go:93", "msg": "apply request took too long",
        "took": "1.2s", "prefix": "read-only range ", "request": "key:\"/users/ann/secret\" ", "response": "size:12",
        "local-member-id": "8e9e05c52164694d", "count": 3,
    });
    std::fs::write(volume.join("etcd.log"), format!("{slow}\nkey=/users/ann\npanic: bad\n\tserver.go:12\n"))
        .unwrap();
    pki
}

#[tokio::test]
async fn no_private_key_no_token_and_no_key_of_a_user_is_in_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    site(&state);
    let client = Client::new(socket_in(&state));
    let bundle = collect(&client, None, &state, &[]).await.unwrap();
    let archive = folder.path().join("b.tar.zst");
    write(&bundle, &archive).unwrap();
    let tar = zstd::decode_all(std::fs::File::open(&archive).unwrap()).unwrap();
    for secret in secrets(&state) {
        assert!(!holds(&tar, &secret), "{}", String::from_utf8_lossy(&secret));
    }
    for text in ["quorate1.eyJ", "/users/ann", "the data of a user"] {
        assert!(!holds(&tar, text.as_bytes()), "{text} is in the bundle");
    }
    // What helps is in it.
    for text in [
        "panic: bad",
        "apply request took too long",
        "8e9e05c52164694d",
        "a line",
        "no agent has its socket",
        "data/member/wal/0.wal",
    ] {
        assert!(holds(&tar, text.as_bytes()), "{text} is not in the bundle");
    }
    let readme = String::from_utf8(bundle.files["README.md"].clone()).unwrap();
    assert!(readme.contains("pki/agent-ca.key: a private key"), "{readme}");
    assert!(readme.contains("- 2 private keys and 1 join tokens inside of texts"), "{readme}");
    assert!(readme.contains("## Could not be had"), "{readme}");

    let open = folder.path().join("open");
    write(&bundle, &open).unwrap();
    assert_eq!(std::fs::read(open.join("README.md")).unwrap(), readme.as_bytes());
    assert!(write(&bundle, &open).is_err() && write(&bundle, &archive).is_err(), "nothing is written over");
}

#[test]
fn only_secrets_are_taken_out_of_texts() {
    let mut counts = Counts::default();
    let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    assert_eq!(scrub(certificate, &mut counts), certificate);
    assert_eq!(counts, Counts::default());
    let key = "x -----BEGIN EC PRIVATE KEY-----\\nMIIB\\n-----END EC PRIVATE KEY----- y";
    assert_eq!(scrub(key, &mut counts), "x (left out) y");
    assert_eq!(scrub("-----BEGIN PRIVATE KEY-----\nMIIB", &mut counts), "(left out)");
    assert_eq!(scrub("accept quorate1.abc-_=.d now", &mut counts), "accept quorate1.(left out) now");
    assert_eq!((counts.keys, counts.tokens), (2, 1));
}

#[test]
fn numbers_and_ids_of_the_cluster_stay_in_etcds_log() {
    let mut counts = Counts::default();
    let line = r#"{"level":"info","msg":"x","remote-peer-id":"ab","peer-urls":["https://a:2380"],"count":3,"key":"/k","steps":[{"k":"/k"}]}"#;
    let out = etcd_log(line, &mut counts);
    assert!(
        out.contains("\"remote-peer-id\":\"ab\"")
            && out.contains("https://a:2380")
            && out.contains("\"count\":3")
    );
    assert!(!out.contains("/k"), "{out}");
    assert_eq!(counts.values, 2);
}
