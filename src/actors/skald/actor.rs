//! The actor around a Skald: it runs the loops, and drains.

use std::future::Future;
use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, ResponseFuture, WrapFuture};

use super::core::SkaldCore;
use crate::actors::actor_ref::ActorRef;
use crate::actors::spec::Drain;

/// Keeps the Skald's loops going. When one of them panics all are started anew; what is held stays held.
pub(crate) struct SkaldActor {
    core: Arc<SkaldCore>,
    me: ActorRef<SkaldActor>,
}

impl SkaldActor {
    pub(super) fn new(core: Arc<SkaldCore>, me: ActorRef<SkaldActor>) -> Self {
        SkaldActor { core, me }
    }

    fn run(&self, ctx: &mut Context<Self>, work: impl Future<Output = ()> + 'static) {
        ctx.spawn(work.into_actor(self));
    }
}

impl Actor for SkaldActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let core = || Arc::clone(&self.core);
        let (notices, beats, hello) = (core(), core(), core());
        self.run(ctx, async move { notices.tasks.notices.send_all(&*notices.backends.cache).await });
        self.run(ctx, core().intake_loop());
        self.run(ctx, async move { beats.beat_loop().await });
        self.run(ctx, core().sweep_loop());
        self.run(ctx, async move { hello.announce().await });
        let (own, me) = (core(), self.me.clone());
        self.run(ctx, async move {
            own.single_process_ended().await;
            me.drain();
        });
    }
}

impl Handler<Drain> for SkaldActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Drain: Drain, _: &mut Context<Self>) -> Self::Result {
        Box::pin(Arc::clone(&self.core).drain())
    }
}
