//! `PATTERN,KEY=VALUE…` and policy files: cache settings by file name.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tombolo_layer_cache::{Options, Prefetch, Rule};
use tombolo_sys::pattern::Pattern;

use super::cache::{CacheMode, ContractArg, Size};
use crate::failure::{Failure, OrCannot};
use crate::setting::{Setting, behind_word};

/// Cache settings of all files or of some. A setting that is `None` is inherited: by some files from those of
/// all files, by all files from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSettings {
    contract: Option<ContractArg>,
    mode: Option<CacheMode>,
    block_bytes: Option<u32>,
    whole_files: Option<bool>,
    prefetch: Option<Prefetch>,
    read_ahead_bytes: Option<u64>,
    attr_refresh: Option<Duration>,
}

/// Settings of the files that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleArg {
    pattern: Pattern,
    settings: CacheSettings,
}

/// Contents of a policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    pub cache_size: Option<Size>,
    pub write_back_limit: Option<Size>,
    pub settings: CacheSettings,
    pub rules: Vec<RuleArg>,
}

const KEYS: &str = "block-size, whole-files, prefetch, read-ahead, mode, contract, attr-refresh";

/// Limits of the block size, in bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;

/// Returns the block size in bytes; `None` unless it is a power of two from 4K to 1M.
pub fn block_bytes(size: Size) -> Option<u32> {
    let fits = size.0.is_power_of_two() && BLOCK_BYTES.contains(&size.0);
    u32::try_from(size.0).ok().filter(|_| fits)
}

impl CacheSettings {
    fn set(&mut self, setting: &Setting<'_>) -> Result<(), String> {
        let wrong = |reason: String| setting.wrong(reason);
        match setting.name {
            "contract" => self.contract = Some(setting.parsed().map_err(wrong)?),
            "mode" => self.mode = Some(setting.one_of()?),
            "block-size" => {
                let size = setting.parsed().map_err(wrong)?;
                let bytes = block_bytes(size).ok_or_else(|| setting.wrong("a power of two from 4K to 1M"))?;
                self.block_bytes = Some(bytes);
            }
            "whole-files" => self.whole_files = Some(yes_or_no(setting)?),
            "prefetch" => self.prefetch = Some(prefetch(setting)?),
            "read-ahead" => {
                let bytes = setting.bytes().ok_or_else(|| setting.wrong("a number of bytes, such as 16M"))?;
                self.read_ahead_bytes = Some(bytes);
            }
            "attr-refresh" => {
                let seconds = setting.number("a number of seconds", 0..=u64::from(u32::MAX))?;
                self.attr_refresh = Some(Duration::from_secs(seconds));
            }
            _ => return Err(setting.is_none_of(KEYS)),
        }
        Ok(())
    }

    pub fn mode(&self) -> Option<CacheMode> {
        self.mode
    }

    /// Returns `rest`, overridden by these settings.
    pub fn over(&self, rest: Options) -> Options {
        Options {
            contract: self.contract.map_or(rest.contract, |contract| contract.0),
            read_only: self.mode.map_or(rest.read_only, |mode| mode == CacheMode::ReadOnly),
            block_bytes: self.block_bytes.or(rest.block_bytes),
            whole_files: self.whole_files.unwrap_or(rest.whole_files),
            prefetch: self.prefetch.unwrap_or(rest.prefetch),
            ahead_bytes_max: self.read_ahead_bytes.unwrap_or(rest.ahead_bytes_max),
            attr_refresh: self.attr_refresh.unwrap_or(rest.attr_refresh),
            ..rest
        }
    }

    /// Refuses settings that cannot apply to some files only.
    fn check_rule(&self) -> Result<(), String> {
        match self.mode {
            Some(CacheMode::WriteBack) => {
                Err("mode=write-back is for all files: write --mode write-back".into())
            }
            _ => Ok(()),
        }
    }
}

fn yes_or_no(setting: &Setting<'_>) -> Result<bool, String> {
    match setting.value {
        None | Some("yes" | "true") => Ok(true),
        Some("no" | "false") => Ok(false),
        Some(_) => Err(setting.wrong("yes or no")),
    }
}

fn prefetch(setting: &Setting<'_>) -> Result<Prefetch, String> {
    match (setting.value, yes_or_no(setting)) {
        (Some("tree"), _) => Ok(Prefetch::Tree),
        (_, Ok(true)) => Ok(Prefetch::Walk),
        (_, Ok(false)) => Ok(Prefetch::Off),
        (_, Err(_)) => Err(setting.wrong("yes, no or tree")),
    }
}

impl RuleArg {
    pub fn over(&self, rest: Options) -> Rule {
        Rule { pattern: self.pattern.clone(), options: self.settings.over(rest) }
    }
}

impl FromStr for RuleArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, settings) = behind_word(text);
        let pattern = pattern.parse::<Pattern>().map_err(|error| error.to_string())?;
        let mut settings = settings.peekable();
        if settings.peek().is_none() {
            return Err(format!("no setting given: write PATTERN,KEY=VALUE with {KEYS}"));
        }
        let mut said = CacheSettings::default();
        settings.try_for_each(|setting| said.set(&setting))?;
        said.check_rule()?;
        Ok(Self { pattern, settings: said })
    }
}

impl PolicyFile {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let using = format!("use policy {}", path.display());
        let text = std::fs::read_to_string(path).or_cannot(&using)?;
        let wrong = |problem: String| {
            Failure::usage(format!("cannot {using}: {problem}"))
                .remedy("the keys are described in docs/use/proxy.md")
        };
        text.parse().map_err(wrong)
    }
}

impl FromStr for PolicyFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let table: toml::Table =
            toml::from_str(text).map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
        let mut file = Self::default();
        for (key, value) in &table {
            match (key.as_str(), value) {
                ("cache-size", _) => file.cache_size = Some(Setting::from(&*word(key, value)?).parsed()?),
                ("write-back-limit", _) => {
                    file.write_back_limit = Some(Setting::from(&*word(key, value)?).parsed()?);
                }
                ("rule", toml::Value::Array(rules)) => {
                    for (index, rule) in rules.iter().enumerate() {
                        let rule =
                            rule_of(rule).map_err(|problem| format!("rule {}: {problem}", index + 1))?;
                        file.rules.push(rule);
                    }
                }
                ("rule", _) => return Err("rule: write [[rule]] above each".into()),
                _ => file.settings.set(&Setting::from(&*word(key, value)?))?,
            }
        }
        Ok(file)
    }
}

fn rule_of(rule: &toml::Value) -> Result<RuleArg, String> {
    let table = rule.as_table().ok_or("write [[rule]] above it")?;
    let pattern = table.get("pattern").and_then(toml::Value::as_str).ok_or("the pattern is missing")?;
    let mut settings = CacheSettings::default();
    for (key, value) in table.iter().filter(|(key, _)| *key != "pattern") {
        settings.set(&Setting::from(&*word(key, value)?))?;
    }
    settings.check_rule()?;
    Ok(RuleArg { pattern: pattern.parse().map_err(|error| format!("{pattern:?}: {error}"))?, settings })
}

/// Returns `KEY=VALUE`, as written in a rule on the command line.
fn word(key: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(format!("{key}={text}")),
        toml::Value::Integer(number) => Ok(format!("{key}={number}")),
        toml::Value::Boolean(is_so) => Ok(format!("{key}={is_so}")),
        _ => Err(format!("{key}: must be a string, a number, true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_layer_cache::Contract;

    #[test]
    fn policy_file_equals_command_line_rules() {
        let file: PolicyFile =
            "cache-size = '1G'\nread-ahead = 0\n[[rule]]\npattern = '*.iso'\nwhole-files = true\n\
            block-size = '1M'\ncontract = 'immutable'\nmode = 'read-only'\nattr-refresh = 9\nprefetch = false"
                .parse()
                .expect("good");
        let words =
            "*.iso,whole-files,block-size=1M,contract=immutable,mode=read-only,attr-refresh=9,prefetch=no";
        assert_eq!((file.cache_size, file.rules), (Some(Size(1 << 30)), vec![words.parse().expect("good")]));
        let options = file.settings.over(Options::default());
        assert_eq!((options.ahead_bytes_max, options.contract), (0, Contract::CloseToOpen));
        let rule = words.parse::<RuleArg>().expect("good").over(options);
        let options = rule.options;
        assert_eq!((options.contract, options.block_bytes), (Contract::Immutable, Some(1 << 20)));
        assert!(options.whole_files && options.read_only && options.prefetch == Prefetch::Off);
        assert_eq!((options.attr_refresh.as_secs(), options.ahead_bytes_max), (9, 0), "as is said for all");
    }

    #[test]
    fn policy_errors_name_place_and_alternatives() {
        for (text, says) in [
            ("[[rule]]\nblock-size = '4K'", "rule 1: the pattern is missing"),
            ("[[rule]]\npattern = '*'\nfrob = 1", "rule 1: \"frob=1\" is none of block-size"),
            ("[[rule]]\npattern = ''", "empty"),
            ("block-size = '5K'", "block-size=5K: a power of two from 4K to 1M"),
            ("contract = 'strict'", "write immutable"),
            ("mode = 'back'", "write-through, read-only, write-back"),
            ("[[rule]]\npattern = '*'\nmode = 'write-back'", "rule 1: mode=write-back is for all files"),
            ("prefetch = 'maybe'", "prefetch=maybe: yes, no or tree"),
            ("read-ahead = [1]", "read-ahead: must be a string, a number"),
            ("rule = 1", "[[rule]]"),
            ("rule", "line 1"),
        ] {
            let problem = text.parse::<PolicyFile>().expect_err(text);
            assert!(problem.contains(says), "{text}: {problem}");
        }
        for (text, says) in
            [("*.iso", "KEY=VALUE"), (",mode=read-only", "empty"), ("*,x", "\"x\" is none of")]
        {
            let problem = text.parse::<RuleArg>().expect_err(text);
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
