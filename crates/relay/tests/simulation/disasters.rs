//! Disasters: faults that strike a whole process or server.

use super::kafka::broker::{Broker, PARTITIONS, Place};
use super::plan::Disaster;
use super::postgres::server::{SURE_TO_KEEP, Server, TAKEOVER};
use super::process::Doom;
use super::relays::{PUBLISH_TIMEOUT, Slot};
use super::world::{World, add};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

/// A process is doomed to die or freeze after at most this many polls of its tasks.
const STEPS_MAX: u64 = 60;

/// The number of times that an operator tries to lock the whole outbox.
const TRUNCATE_ATTEMPTS: u32 = 5_000;

/// What a disaster can strike.
pub struct Scene<'a> {
    pub world: &'a Rc<World>,
    pub server: &'a Rc<Server>,
    pub broker: &'a Rc<Broker>,
    pub relays: &'a [Rc<Slot>],
}

impl Scene<'_> {
    /// Carries out one disaster. Returns when it is over, except for freezes and cuts.
    pub async fn strike(&self, disaster: Disaster) {
        let world = self.world;
        world.note("disaster:", disaster);
        let relay = &self.relays[world.below(self.relays.len() as u64) as usize];
        let topic = world.below(world.plan.topics as u64) as u8;
        let place = Place { topic, partition: world.below(PARTITIONS as u64) as u8 };
        let steps = world.below(STEPS_MAX);
        let doom = |doom| _ = relay.process().map(|process| process.doom(steps, doom));
        let any_time = |most: Duration| world.up_to(most.as_millis() as u64);
        match disaster {
            Disaster::Kill => doom(Doom::Killed),
            Disaster::HostLost => doom(Doom::HostLost),
            Disaster::Stop => relay.stop(),
            Disaster::Reload => relay.reload(),
            Disaster::FreezeShort => doom(Doom::Frozen(any_time(SURE_TO_KEEP))),
            Disaster::FreezeLong => doom(Doom::Frozen(SURE_TO_KEEP + any_time(TAKEOVER + PUBLISH_TIMEOUT))),
            Disaster::CutFromPostgres => {
                _ = relay.process().map(|process| process.cut_postgres(any_time(2 * TAKEOVER)));
            }
            Disaster::CutFromKafka => {
                _ = relay.process().map(|process| process.cut_kafka(any_time(2 * PUBLISH_TIMEOUT)));
            }
            Disaster::PostgresRestarts => self.server.end_all_backends(true),
            Disaster::PostgresCrashes => self.server.crash(world.below(4) as usize),
            Disaster::FailsOver => self.server.fail_over(world.below(6) as usize),
            Disaster::IdsRestart => {
                for _ in 0..TRUNCATE_ATTEMPTS {
                    if self.server.truncate() {
                        break;
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            }
            Disaster::KafkaAway => {
                add(&world.count.interruptions, (world.plan.relays * world.plan.workers) as u32);
                self.broker.set_unavailable(true);
                sleep(any_time(3 * PUBLISH_TIMEOUT)).await;
                self.broker.set_unavailable(false);
            }
            Disaster::LeaderChange => self.broker.block(place, any_time(Duration::from_secs(2))),
            Disaster::PartitionStuck => self.broker.block(place, any_time(3 * PUBLISH_TIMEOUT)),
            Disaster::CutFromLeader => {
                _ = relay.process().map(|process| process.cut_leader(place, 6 * PUBLISH_TIMEOUT));
            }
            Disaster::TopicDeleted => {
                self.broker.delete_topic(topic);
                sleep(any_time(Duration::from_secs(5))).await;
                self.broker.create_topic(topic);
            }
            Disaster::TopicFlickers => {
                for _ in 0..5 {
                    self.broker.delete_topic(topic);
                    sleep(any_time(Duration::from_millis(100))).await;
                    self.broker.create_topic(topic);
                    sleep(any_time(Duration::from_millis(100))).await;
                }
            }
            Disaster::TopicRejects => {
                self.broker.set_rejecting(topic, true);
                sleep(any_time(Duration::from_secs(8))).await;
                self.broker.set_rejecting(topic, false);
            }
            Disaster::EventsInvalid => {
                self.broker.set_invalid(topic, true);
                sleep(any_time(Duration::from_secs(8))).await;
                self.broker.set_invalid(topic, false);
            }
            Disaster::TopicDenied => {
                self.broker.deny(topic, true);
                sleep(any_time(Duration::from_secs(5))).await;
                self.broker.deny(topic, false);
            }
        }
    }
}
