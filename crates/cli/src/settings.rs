//! The flags that describe a sandbox, shared by `run`, `call` and `snapshot save`.

use std::time::Duration;

use coracle::{Builder, Config, CpuTemplate};

use crate::quantity;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct Settings {
    /// The most memory the program may have, for everything: 65536, 512K, 64M, 1G. Costs nothing until it is used
    /// [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    memory: Option<u64>,

    /// Its stack [default: 2M, or an eighth of the memory if that is less]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    stack: Option<u64>,

    /// How long it may take: 500ms, 10s, 2m [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    timeout: Option<Duration>,

    /// The processor it sees: host, x86-64-v2 or x86-64-v3
    #[arg(long, value_name = "TEMPLATE", default_value_t)]
    cpu: CpuTemplate,

    /// A variable of its environment, which is empty otherwise; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
}

impl Settings {
    /// Settings and environment.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        let mut config = Config::default();
        config.memory_bytes = self.memory.unwrap_or(config.memory_bytes);
        config.stack_bytes = self.stack;
        config.timeout = self.timeout;
        config.cpu = self.cpu;
        builder.config(config).env(self.env.iter().cloned())
    }

    /// What can be set for a guest that has started already.
    pub(crate) fn apply_to_snapshot(&self, builder: Builder) -> Builder {
        match self.timeout {
            Some(timeout) => builder.timeout(timeout),
            None => builder,
        }
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not a variable: write NAME=VALUE, as in LANG=C".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(variable("A="), Ok(("A".into(), String::new())));
        for text in ["", "A", "=b"] {
            assert!(variable(text).is_err_and(|error| error.contains("NAME=VALUE")), "{text}");
        }
    }
}
