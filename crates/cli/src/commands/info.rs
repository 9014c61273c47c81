//! `varve info PATH`: shows the inode of a path in a mounted volume and the location of its bytes.

use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Show a file's inode, shard, partitions and where its bytes are; also a directory's
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory of a mounted volume; symlinks are not followed
    path: PathBuf,
}

#[derive(Serialize)]
struct Info {
    path: PathBuf,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let path = &arguments.path;
    let failed = || Problem::new(format!("cannot describe {}", path.display()));
    let text = varve_fuse::info(path).map_err(|error| match error {
        varve_fuse::Error::DeadMount(_) => failed().caused_by(&error),
        _ => failed().caused_by(&error).next("Give a path on a mounted volume that you may read."),
    })?;
    let fields = serde_json::from_str(&text)
        .map_err(|error| failed().caused_by(&error).next("The mount may be of another version of varve."))?;
    let info = Info { path: path.clone(), fields };
    output.result("info", &info, lines)?;
    Ok(Exit::Done)
}

fn lines(info: &Info) -> String {
    let path = ("path", info.path.display().to_string());
    let fields = info.fields.iter().map(|(name, value)| (name.as_str(), shown(value)));
    columns(&std::iter::once(path).chain(fields).collect::<Vec<_>>())
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}
