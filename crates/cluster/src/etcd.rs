//! A registry in an etcd cluster (3.4 or later), by the JSON gateway that etcd serves beside gRPC:
//!
//! ```text
//! /varve/<volume>/map             the shard map; the key's version is the map's version
//! /varve/<volume>/beat/<server>   "alive", or "killed" or "evicted"; the key's version is the number of beats
//! ```
//!
//! etcd counts how often a key was written since it was made, its *version*. A number is taken by a transaction that
//! writes the key if its version is the number before, so it has one winner. If the answer is lost, the transaction is
//! repeated and fails; then the key's version and value tell whose the number is.

mod http;
mod url;

pub use http::TlsFiles;
pub use url::{EtcdAddress, EtcdUrlError};

use crate::map::{ClusterMap, ServerId};
use crate::registry::{
    Beat, KillReason, Pulse, RENEWAL, Registry, RegistryError, Taken, check_not_lost, decode_map, encode_map,
};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Client;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use std::time::Duration;
use varve_types::VolumeId;

#[derive(Debug)]
pub struct EtcdRegistry {
    client: Client,
    prefix: String,
    /// For messages.
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    version: u64,
    value: Vec<u8>,
}

impl EtcdRegistry {
    /// Connects on the first call.
    pub fn new(address: EtcdAddress, volume: VolumeId) -> Result<EtcdRegistry, RegistryError> {
        let name = address.to_string();
        let refused = |reason| RegistryError::Refused { registry: name.clone(), reason };
        let client = Client::new(address).map_err(refused)?;
        Ok(EtcdRegistry { client, prefix: format!("/varve/{volume}"), name })
    }

    fn map_key(&self) -> String {
        format!("{}/map", self.prefix)
    }

    fn beat_key(&self, server: ServerId) -> String {
        format!("{}/beat/{server}", self.prefix)
    }

    /// Writes `key` if it was written `number - 1` times before.
    async fn take(&self, key: &str, number: u64, value: &[u8]) -> Result<Taken, RegistryError> {
        let name = BASE64.encode(key);
        let before = number.saturating_sub(1).to_string();
        let transaction = json!({
            "compare": [{ "key": name, "target": "VERSION", "result": "EQUAL", "version": before }],
            "success": [{ "request_put": { "key": name, "value": BASE64.encode(value) } }],
            "failure": [{ "request_range": { "key": name } }],
        });
        let reply: TxnReply = self.call("/v3/kv/txn", &transaction).await?;
        if reply.succeeded {
            return Ok(Taken::Ours);
        }
        let found = reply.responses.into_iter().filter_map(|response| response.response_range).next();
        let found = found.unwrap_or_default().only(key).map_err(|reason| self.unreadable(key, reason))?;
        let ours = found.is_some_and(|stored| stored.version == number && stored.value == value);
        Ok(if ours { Taken::Ours } else { Taken::Others })
    }

    async fn read(&self, key: &str) -> Result<(Option<Stored>, Header), RegistryError> {
        let reply: RangeReply = self.call("/v3/kv/range", &json!({ "key": BASE64.encode(key) })).await?;
        let header = reply.header.clone().unwrap_or_default();
        Ok((reply.only(key).map_err(|reason| self.unreadable(key, reason))?, header))
    }

    async fn read_map(&self) -> Result<(Option<ClusterMap>, Header), RegistryError> {
        let key = self.map_key();
        let (stored, header) = self.read(&key).await?;
        let decode = |stored: Stored| decode_map(&stored.value, stored.version);
        Ok((stored.map(decode).transpose().map_err(|reason| self.unreadable(&key, reason))?, header))
    }

    async fn call<Reply: for<'a> Deserialize<'a>>(
        &self,
        path: &str,
        request: &serde_json::Value,
    ) -> Result<Reply, RegistryError> {
        let body = self.client.call(path, request).await.map_err(|failure| self.failed(failure))?;
        serde_json::from_slice(&body).map_err(|error| self.unreadable(path, error.to_string()))
    }

    fn failed(&self, failure: http::Failure) -> RegistryError {
        let registry = self.name.clone();
        match failure {
            http::Failure::Unavailable(reason) => RegistryError::Unavailable { registry, reason },
            http::Failure::Refused(reason) => RegistryError::Refused { registry, reason },
        }
    }

    fn unreadable(&self, what: &str, reason: impl ToString) -> RegistryError {
        RegistryError::Unreadable { registry: self.name.clone(), what: what.to_owned(), reason: reason.to_string() }
    }
}

#[async_trait]
impl Registry for EtcdRegistry {
    async fn newest_map(&self) -> Result<Option<ClusterMap>, RegistryError> {
        Ok(self.read_map().await?.0)
    }

    async fn later_map(&self, than: u64, wait: Duration) -> Result<Option<ClusterMap>, RegistryError> {
        let (found, header) = self.read_map().await?;
        check_not_lost(&self.name, than, found.as_ref().map(|map| map.version))?;
        if found.as_ref().is_some_and(|map| map.version > than) {
            return Ok(found);
        }
        let watch = json!({ "create_request": {
            "key": BASE64.encode(self.map_key()), "start_revision": (header.revision + 1).to_string(),
        } });
        let changed =
            self.client.await_event("/v3/watch", &watch, wait).await.map_err(|failure| self.failed(failure))?;
        if !changed {
            return Ok(None);
        }
        Ok(self.newest_map().await?.filter(|map| map.version > than))
    }

    async fn publish(&self, map: &ClusterMap) -> Result<Taken, RegistryError> {
        self.take(&self.map_key(), map.version, &encode_map(map)).await
    }

    async fn renew(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError> {
        self.take(&self.beat_key(server), beat.0, RENEWAL).await
    }

    async fn kill(&self, server: ServerId, beat: Beat, reason: KillReason) -> Result<Taken, RegistryError> {
        self.take(&self.beat_key(server), beat.0, reason.record()).await
    }

    async fn pulse(&self, server: ServerId) -> Result<Pulse, RegistryError> {
        let key = self.beat_key(server);
        match self.read(&key).await?.0 {
            None => Ok(Pulse::Beats(Beat::default())),
            Some(stored) => Pulse::decode(&stored.value, Beat(stored.version))
                .ok_or_else(|| self.unreadable(&key, "it is neither a renewal nor a kill")),
        }
    }

    async fn forget(&self, server: ServerId) -> Result<(), RegistryError> {
        // The key of a killed server stays: it keeps a server that wakes up late from renewing.
        if !self.pulse(server).await?.is_killed() {
            let request = json!({ "key": BASE64.encode(self.beat_key(server)) });
            let _: serde_json::Value = self.call("/v3/kv/deleterange", &request).await?;
        }
        Ok(())
    }
}

// Replies. The gateway writes 64-bit numbers as strings, and leaves fields out that are zero, empty or false.

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "number")]
    revision: u64,
}

#[derive(Debug, Default, Deserialize)]
struct RangeReply {
    header: Option<Header>,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Debug, Deserialize)]
struct KeyValue {
    #[serde(default, deserialize_with = "number")]
    version: u64,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
struct TxnReply {
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnResponse>,
}

#[derive(Debug, Deserialize)]
struct TxnResponse {
    response_range: Option<RangeReply>,
}

impl RangeReply {
    /// The key's value, or `None` if there is no such key.
    fn only(self, key: &str) -> Result<Option<Stored>, String> {
        let Some(found) = self.kvs.into_iter().next() else { return Ok(None) };
        let value = BASE64.decode(&found.value).map_err(|error| format!("{key} is not in base64: {error}"))?;
        Ok(Some(Stored { version: found.version, value }))
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
