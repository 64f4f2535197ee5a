use super::*;

const GOOD: &str = "\
site: east
region: eu-1
zones: [a, b]
trustDomain: quorate.test
mesh: 6f0c8d1e-0000-4000-8000-000000000001
stateDir: /tmp/east
manifests: /tmp/east/federations
address: 127.0.1.1
ports: {agent: 18443}
peers:
  - {site: west, endpoint: \"127.0.2.1:8443\"}
  - site: north
    endpoint: north.example.com:8443
peerCIDRs: [\"127.0.0.0/8\"]
";

fn mistakes(text: &str) -> String {
    parse(text).unwrap_err().problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_good_file_is_read_and_the_rest_is_default() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.peer_domain, "east.quorate.test");
    assert_eq!(config.ports, Ports { agent: 18443, ..Ports::default() });
    assert_eq!(config.log_level, "info");
    assert_eq!(config.placement_after, Duration::from_mins(10));
    assert_eq!(config.peers.len(), 2);
    assert!(config.admits("127.0.9.9".parse().unwrap()) && !config.admits("10.0.0.1".parse().unwrap()));
    assert_eq!(parse(&config.to_yaml()).unwrap(), config, "{}", config.to_yaml());
}

#[test]
fn a_peer_url_has_the_slot_the_domain_and_the_port() {
    let config = parse(GOOD).unwrap();
    assert_eq!(
        config.peer_url("main-east-1", 2390).to_string(),
        "https://main-east-1.east.quorate.test:2390"
    );
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let environment = |name: &str| match name {
        "QUORATE_SITE" => Some("south".to_owned()),
        "QUORATE_PEERS" => Some("east=10.0.0.1:8443, west=[fd00::1]:8443".to_owned()),
        "QUORATE_PORT_HTTP" => Some("9000".to_owned()),
        "QUORATE_LOG_LEVEL" => Some("debug".to_owned()),
        _ => None,
    };
    let flags = [(Key::LogLevel, "info,quorate_agent=trace".to_owned())];
    let config = load(GOOD, &environment, &flags).unwrap();
    assert_eq!(config.site.as_str(), "south");
    assert_eq!(config.peers[1].endpoint, "[fd00::1]:8443");
    assert_eq!(config.ports.http, 9000);
    assert_eq!(config.log_level, "info,quorate_agent=trace");

    let bad = |name: &str| (name == "QUORATE_MESH").then(|| "x".to_owned());
    let error = load(GOOD, &bad, &[]).unwrap_err().to_string();
    assert!(error.starts_with("QUORATE_MESH: \"x\" is not a UUID"), "{error}");
    assert!(
        load("", &|_| None, &[]).unwrap_err().to_string().contains("mesh: must be given (or QUORATE_MESH)")
    );
}

#[test]
fn mistakes_are_all_named_with_their_line() {
    let text = "\
site: East
zone: [a]
trustDomain: quorate.test
mesh: 6f0c8d1e-0000-4000-8000-000000000001
address: 127.0.1
ports: {agent: 70000, metric: 1}
peers:
  - {site: west, endpoint: west}
";
    insta::assert_snapshot!("shapes", mistakes(text));
    let text = GOOD
        .replace("site: east", "site: East")
        .replace("site: north", "site: west")
        .replace("127.0.2.1:8443", "127.0.2.1")
        .replace("127.0.0.0/8", "127.0.0.1/8")
        .replace("agent: 18443", "agent: 8444")
        + "logLevel: inof\netcdDir: 7\n";
    insta::assert_snapshot!("values", mistakes(&text));
    insta::assert_snapshot!("not_yaml", mistakes("site: [a"));
}

#[test]
fn every_key_of_the_file_can_be_overridden() {
    let schema = SiteConfig::schema();
    let mut paths: Vec<String> = Vec::new();
    for (name, field) in crate::schema::properties(&schema).unwrap() {
        match crate::schema::properties(field) {
            Some(inner) => paths.extend(inner.keys().map(|key| format!("{name}.{key}"))),
            None => paths.push(name.clone()),
        }
    }
    paths.sort();
    let mut keys: Vec<&str> = Key::ALL.iter().map(|key| key.path()).collect();
    keys.sort_unstable();
    assert_eq!(paths, keys);
}
