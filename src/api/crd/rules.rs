//! The CEL rules of the CRD. Their words are those of `core/federation/layout.rs`.

use serde_json::{Value, json};

fn rule(rule: &str, message_expression: &str) -> Value {
    // The plain message is what an API server shows if the expression fails; the rule itself would help nobody.
    json!({"rule": rule, "messageExpression": message_expression, "message": "is not valid; see `quorate validate`"})
}

const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// A name that is a DNS label.
pub(super) fn label() -> Value {
    json!([rule(
        &format!("self.matches('{LABEL}')"),
        "'\"' + self + '\" is not a DNS label (lower case letters, digits, inner hyphens, at most 63)'",
    )])
}

/// The zones of a cluster.
pub(super) fn zones() -> Value {
    json!([
        {"rule": "size(self) > 0", "message": "must not be empty; leave it out for one zone"},
        {
            "rule": format!("self.all(z, z.matches('{LABEL}') && size(z) <= 63)"),
            "message": "a zone is not a DNS label (lower case letters, digits, inner hyphens, at most 63)",
        },
    ])
}

/// Ids of members.
pub(super) fn member_ids() -> Value {
    json!([{
        "rule": "self.all(id, id.matches('^[0-9a-fA-F]{1,16}$'))",
        "message": "an entry is not a hexadecimal id of at most 16 digits",
    }])
}

/// The id of a foreign etcd cluster.
pub(super) fn cluster_id() -> Value {
    json!([rule(
        "self.matches('^[0-9a-fA-F]{1,16}$')",
        "'\"' + self + '\" is not a hexadecimal id of at most 16 digits'",
    )])
}

/// Client URLs of a foreign etcd.
pub(super) fn endpoints() -> Value {
    let form = "matches('^https://.+:[0-9]{1,5}$')";
    json!([
        {"rule": "size(self) > 0", "message": "must name a client URL of each foreign member"},
        rule(
            &format!("self.all(e, e.{form})"),
            &format!("'\"' + self.filter(e, !e.{form})[0] + '\" must have the form https://host:port'"),
        ),
    ])
}

/// The roots of a foreign etcd's peers.
pub(super) fn peer_ca() -> Value {
    json!([
        {
            "rule": "!self.contains('PRIVATE KEY')",
            "message": "holds a private key; it must hold certificates only",
        },
        {
            "rule": "self.contains('-----BEGIN CERTIFICATE-----')",
            "message": "must hold the root of the foreign peers as PEM",
        },
    ])
}

/// etcd's version.
pub(super) fn version() -> Value {
    json!([rule(
        "self.matches('^3[.][567]([.][0-9]+)?$')",
        "'\"' + self + '\" must be a minor or an exact version of 3.5, 3.6, 3.7'",
    )])
}

/// Heartbeat and election timeout.
pub(super) fn timers() -> Value {
    let heartbeat = "(has(self.heartbeatMs) ? self.heartbeatMs : 100)";
    let election = "(has(self.electionMs) ? self.electionMs : 1000)";
    json!([rule(
        &format!("{heartbeat} > 0 && {election} >= 5 * {heartbeat} && {election} <= 50000"),
        &format!(
            "string({election}) + ' must be at least 5 x the heartbeat of ' + string({heartbeat}) + ' and at most 50000'"
        ),
    )])
}

/// The override.
pub(super) fn exception() -> Value {
    json!([
        rule("self.rule in ['I3', 'I13', 'I17']", "self.rule + ' cannot be overridden, only I3, I13 and I17'"),
        {"rule": "size(self.operation) > 0 && size(self.by) > 0", "message": "operation and by must be given"},
    ])
}

/// What can only be said of the spec as a whole: the arithmetic.
pub(super) fn spec() -> Value {
    let given = "self.clusters.map(c, has(c.members) ? c.members : 0).sum()";
    let open = "self.clusters.exists(c, !has(c.members))";
    let most = "(size(self.clusters) >= 5 ? 5 : 3)";
    let total = format!(
        "(has(self.members) ? self.members : {open} ? ({given} > {most} ? {given} : {most}) : {given})"
    );
    let single = "has(self.allowSingleVoter) && self.allowSingleVoter";
    let skipped = "self.bootstrap.skipClusters";
    json!([
        {"rule": "size(self.clusters) > 0", "message": "must name at least one cluster", "fieldPath": ".clusters"},
        {"rule": format!("{total} > 0"), "message": "must have at least one voter"},
        rule(
            &format!("{total} % 2 == 1 || {total} == 0"),
            &format!(
                "string({total}) + ' voters survive no more than ' + string({total} - 1) + \
                 ' and stop sooner; use an odd number'"
            ),
        ),
        rule(
            &format!("{total} <= 7 || {total} % 2 == 0"),
            &format!("string({total}) + ' is more than the 7 voters that etcd serves well'"),
        ),
        {
            "rule": format!("{total} != 1 || ({single})"),
            "message": "one voter survives nothing; set spec.allowSingleVoter: true if that is wanted",
        },
        rule(
            &format!("!({given} > {total} || (!{open} && {given} != {total}))"),
            &format!(
                "'the clusters\\' members add up to ' + string({given}) + ', but ' + string({total}) + \
                 ' voters are asked for'"
            ),
        ),
        rule(
            "!has(self.survive) || self.survive != 'Cluster' || size(self.clusters) > 2",
            &format!(
                "string(size(self.clusters)) + ' cluster(s) cannot survive the loss of either: a majority of ' + \
                 string({total}) + ' voters sits in one of them; add a third cluster with one voter'"
            ),
        ),
        rule(
            &format!(
                "!has(self.bootstrap) || !has({skipped}) || \
                 {skipped}.all(s, self.clusters.exists(c, c.name == s))"
            ),
            &format!(
                "{skipped}.filter(s, !self.clusters.exists(c, c.name == s))[0] + ' is not one of spec.clusters'"
            ),
        ),
        rule(
            "!has(self.adopt) || self.clusters.exists(c, c.name == self.adopt.cluster)",
            "self.adopt.cluster + ' is not one of spec.clusters'",
        ),
        rule(
            &format!(
                "!has(self.adopt) || !has(self.bootstrap) || !has({skipped}) || \
                 !{skipped}.exists(s, s == self.adopt.cluster)"
            ),
            "self.adopt.cluster + ' speaks for the foreign members; it cannot be skipped'",
        ),
    ])
}
