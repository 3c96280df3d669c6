//! The adapters of `CacheMemory`, each through all of `cache_cases`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skalds::backend::CacheMemory;
use skalds::backend::embedded::{CacheLimits, EmbeddedCache};
use skalds::backend::redis::{FieldTtlSupport, RedisCache};

use crate::cache_cases;
use crate::support::{RedisCluster, RedisServer, Version, wait_until_async};

/// One adapter under test.
pub(crate) struct Bench {
    pub(crate) cache: Arc<dyn CacheMemory>,
    /// The adapter's own clock in milliseconds, where the test moves it.
    clock: Option<Arc<AtomicU64>>,
}

impl Bench {
    /// Waits until something has expired: by moving the clock, or by waiting.
    pub(crate) async fn until<C: Future<Output = bool>>(&self, what: &str, mut condition: impl FnMut() -> C) {
        let clock = self.clock.clone();
        wait_until_async(Duration::from_secs(10), what, || {
            if let Some(clock) = &clock {
                clock.fetch_add(10, Ordering::Relaxed);
            }
            condition()
        })
        .await;
    }
}

#[tokio::test]
async fn embedded_keeps_the_contract() {
    let clock = Arc::new(AtomicU64::new(0));
    let read = clock.clone();
    let limits = CacheLimits::default();
    let cache =
        EmbeddedCache::with(limits, Arc::new(move || Duration::from_millis(read.load(Ordering::Relaxed))));
    cache_cases::all(&Bench { cache: Arc::new(cache), clock: Some(clock) }).await;
}

async fn on_redis(urls: &str, native: bool) {
    let cache = RedisCache::connect(urls).await.unwrap();
    let support = cache.field_ttl_support().await.unwrap();
    assert_eq!(support == FieldTtlSupport::Native, native, "{support:?}");
    cache_cases::all(&Bench { cache: Arc::new(cache), clock: None }).await;
}

async fn on_server(version: Version, native: bool) {
    let server = RedisServer::start(version, &[]);
    on_redis(&server.url(), native).await;
}

#[tokio::test]
async fn redis_8_keeps_the_contract() {
    on_server(Version::V8, true).await;
}

#[tokio::test]
async fn redis_7_4_keeps_the_contract() {
    on_server(Version::V7_4, true).await;
}

#[tokio::test]
async fn redis_7_0_keeps_the_contract_by_emulation() {
    on_server(Version::V7_0, false).await;
}

#[tokio::test]
async fn valkey_9_keeps_the_contract() {
    on_server(Version::Valkey9, true).await;
}

#[tokio::test]
async fn valkey_8_keeps_the_contract_by_emulation() {
    on_server(Version::Valkey8, false).await;
}

#[tokio::test]
async fn a_redis_8_cluster_keeps_the_contract() {
    let cluster = RedisCluster::start(Version::V8, 3, 0);
    on_redis(&cluster.url(), true).await;
}

#[tokio::test]
async fn a_redis_7_0_cluster_keeps_the_contract_by_emulation() {
    let cluster = RedisCluster::start(Version::V7_0, 3, 0);
    // One node is enough to find the others.
    on_redis(&cluster.nodes[1].url(), false).await;
}
