//! A coordinator that keeps a number of chains on their way.

use std::time::{Duration, Instant};

use skalds::actors::link::{LinkEvent, LinkOptions, Links};
use skalds::chain::message::{Attach, End, EndReason, Message, Role};

use crate::{hello, state};

/// Runs for `time` from the moment at which everybody is connected; returns that moment and the end.
pub(crate) fn run(addresses: &[String; 2], in_flight: usize, time: Duration) -> (Instant, Instant) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (links, mut events) = Links::new(hello(Role::Coordinator, "bench"), LinkOptions::default());
        let _dialers = addresses.each_ref().map(|address| links.dial(address.clone()));
        let mut up = [None, None];
        while up.iter().any(Option::is_none) {
            if let Some(LinkEvent::Connected { link, .. }) = events.recv().await {
                let place =
                    addresses.iter().position(|address| address == link.peer()).expect("one of the two");
                up[place] = Some(link);
            }
        }
        let agents = up.map(|link| link.expect("both are up"));
        let mut jobs = 0;
        let send = |place: usize, message: Message| {
            agents[place].try_send(&message).expect("it is up and fast");
        };
        let mut set_out = || {
            jobs += 1;
            let state = state(jobs, addresses);
            for place in 0..2 {
                let attach = Attach { job: state.job.id.clone(), epoch: 1, incarnation: 1 };
                send(place, Message::Attach(attach));
            }
            send(0, Message::State(state.into()));
        };
        let began = Instant::now();
        (0..in_flight).for_each(|_| set_out());
        let deadline = tokio::time::Instant::now() + time;
        while let Ok(event) = tokio::time::timeout_at(deadline, events.recv()).await {
            match event.expect("connections are up") {
                LinkEvent::Message { message: Message::State(state), .. } => {
                    // The last agent of a route with an even number of hops is the second one.
                    send(1, Message::ack(vec![state.hop_id()]));
                    for place in 0..2 {
                        let end = End { job: state.job.id.clone(), incarnation: 1, why: EndReason::Finished };
                        send(place, Message::End(end));
                    }
                    set_out();
                }
                LinkEvent::Closed { reason, .. } => panic!("an agent is gone: {reason}"),
                LinkEvent::Message { message: Message::Refuse(refuse), .. } => panic!("{refuse:?}"),
                _ => {}
            }
        }
        (began, Instant::now())
    })
}
