//! Checks the permission to list a directory.

use super::access::{self, Guard, READ};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal};
use varve_schema::PartitionRow;
use varve_types::{InodeId, NameHash};

/// Checks that the caller may read the names of `directory` from the hash `from` on. EACCES if not.
#[derive(Clone, Debug)]
pub struct List {
    pub directory: InodeId,
    pub from: NameHash,
}

impl Rule for List {
    type Outcome = ();
    type Rows<'a> = Option<&'a PartitionRow>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        reader.partition_of_hash(self.directory, self.from)
    }

    fn rule(&self, partition: Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<()>, Refusal> {
        Guard::from(access::parent(partition)?).check(context.caller, READ)?;
        Ok(Decision::Answer(()))
    }
}
