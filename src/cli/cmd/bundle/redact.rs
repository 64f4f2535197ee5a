//! What must not leave the site: private keys, join tokens, and keys of users that etcd prints into its log.

use serde_json::{Map, Value};

/// Stands where something was.
const GONE: &str = "(left out)";

/// How often something was left out of texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Private keys.
    pub(super) keys: usize,
    /// Join tokens.
    pub(super) tokens: usize,
    /// Values in etcd's log that may hold keys of users.
    pub(super) values: usize,
    /// Whole lines of etcd's log.
    pub(super) lines: usize,
}

/// Takes private keys and join tokens out of any text.
pub(super) fn scrub(text: &str, counts: &mut Counts) -> String {
    tokens(&keys(text, counts), counts)
}

/// PEM blocks of private keys, also where line breaks are escaped, as in JSON.
fn keys(text: &str, counts: &mut Counts) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let label = block
            .get(BEGIN.len()..)
            .and_then(|after| after.split_once("-----"))
            .map_or("", |(label, _)| label);
        if !label.contains("PRIVATE KEY") {
            out.push_str(BEGIN);
            rest = block.get(BEGIN.len()..).unwrap_or_default();
            continue;
        }
        counts.keys += 1;
        out.push_str(GONE);
        let end = format!("-----END {label}-----");
        // A key that is cut off takes everything with it.
        rest = block.split_once(end.as_str()).map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

/// `quorate1.…`: whoever holds it before it is used can join the mesh.
fn tokens(text: &str, counts: &mut Counts) -> String {
    const PREFIX: &str = "quorate1.";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(PREFIX) {
        out.push_str(before);
        let end =
            after.find(|c: char| !(c.is_ascii_alphanumeric() || "._-=".contains(c))).unwrap_or(after.len());
        counts.tokens += 1;
        out.push_str(PREFIX);
        out.push_str(GONE);
        rest = after.get(end..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// etcd's own log: numbers stay, texts only where their names say that they are about the cluster. Requests, responses and
/// traces can hold keys of users.
pub(super) fn etcd_log(text: &str, counts: &mut Counts) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => {
                let fields: Map<String, Value> = fields
                    .into_iter()
                    .map(|(name, value)| (name.clone(), field(&name, value, counts)))
                    .collect();
                out.push_str(&Value::Object(fields).to_string());
            }
            // A panic and its stack, which holds places in the code only.
            _ if ["panic:", "fatal error:", "goroutine ", "\t", "created by "]
                .iter()
                .any(|start| line.starts_with(start)) =>
            {
                out.push_str(line);
            }
            _ if line.trim().is_empty() => {}
            _ => {
                counts.lines += 1;
                continue;
            }
        }
        out.push('\n');
    }
    scrub(&out, counts)
}

fn field(name: &str, value: Value, counts: &mut Counts) -> Value {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
        Value::String(_) if about_the_cluster(name) => value,
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| field(name, item, counts)).collect())
        }
        Value::String(_) | Value::Object(_) => {
            counts.values += 1;
            Value::from(GONE)
        }
    }
}

fn about_the_cluster(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "level",
        "ts",
        "caller",
        "logger",
        "msg",
        "error",
        "took",
        "reason",
        "from",
        "to",
        "rtt",
        "name",
        "version",
        "stream-type",
    ];
    const ENDS: [&str; 17] = [
        "-id",
        "-ids",
        "-url",
        "-urls",
        "-address",
        "-addresses",
        "-name",
        "-version",
        "-dir",
        "-path",
        "-duration",
        "-timeout",
        "-interval",
        "-size",
        "-term",
        "-index",
        "-took",
    ];
    NAMES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end))
}
