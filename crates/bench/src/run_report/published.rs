//! Published figures of other systems, beside those of the run. Nothing was measured side by side, and the page says so.

use super::MergedRuns;
use super::answer::with_unit;
use crate::report::chart::escape;
use crate::run_file::RunEntry;
use crate::{Error, Result};
use serde::Deserialize;
use std::fmt::Write;

/// The collections that this program contains: the name and the text.
pub const COLLECTIONS: [(&str, &str); 2] =
    [("d82", include_str!("published/d82.toml")), ("io500", include_str!("published/io500.toml"))];

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub title: String,
    /// How the figures were measured.
    pub note: String,
    #[serde(rename = "figure")]
    pub figures: Vec<PublishedFigure>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigure {
    pub system: String,
    /// The type of the store, as mount tables name it: `lustre`, `gpfs`, `ceph`. Figures of the site's own type come
    /// first.
    #[serde(default)]
    pub store: String,
    pub workload: String,
    pub metric: String,
    pub unit: String,
    pub value: f64,
    #[serde(default)]
    pub conditions: String,
    pub source: String,
}

impl Published {
    /// # Errors
    /// [`Error::Usage`] with the line that cannot be understood.
    pub fn from_toml(name: &str, text: &str) -> Result<Published> {
        toml::from_str(text)
            .map_err(|error| Error::Usage(format!("cannot understand the published figures {name}: {error}")))
    }

    /// One of [`COLLECTIONS`].
    pub fn shipped(name: &str) -> Option<Result<Published>> {
        let (name, text) = COLLECTIONS.iter().find(|(known, _)| *known == name)?;
        Some(Published::from_toml(name, text))
    }

    /// The published figures of each metric that the run has too.
    pub(super) fn section(&self, runs: &MergedRuns, page: &mut String) {
        let _ = write!(
            page,
            "<h2>{}</h2>\n<p class=\"soft wrap\">{} These figures were not measured side by side with the run: hardware, numbers of \
             clients and options differ.</p>\n<div class=\"table\"><table>\n<thead><tr><th class=\"name\">Measurement</th>\
             <th class=\"name\">System</th><th>Value</th><th class=\"name\">Conditions</th><th class=\"name\">Source</th></tr>\
             </thead>\n<tbody>\n",
            escape(&self.title),
            escape(&self.note)
        );
        let mut known: Vec<(&str, &str, &str)> = Vec::new();
        for figure in &self.figures {
            let key = (figure.workload.as_str(), figure.metric.as_str(), figure.unit.as_str());
            if !known.contains(&key) {
                known.push(key);
                self.metric(key, runs, page);
            }
        }
        page.push_str("</tbody></table></div>\n");
    }

    fn metric(&self, key: (&str, &str, &str), runs: &MergedRuns, page: &mut String) {
        let ours = runs.targets.iter().filter_map(|target| {
            let same = |entry: &&RunEntry| {
                entry.target == target.label
                    && (entry.workload.as_str(), entry.metric.as_str(), entry.unit.as_str()) == key
            };
            let clients = |entry: &&RunEntry| entry.clients().unwrap_or(0.0);
            runs.entries.iter().filter(same).max_by(|a, b| clients(a).total_cmp(&clients(b)))
        });
        let ours: Vec<&RunEntry> = ours.collect();
        if ours.is_empty() {
            return;
        }
        let mut first = true;
        let mut row = |system: String, value: String, conditions: &str, source: &str, class: &str| {
            let name = if first { format!("{} {}", key.0, key.1) } else { String::new() };
            let line = if first { " class=\"first\"" } else { "" };
            first = false;
            let _ = writeln!(
                page,
                "<tr{line}><td class=\"name\">{}</td><td class=\"name\">{}</td><td{class}>{}</td><td class=\"name wrap soft\">{}</td>\
                 <td class=\"name wrap soft\">{}</td></tr>",
                escape(&name),
                escape(&system),
                escape(&value),
                escape(conditions),
                escape(source)
            );
        };
        for entry in ours {
            let value = with_unit(entry.median(), &entry.unit);
            row(entry.target.clone(), value, &entry.conditions(), "this run", " class=\"main\"");
        }
        let is_own = |figure: &&PublishedFigure| {
            !figure.store.is_empty() && runs.targets.iter().any(|target| target.filesystem == figure.store)
        };
        let alike =
            |figure: &&PublishedFigure| (figure.workload.as_str(), figure.metric.as_str(), figure.unit.as_str()) == key;
        let (own, others): (Vec<_>, Vec<_>) = self.figures.iter().filter(alike).partition(is_own);
        for (figures, note) in [(own, ", your type of store"), (others, "")] {
            for figure in figures {
                let value = with_unit(figure.value, &figure.unit);
                row(format!("{}{note}", figure.system), value, &figure.conditions, &figure.source, "");
            }
        }
    }
}
