//! Checks a YAML value against a JSON schema that we made ourselves: unknown fields, shapes and required fields, all
//! mistakes at once. Serde alone would stop at the first one and know no line.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::problem::{Problem, below, nearest};
use crate::yaml::{Kind, Node};

/// The schema of a type in the plain form that [`walk`] reads: no references, nullable instead of a list of types.
pub(crate) fn of<T: schemars::JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|s| s.inline_subschemas = true);
    settings
        .with_transform(kube::core::schema::StructuralSchemaRewriter)
        .with_transform(kube::core::schema::OptionalEnum)
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// The fields of an object schema.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    match schema.get("properties") {
        Some(found) => found.as_object(),
        // Option<Struct>: the first branch that has properties.
        None => schema.get("anyOf")?.as_array()?.iter().find_map(properties),
    }
}

/// Adds what is wrong with `node` to `problems` and gives back what can be used: without unknown fields, without fields
/// of a wrong shape. Nulls mean "absent".
pub(crate) fn walk(node: &Node, schema: &Value, path: &str, problems: &mut Vec<Problem>) -> Option<Value> {
    let mut wrong = |message: String| {
        problems.push(Problem::new(Some(node.line), path, message));
        None
    };
    let expected = schema.get("type").and_then(Value::as_str).unwrap_or("object");
    match (&node.kind, expected) {
        (Kind::Null, _) => None,
        (Kind::Map(entries), "object") => {
            let Some(fields) = properties(schema) else { return Some(node.json()) };
            let mut good = Map::new();
            for entry in entries {
                let path = below(path, &entry.key);
                if let Some(schema) = fields.get(&entry.key) {
                    let value = walk(&entry.value, schema, &path, problems);
                    good.extend(value.map(|value| (entry.key.clone(), value)));
                } else {
                    let hint = nearest(&entry.key, fields.keys().map(String::as_str));
                    problems.push(Problem::new(Some(entry.line), path, format!("unknown field{hint}")));
                }
            }
            let mut complete = true;
            for name in required(schema) {
                complete &= good.contains_key(name);
                if node.get(name).is_none_or(|value| matches!(value.kind, Kind::Null)) {
                    problems.push(Problem::new(Some(node.line), below(path, name), "must be given"));
                }
            }
            complete.then_some(Value::Object(good))
        }
        (Kind::List(items), "array") => {
            let Some(schema) = schema.get("items") else { return Some(node.json()) };
            let mut good = Vec::new();
            for (i, item) in items.iter().enumerate() {
                good.extend(walk(item, schema, &format!("{path}[{i}]"), problems));
            }
            // With a hole in it the places of the others would be wrong.
            (good.len() == items.len()).then_some(Value::Array(good))
        }
        (Kind::Scalar(Value::String(text)), "string") => {
            if let Some(choice) = schema.get("enum").and_then(Value::as_array) {
                let choice: Vec<&str> = choice.iter().filter_map(Value::as_str).collect();
                if !choice.contains(&text.as_str()) {
                    let hint = nearest(text, choice.iter().copied());
                    return wrong(format!("{text:?} is not one of {}{hint}", choice.join(", ")));
                }
            }
            Some(node.json())
        }
        (Kind::Scalar(Value::Number(_) | Value::Bool(_)), "string") => {
            wrong("must be text: put it in quotes, or YAML reads a number or a truth value".to_owned())
        }
        (Kind::Scalar(Value::Bool(_)), "boolean") => Some(node.json()),
        (_, "boolean") => wrong("must be true or false".to_owned()),
        (Kind::Scalar(Value::Number(number)), "integer") => match out_of_range(number, schema) {
            Some(message) => wrong(message),
            None => Some(node.json()),
        },
        (_, "integer") => wrong("must be a whole number".to_owned()),
        (_, "array") => wrong("must be a list".to_owned()),
        (_, "object") => wrong("must be a map of fields".to_owned()),
        (_, _) => wrong("must be text".to_owned()),
    }
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn out_of_range(number: &serde_json::Number, schema: &Value) -> Option<String> {
    let Some(number) = number.as_i128() else { return Some("must be a whole number".to_owned()) };
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let by_format = match schema.get("format").and_then(Value::as_str) {
        Some("uint16") => i128::from(u16::MAX),
        Some("uint32") => i128::from(u32::MAX),
        Some("int32") => i128::from(i32::MAX),
        _ => i128::from(i64::MAX),
    };
    #[expect(clippy::cast_possible_truncation, reason = "bounds in our schemas are small whole numbers")]
    let (low, high) = (
        bound("minimum").map_or(0, |low| low as i128),
        bound("maximum").map_or(by_format, |high| (high as i128).min(by_format)),
    );
    (!(low..=high).contains(&number)).then(|| format!("{number} must be between {low} and {high}"))
}
