//! File of `--tls-users` (docs/use/nfs.md): users that clients with certificates may act as.

use std::ops::RangeInclusive;
use std::path::Path;

use serde::Deserialize;
use tombolo_front_nfs_server::{Claim, ClaimRule, Claims, NO_ID};

use crate::failure::{Failure, OrCannot};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    client: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    subject: String,
    users: Option<Vec<Ids>>,
    groups: Option<Vec<Ids>>,
    act_as: Option<String>,
    #[serde(default)]
    any: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Range(String),
}

pub fn read(path: &Path) -> Result<Claims, Failure> {
    let using = format!("use {}", path.display());
    let text = std::fs::read_to_string(path).or_cannot(&using)?;
    parsed(&text).map_err(|problem| {
        Failure::usage(format!("cannot {using}: {problem}"))
            .remedy("the keys are described in docs/use/nfs.md")
    })
}

fn parsed(text: &str) -> Result<Claims, String> {
    let text: Text = toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
    let rules = text.client.into_iter().enumerate();
    let rules = rules
        .map(|(index, rule)| rule_of(rule).map_err(|problem| format!("client {}: {problem}", index + 1)));
    rules.collect::<Result<_, _>>().map(Claims)
}

fn rule_of(rule: Rule) -> Result<ClaimRule, String> {
    let subject = rule.subject.parse().map_err(|error| format!("subject: {error}"))?;
    let claim = match (rule.any, rule.act_as, rule.users, rule.groups) {
        (true, None, None, None) => Claim::Any,
        (false, Some(text), None, None) => {
            let ids = text.split_once(':').and_then(|(uid, gid)| Some((id(uid)?, id(gid)?)));
            let (uid, gid) = ids.ok_or_else(|| format!("act-as = {text:?}: write UID:GID"))?;
            Claim::Fixed { uid, gid }
        }
        (false, None, Some(users), Some(groups)) => {
            Claim::Within { users: ranges(users)?, groups: ranges(groups)? }
        }
        _ => return Err("write one of these: users and groups, act-as, any = true".into()),
    };
    Ok(ClaimRule { subject, claim })
}

fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != NO_ID)
}

fn ranges(ids: Vec<Ids>) -> Result<Vec<RangeInclusive<u32>>, String> {
    let range = |ids| match ids {
        Ids::One(id) => Ok(id..=id),
        Ids::Range(text) => {
            let ends = text.split_once('-').and_then(|(first, last)| Some(id(first)?..=id(last)?));
            ends.filter(|range| !range.is_empty())
                .ok_or_else(|| format!("{text:?}: a number, or \"FIRST-LAST\""))
        }
    };
    ids.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_users_file_is_parsed_with_clear_errors() {
        let good = "
            [[client]]
            subject = \"lab-*\"
            users = [1000, \"2000-2999\"]
            groups = [100]
            [[client]]
            subject = \"kiosk\"
            act-as = \"5000:600\"
            [[client]]
            subject = \"gateway\"
            any = true
        ";
        let claims: Vec<Claim> = parsed(good).expect("good").0.into_iter().map(|rule| rule.claim).collect();
        let of = Claim::Within { users: vec![1000..=1000, 2000..=2999], groups: vec![100..=100] };
        assert_eq!(claims, [of, Claim::Fixed { uid: 5000, gid: 600 }, Claim::Any]);
        for (bad, said) in [
            ("[[client]]\nany = true", "subject"),
            ("[[client]]\nsubject = \"a\"", "one of"),
            ("[[client]]\nsubject = \"a\"\nusers = [1]", "one of"),
            ("[[client]]\nsubject = \"a\"\nany = true\nact-as = \"1:1\"", "one of"),
            ("[[client]]\nsubject = \"a\"\nact-as = \"1\"", "UID:GID"),
            ("[[client]]\nsubject = \"a\"\nusers = [\"9-1\"]\ngroups = [1]", "FIRST-LAST"),
            ("[[clients]]", "client"),
        ] {
            let problem = parsed(bad).expect_err(bad);
            assert!(problem.contains(said), "{bad}: {problem}");
        }
    }
}
