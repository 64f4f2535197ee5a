//! YAML with line numbers: what a person wrote, before it is anything else.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::problem::Problem;

/// A value and the line that it stands on.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) kind: Kind,
}

/// The shapes that a value can have.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Null,
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a map.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) line: u64,
    pub(crate) key: String,
    pub(crate) value: Node,
}

impl Node {
    /// The value of a key of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value),
            Kind::Null | Kind::Scalar(_) | Kind::List(_) => None,
        }
    }

    /// The text of a key of a map.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.kind {
            Kind::Scalar(Value::String(text)) => Some(text),
            Kind::Null | Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// As JSON, without lines; keys whose value is null are left out.
    pub(crate) fn json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Self::json).collect(),
            Kind::Map(entries) => Value::Object(
                entries
                    .iter()
                    .filter(|entry| !matches!(entry.value.kind, Kind::Null))
                    .map(|entry| (entry.key.clone(), entry.value.json()))
                    .collect(),
            ),
        }
    }

    /// The line of a path such as `spec.clusters[1].name`, or of the nearest thing above it that exists.
    pub(crate) fn line_of(&self, path: &str) -> u64 {
        let mut node = self;
        let mut line = self.line;
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match (&node.kind, part.strip_suffix(']')) {
                (Kind::List(items), Some(index)) => {
                    index.parse().ok().and_then(|i: usize| items.get(i)).map(|item| (item.line, item))
                }
                (Kind::Map(entries), None) => {
                    entries.iter().find(|e| e.key == part).map(|e| (e.line, &e.value))
                }
                _ => None,
            };
            let Some((found, below)) = next else { break };
            (line, node) = (found, below);
        }
        line
    }
}

/// Reads all documents of a file; empty ones are left out.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>, Problem> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `zones: [no]` is a zone named "no".
        strict_booleans: true,
    };
    let read = serde_saphyr::from_multiple_with_options::<Node>(text, options);
    let nodes = read.map_err(|error| {
        let line = error.location().map(|location| location.line());
        Problem::new(
            line,
            "",
            format!("not readable as YAML: {}", first_line(&error.without_snippet().to_string())),
        )
    })?;
    Ok(nodes.into_iter().filter(|node| !matches!(node.kind, Kind::Null)).collect())
}

/// The message without the place, which we print ourselves.
fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    // The place, and advice for programmers.
    let end = [" at line ", ", set DuplicateKeyPolicy"].iter().filter_map(|tail| line.find(tail)).min();
    line.get(..end.unwrap_or(line.len())).unwrap_or(line).trim_start_matches("error: ").to_owned()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            entries.push(Entry { line: key.referenced.line(), key: key.value, value: map.next_value()? });
        }
        Ok(Kind::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_file() {
        let text = "# comment\na: 1\nb:\n  - x: y\n    z: null\n  - text\n---\n---\nc: 'no'\nd: no\n";
        let nodes = documents(text).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(nodes[0].json().to_string(), r#"{"a":1,"b":[{"x":"y"},"text"]}"#);
        let line = |path: &str| nodes[0].line_of(path);
        assert_eq!((line("a"), line("b"), line("b[0].x"), line("b[0].z"), line("b[1]")), (2, 3, 4, 5, 6));
        assert_eq!(line("b[0].missing.below"), 4, "the nearest thing that exists");
        assert_eq!(nodes[1].line_of("c"), 9);
        assert_eq!(nodes[1].json().to_string(), r#"{"c":"no","d":"no"}"#);
    }

    #[test]
    fn damaged_files_are_refused_with_the_line() {
        for (text, line) in [("a: [1, 2\nb: 3", 2), ("a: 1\na: 2", 2), ("a: b\n\tc: d", 1), ("a: *none", 1)] {
            let problem = documents(text).unwrap_err();
            assert_eq!(problem.line, Some(line), "{text:?}: {problem}");
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n".to_owned()
            + "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
            + "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
        assert!(documents(&bomb).is_err(), "a small file must not become a large one");
    }
}
