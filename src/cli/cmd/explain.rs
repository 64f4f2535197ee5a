//! `quorate explain`.

use std::process::ExitCode;

use quorate_core::reason::{Code, Rule};

use super::Outcome;
use crate::failure::{Exit, Failure};
use crate::output::print;
use crate::output::table::{table, wrap};

/// What a reason or rule means, and what a person can do about it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate explain                          # all reasons
  $ quorate explain LostMemberUnconfirmed
  $ quorate explain I3                       # a rule, with its reasons")]
pub(super) struct Args {
    /// A reason from a condition, an event or a metric, or a rule (I1 to I18)
    reason: Option<String>,
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { reason } = args;
    print(&explain(reason.as_deref())?);
    Ok(ExitCode::SUCCESS)
}

fn explain(reason: Option<&str>) -> Result<String, Failure> {
    let Some(word) = reason else { return Ok(list()) };
    if let Some(code) = Code::find(word) {
        return Ok(describe(code));
    }
    if let Some(rule) = Rule::ALL.into_iter().find(|rule| rule.to_string().eq_ignore_ascii_case(word)) {
        let codes = Code::ALL.iter().filter(|code| code.rule() == Some(rule));
        let codes: Vec<String> = codes.map(|code| describe(*code)).collect();
        return Ok(format!("{rule}: {}\n\n{}", rule.title(), codes.join("\n")));
    }
    let near = nearest(word);
    let hint = match near.as_slice() {
        [] => "`quorate explain` lists them all".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Err(Failure::message(Exit::Usage, format!("there is no reason {word:?}")).hint(hint))
}

fn describe(code: Code) -> String {
    let line = |name: &str, text: &str| format!("  {name:<9}{}\n", wrap(text, 11, 100).trim_start());
    let mut text = format!("{}\n{}", code.name(), line("means", code.meaning()));
    if let Some(rule) = code.rule() {
        text.push_str(&line("rule", &format!("{rule}: {}", rule.title())));
    }
    text.push_str(&line("message", &placeholders(code.template())));
    text.push_str(&line("remedy", code.remedy()));
    text
}

/// The blanks of a message as a reader sees them.
pub(super) fn placeholders(template: &str) -> String {
    let text = template.replace("{member}", "<member>").replace("{site}", "<site>");
    text.replace("{have}", "<n>").replace("{need}", "<needed>")
}

fn list() -> String {
    let row = |code: &Code| {
        let rule = code.rule().map(|rule| rule.to_string()).unwrap_or_default();
        vec![code.name().to_owned(), rule, code.meaning().trim().replace('\n', " ")]
    };
    table(0, &["REASON", "RULE", "MEANING"], Code::ALL.iter().map(row).collect())
}

fn nearest(word: &str) -> Vec<&'static str> {
    const NEAR: f64 = 0.8;
    let word = word.to_lowercase();
    let mut scored: Vec<(f64, &str)> = Code::ALL
        .iter()
        .map(|code| (strsim::jaro_winkler(&word, &code.name().to_lowercase()), code.name()))
        .filter(|(score, _)| *score >= NEAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_rules_are_explained() {
        insta::assert_snapshot!("reason", explain(Some("lostmemberunconfirmed")).unwrap());
        insta::assert_snapshot!("rule", explain(Some("i12")).unwrap());
        insta::assert_snapshot!("list", explain(None).unwrap());
    }

    #[test]
    fn a_typing_error_is_met_with_the_nearest_names() {
        insta::assert_snapshot!("typo", explain(Some("LostMemberUncomfirmed")).unwrap_err());
        insta::assert_snapshot!("nonsense", explain(Some("xyzzy")).unwrap_err());
    }
}
