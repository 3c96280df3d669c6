//! `EventQueue` on Kafka: the contract on two brokers that share no code, and what goes wrong on the way.

use skalds::backend::EventQueue;
use skalds::backend::kafka::{KafkaEvents, KafkaOptions};

use crate::events::{Subject, keeps_the_contract};
use crate::support::{Broker, KafkaServer};

pub(crate) fn options(server: &KafkaServer) -> KafkaOptions {
    KafkaOptions { replication: 1, ..KafkaOptions::new(server.address()) }
}

pub(crate) fn open(server: &KafkaServer) -> KafkaEvents {
    KafkaEvents::open(options(server)).unwrap()
}

async fn contract(broker: Broker) {
    let server = KafkaServer::start(broker);
    let (first, second, again) = (open(&server), open(&server), open(&server));
    let subject = |queue| Subject { queue, run: "r".into(), end_is_exact: broker != Broker::Tansu };
    keeps_the_contract(&subject(&first), &subject(&second), Some(&subject(&again))).await;
    again.close().await.unwrap();
}

#[tokio::test]
async fn tansu_keeps_the_contract() {
    contract(Broker::Tansu).await;
}

#[tokio::test]
async fn noida_keeps_the_contract() {
    contract(Broker::Noida).await;
}
