//! `quorate explain`, and the pages in `docs/reference/reasons`: the same words, as text and as Markdown.

use std::fmt::Write as _;
use std::process::ExitCode;

use quorate_core::reason::{Code, Rule};
use serde_json::{Value, json};

use super::Outcome;
use crate::failure::{Exit, Failure};
use crate::output::table::{table, wrap};
use crate::output::{Plain, json, print};

/// What a reason or rule means, and what a person can do about it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate explain                          # all reasons
  $ quorate explain LostMemberUnconfirmed
  $ quorate explain I3                       # a rule, with its reasons
  $ quorate explain QuorumLost -o json")]
pub(super) struct Args {
    /// A reason from a condition, an event or a metric, or a rule (I1 to I18)
    reason: Option<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { reason, output } = args;
    let asked = ask(reason.as_deref())?;
    let plain = || Value::from(asked.codes().into_iter().map(plain).collect::<Vec<_>>());
    print(&match output {
        Plain::Json => json::json(&plain())?,
        Plain::Yaml => json::yaml(&plain())?,
        Plain::Table => asked.text(),
    });
    Ok(ExitCode::SUCCESS)
}

/// What is to be explained.
enum Asked {
    All,
    One(Code),
    Rule(Rule),
}

impl Asked {
    fn codes(&self) -> Vec<Code> {
        match self {
            Self::All => Code::ALL.to_vec(),
            Self::One(code) => vec![*code],
            Self::Rule(rule) => Code::ALL.iter().copied().filter(|code| code.rule() == Some(*rule)).collect(),
        }
    }

    fn text(&self) -> String {
        let pages = || self.codes().into_iter().map(describe).collect::<Vec<_>>().join("\n");
        match self {
            Self::All => list(),
            Self::One(_) => pages(),
            Self::Rule(rule) => format!("{rule}: {}\n\n{}", rule.title(), pages()),
        }
    }
}

fn ask(reason: Option<&str>) -> Result<Asked, Failure> {
    let Some(word) = reason else { return Ok(Asked::All) };
    if let Some(code) = Code::find(word) {
        return Ok(Asked::One(code));
    }
    if let Some(rule) = Rule::ALL.into_iter().find(|rule| rule.to_string().eq_ignore_ascii_case(word)) {
        return Ok(Asked::Rule(rule));
    }
    let near = nearest(word);
    let hint = match near.as_slice() {
        [] => "`quorate explain` lists them all".to_owned(),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Err(Failure::message(Exit::Usage, format!("there is no reason {word:?}")).hint(hint))
}

/// The paragraphs of a page: a short heading for a terminal, a long one for Markdown, the text.
fn paragraphs(code: Code) -> Vec<(&'static str, &'static str, String)> {
    let one_line = |text: &str| text.trim().replace('\n', " ");
    let mut all = vec![("means", "Meaning", one_line(code.meaning()))];
    if let Some(rule) = code.rule() {
        all.push(("rule", "Rule", format!("{rule}: {}", rule.title())));
    }
    all.push(("message", "Message", placeholders(code.template())));
    all.push(("by itself", "What quorate does by itself", code.meanwhile().to_owned()));
    all.push(("remedy", "What to do", placeholders(code.remedy())));
    all
}

fn describe(code: Code) -> String {
    const INDENT: usize = 13;
    let mut text = format!("{}\n", code.name());
    for (name, _, content) in paragraphs(code) {
        let _ = writeln!(text, "  {name:<11}{}", wrap(&content, INDENT, 110).trim_start());
    }
    let widest = code.look().iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    for (i, (command, shows)) in code.look().iter().enumerate() {
        let name = if i == 0 { "look" } else { "" };
        let _ = writeln!(text, "  {name:<11}{command:<widest$}   {shows}");
    }
    if let Some(runbook) = code.runbook() {
        let _ = writeln!(text, "  {:<11}docs/runbooks/{runbook}.md", "runbook");
    }
    text
}

/// The page of a reason.
pub(super) fn page(code: Code) -> String {
    let mut text = format!("# {}\n", code.name());
    for (_, heading, content) in paragraphs(code) {
        let content = match heading {
            "Message" => format!("`{content}`"),
            "Rule" => format!("{content} ([all rules](../../concepts/rules.md))"),
            _ => sentence(&content),
        };
        let _ = write!(text, "\n## {heading}\n\n{content}\n");
    }
    text.push_str("\n## Where to look further\n\n| command | shows |\n| --- | --- |\n");
    for (command, shows) in code.look() {
        let _ = writeln!(text, "| `{command}` | {shows} |");
    }
    if let Some(runbook) = code.runbook() {
        let _ = write!(text, "\nRunbook: [{runbook}](../../runbooks/{runbook}.md)\n");
    }
    text
}

/// With a capital in front and a full stop behind.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if text.ends_with('.') { "" } else { "." };
    // Angle brackets would be taken for HTML.
    format!("{first}{}{stop}", letters.as_str()).replace('<', "\\<")
}

fn plain(code: Code) -> Value {
    json!({
        "reason": code.name(),
        "rule": code.rule().map(|rule| rule.to_string()),
        "meaning": code.meaning().trim().replace('\n', " "),
        "message": placeholders(code.template()),
        "meanwhile": code.meanwhile(),
        "remedy": placeholders(code.remedy()),
        "look": code.look().iter().map(|(command, shows)| json!({"command": command, "shows": shows})).collect::<Vec<_>>(),
        "runbook": code.runbook().map(|page| format!("docs/runbooks/{page}.md")),
    })
}

/// The blanks of a message as a reader sees them.
fn placeholders(template: &str) -> String {
    let text = template.replace("{member}", "<member>").replace("{site}", "<site>");
    text.replace("{have}", "<n>").replace("{need}", "<needed>").replace("{place}", "<place>")
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

    fn explain(reason: Option<&str>) -> Result<String, Failure> {
        ask(reason).map(|asked| asked.text())
    }

    #[test]
    fn reasons_and_rules_are_explained() {
        insta::assert_snapshot!("reason", explain(Some("lostmemberunconfirmed")).unwrap());
        insta::assert_snapshot!("rule", explain(Some("i12")).unwrap());
        insta::assert_snapshot!("list", explain(None).unwrap());
        insta::assert_snapshot!("page", page(Code::QuorumLost));
    }

    /// A page and a terminal say the same.
    #[test]
    fn nothing_is_said_in_one_place_only() {
        let words = |text: &str| {
            let letters = |c: char| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
            text.chars().map(letters).collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for code in Code::ALL.iter().copied() {
            let (terminal, page) = (words(&describe(code)), words(&page(code)));
            for (_, _, content) in paragraphs(code) {
                assert!(terminal.contains(&words(&content)) && page.contains(&words(&content)), "{content}");
            }
            assert!(
                code.look().iter().all(|(c, _)| terminal.contains(&words(c)) && page.contains(&words(c)))
            );
        }
    }

    /// The commands that are named can be typed.
    #[test]
    fn the_commands_to_look_further_exist() {
        use clap::CommandFactory as _;
        for (command, _) in Code::ALL.iter().flat_map(|code| code.look()) {
            let typed = command.replace("NAME", "west");
            let parsed = crate::cmd::Cli::command().try_get_matches_from(typed.split_whitespace());
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
    }

    #[test]
    fn a_typing_error_is_met_with_the_nearest_names() {
        insta::assert_snapshot!("typo", explain(Some("LostMemberUncomfirmed")).unwrap_err());
        insta::assert_snapshot!("nonsense", explain(Some("xyzzy")).unwrap_err());
    }
}
