use super::*;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

/// Every command that a person sees has examples, and each example can be parsed.
#[test]
fn examples_are_right() {
    fn each(command: &Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> =
            help.lines().filter_map(|line| line.split_once("$ quorate ")).map(|(_, rest)| rest).collect();
        let group = command.get_subcommands().next().is_some();
        assert!(group || !examples.is_empty(), "{path} has no example");
        found.extend(examples.iter().map(|example| (*example).to_owned()));
        command.get_subcommands().for_each(|sub| each(sub, &path, found));
    }
    let mut found = Vec::new();
    Cli::command().get_subcommands().for_each(|sub| each(sub, "quorate", &mut found));
    for example in found {
        let end = ["#", "|", "<", ">"].iter().filter_map(|end| example.find(&format!(" {end}"))).min();
        // `<id that east printed>` is for people.
        let words = example.get(..end.unwrap_or(example.len())).unwrap_or(&example);
        let words = if example.contains("<id") { format!("{words} 6f0c") } else { words.to_owned() };
        let words = if example.contains("<token") { format!("{words} t") } else { words };
        let words = words.replace("--mesh 6f0c", "--mesh x");
        let args = std::iter::once("quorate").chain(words.split_whitespace());
        if let Err(error) = Cli::command().try_get_matches_from(args) {
            panic!("`quorate {example}`: {error}");
        }
    }
}

#[test]
fn as_a_plugin_of_kubectl_it_says_so() {
    let mut plugin = command(Some(Path::new("/usr/bin/kubectl-quorate")));
    plugin.build();
    let status = plugin.find_subcommand_mut("status").unwrap().render_long_help().to_string();
    assert!(status.contains("Usage: kubectl quorate status"), "{status}");
    assert!(status.contains("$ kubectl quorate status etcd/main --watch"), "{status}");
    assert!(!command(Some(Path::new("quorate"))).render_long_help().to_string().contains("kubectl"));
}

#[test]
fn the_first_page_is_short() {
    insta::assert_snapshot!(command(None).render_long_help().to_string());
}
